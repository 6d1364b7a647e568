"""``python -m phloem_gateway``: HTTP and gRPC edges as a process of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from phloem_bus import extras, options, run
from phloem_proto.subjects import Role

from .config import GatewayConfig

with extras.extra("gateway"):
    from .service import GatewayService

DEFAULTS = GatewayConfig()
_LIMITS = "Limits"

app = typer.Typer(
    name="phloem-gateway",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _limit(flag: str, text: str) -> typer.models.OptionInfo:
    """An option of the limits panel."""
    variable = "PHLOEM_" + flag.strip("-").replace("-", "_").upper()
    option: typer.models.OptionInfo = typer.Option(flag, envvar=variable, help=text, rich_help_panel=_LIMITS)
    return option


@app.callback(invoke_without_command=True, help="The gateway: OpenAI-compatible HTTP, native /generate, and gRPC.")
def gateway(
    context: typer.Context,
    http_host: Annotated[
        str, typer.Option("--http-host", envvar="PHLOEM_HTTP_HOST", help="Address of HTTP; 0.0.0.0 = all.")
    ] = DEFAULTS.http_host,
    http_port: Annotated[
        int, typer.Option("--http-port", envvar="PHLOEM_HTTP_PORT", help="Port of HTTP; 0 = any free one.")
    ] = 8000,
    grpc_host: Annotated[
        str, typer.Option("--grpc-host", envvar="PHLOEM_GRPC_HOST", help="Address of gRPC; 0.0.0.0 = all.")
    ] = DEFAULTS.grpc_host,
    grpc_port: Annotated[
        int, typer.Option("--grpc-port", envvar="PHLOEM_GRPC_PORT", help="Port of gRPC; 0 = any free one, -1 = off.")
    ] = 50051,
    api_keys_file: Annotated[
        Path | None,
        typer.Option("--api-keys-file", envvar="PHLOEM_API_KEYS_FILE", help="File with one API key per line."),
    ] = None,
    cors_origins: Annotated[
        str,
        typer.Option("--cors-origins", envvar="PHLOEM_CORS_ORIGINS", help="Browser origins, with commas; * = any."),
    ] = "",
    radix: Annotated[
        str,
        typer.Option(
            "--radix",
            envvar="PHLOEM_RADIX",
            help="What clients see of the prefix cache: off, shape, text, or auto = text unless API keys are set.",
        ),
    ] = DEFAULTS.radix,
    max_body_bytes: Annotated[int, _limit("--max-body-bytes", "Largest request body.")] = DEFAULTS.max_body_bytes,
    request_timeout: Annotated[
        float, _limit("--request-timeout", "Deadline of a request, in seconds.")
    ] = DEFAULTS.request_timeout_s,
    max_live: Annotated[int, _limit("--max-live", "Most live requests.")] = DEFAULTS.max_live,
    max_choices: Annotated[
        int, _limit("--max-choices", "Most choices (prompts times n) of one call.")
    ] = DEFAULTS.max_choices,
    byte_budget: Annotated[
        int, _limit("--byte-budget", "Output bytes per choice that a client may leave unread before it is cut.")
    ] = DEFAULTS.byte_budget,
    model: options.Model = options.MODEL,
    served_model_name: options.ServedModelName = "",
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
    """Run the gateway, unless a command was given."""
    if context.invoked_subcommand is not None:
        return
    with run.config_errors():
        config = GatewayConfig(
            http_host=http_host,
            http_port=http_port,
            grpc_host=grpc_host,
            grpc_port=None if grpc_port == -1 else grpc_port,
            api_keys_file=api_keys_file,
            cors_origins=tuple(origin.strip() for origin in cors_origins.split(",") if origin.strip()),
            radix=radix,
            max_body_bytes=max_body_bytes,
            request_timeout_s=request_timeout,
            max_live=max_live,
            max_choices=max_choices,
            byte_budget=byte_budget,
        )
        common = options.CommonOptions.of(
            Role.GATEWAY,
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
    raise typer.Exit(run.run_service(lambda: GatewayService(config, alone=True), common, wait_for_broker=False))


run.add_probe(app)


def main() -> None:
    """Entry point."""
    app()


if __name__ == "__main__":
    main()
