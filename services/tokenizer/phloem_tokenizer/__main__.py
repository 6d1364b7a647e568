"""`python -m phloem_tokenizer`: the tokenizer service as a process of its own, over NATS."""

from __future__ import annotations

import typer

from phloem_bus import extras, options
from phloem_bus.run import add_probe, config_errors, run_service
from phloem_proto.subjects import Role

with extras.extra("tokenizer"):
    from phloem_tokenizer.config import MAX_CALLS, TokenizerConfig
    from phloem_tokenizer.service import TokenizerService
    from phloem_tokenizer.streams import MAX_STREAMS

app = typer.Typer(add_completion=False, context_settings={"help_option_names": ["-h", "--help"]})
add_probe(app)


@app.callback(invoke_without_command=True)
def serve(
    context: typer.Context,
    model: options.Model = options.MODEL,
    served_model_name: options.ServedModelName = "",
    max_streams: int = typer.Option(
        MAX_STREAMS,
        envvar="PHLOEM_MAX_STREAMS",
        help="Most live requests whose output this instance turns into text.",
    ),
    max_calls: int = typer.Option(
        MAX_CALLS,
        envvar="PHLOEM_MAX_CALLS",
        help="Most prompts being encoded or waiting for that.",
    ),
    nats_url: options.NatsUrl = options.NATS_URL,
    nats_user: options.NatsUser = "",
    nats_password_file: options.NatsPasswordFile = None,
    nats_tls_ca: options.NatsTlsCa = None,
    nats_tls_cert: options.NatsTlsCert = None,
    nats_tls_key: options.NatsTlsKey = None,
    namespace: options.Namespace = options.NAMESPACE,
    instance: options.Instance = "",
    log_format: options.LogFormat = "console",
    log_level: options.LogLevel = "info",
    drain_seconds: options.DrainSeconds = options.DRAIN_S,
    metrics_port: options.MetricsPort = 0,
    metrics_host: options.MetricsHost = options.METRICS_HOST,
    ready_file: options.ReadyFile = None,
    version: options.Version = False,
) -> None:
    """Turn text and chats into token ids, and output ids into text, for one model."""
    if context.invoked_subcommand is not None:
        return
    with config_errors():
        config = TokenizerConfig(model=model, max_streams=max_streams, max_calls=max_calls)
        common = options.CommonOptions.of(
            Role.TOKENIZER,
            model=model,
            served_model_name=served_model_name,
            nats_url=nats_url,
            nats_user=nats_user,
            nats_password_file=nats_password_file,
            nats_tls_ca=nats_tls_ca,
            nats_tls_cert=nats_tls_cert,
            nats_tls_key=nats_tls_key,
            namespace=namespace,
            instance=instance,
            log_format=log_format,
            log_level=log_level,
            drain_seconds=drain_seconds,
            metrics_port=metrics_port,
            metrics_host=metrics_host,
            ready_file=ready_file,
        )
    raise typer.Exit(run_service(lambda: TokenizerService(config), common))


def main() -> None:
    """Entry point of the `phloem-tokenizer` command."""
    app()


if __name__ == "__main__":
    main()
