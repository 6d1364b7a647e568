"""`python -m phloem_grammar`: the grammar service as a process of its own, over NATS."""

from __future__ import annotations

import typer

from phloem_bus import extras, options
from phloem_bus.run import add_probe, config_errors, run_service
from phloem_proto.subjects import Role

with extras.extra("grammar"):
    from phloem_grammar.config import PRIORITIES, GrammarConfig
    from phloem_grammar.service import GrammarService

app = typer.Typer(add_completion=False, context_settings={"help_option_names": ["-h", "--help"]})
add_probe(app)


@app.callback(invoke_without_command=True)
def serve(
    context: typer.Context,
    model: options.Model = options.MODEL,
    served_model_name: options.ServedModelName = "",
    compiles: int = typer.Option(GrammarConfig.compiles, envvar="PHLOEM_COMPILES", help="Grammars compiled at once."),
    compiles_waiting: int = typer.Option(
        GrammarConfig.compiles_waiting, envvar="PHLOEM_COMPILES_WAITING", help="Most callers that wait for a compile."
    ),
    compile_cpu_seconds: float = typer.Option(
        GrammarConfig.compile_cpu_seconds,
        envvar="PHLOEM_COMPILE_CPU_SECONDS",
        help="CPU time of one compile; beyond it is killed.",
    ),
    compile_memory_mb: int = typer.Option(
        GrammarConfig.compile_memory_mb,
        envvar="PHLOEM_COMPILE_MEMORY_MB",
        help="Memory one compile may add; beyond it is killed.",
    ),
    compile_wall_seconds: float = typer.Option(
        GrammarConfig.compile_wall_seconds,
        envvar="PHLOEM_COMPILE_WALL_SECONDS",
        help="Clock time of one compile; beyond it is killed.",
    ),
    verdict_cache_mb: int = typer.Option(
        GrammarConfig.verdict_cache_mb, envvar="PHLOEM_VERDICT_CACHE_MB", help="Text of remembered verdicts."
    ),
    compile_priority: str = typer.Option(
        GrammarConfig.compile_priority,
        envvar="PHLOEM_COMPILE_PRIORITY",
        help=f"CPU priority of compiles: {', '.join(PRIORITIES)}.",
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
    """Judge JSON schemas and regular expressions, and compile them in processes that can be killed."""
    if context.invoked_subcommand is not None:
        return
    with config_errors():
        config = GrammarConfig(
            model=model,
            compiles=compiles,
            compiles_waiting=compiles_waiting,
            compile_cpu_seconds=compile_cpu_seconds,
            compile_memory_mb=compile_memory_mb,
            compile_wall_seconds=compile_wall_seconds,
            verdict_cache_mb=verdict_cache_mb,
            compile_priority=compile_priority,
        )
        common = options.CommonOptions.of(
            Role.GRAMMAR,
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
    raise typer.Exit(run_service(lambda: GrammarService(config), common))


def main() -> None:
    """Entry point of the `phloem-grammar` command."""
    app()


if __name__ == "__main__":
    main()
