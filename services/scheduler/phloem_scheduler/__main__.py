"""``python -m phloem_scheduler``: the scheduler as a process of its own."""

from __future__ import annotations

from typing import Annotated

import typer

from phloem_bus import options, run
from phloem_proto.subjects import Role

from .config import SchedulerConfig
from .eviction import EVICTION
from .policy import POLICIES
from .service import SchedulerService

DEFAULTS = SchedulerConfig()
_BATCH = "Batching"
_LIMITS = "Limits"

app = typer.Typer(
    name="phloem-scheduler",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _option(flag: str, text: str, panel: str) -> typer.models.OptionInfo:
    variable = "PHLOEM_" + flag.strip("-").replace("-", "_").upper()
    option: typer.models.OptionInfo = typer.Option(flag, envvar=variable, help=text, rich_help_panel=panel)
    return option


@app.callback(
    invoke_without_command=True,
    help="The scheduler: radix tree, queue, batches, and everything that decides what runs.",
)
def scheduler(
    context: typer.Context,
    chunk_ms: Annotated[
        float,
        _option(
            "--chunk-ms", "Milliseconds a step with prompt tokens may take, up to twice that while many wait.", _BATCH
        ),
    ] = DEFAULTS.chunk_ms,
    chunk_tokens: Annotated[
        int, _option("--chunk-tokens", "Prompt tokens per step, fixed; 0 = as many as fit --chunk-ms.", _BATCH)
    ] = DEFAULTS.chunk_tokens,
    depth: Annotated[int, _option("--depth", "Plans in flight per worker, 1 to 3.", _BATCH)] = DEFAULTS.depth,
    policy: Annotated[
        str, _option("--policy", f"Order of the queue: {', '.join(POLICIES)}.", _BATCH)
    ] = DEFAULTS.policy,
    ageing: Annotated[
        float,
        _option(
            "--ageing", "lpm: seconds by which a later request may overtake one with less of its prompt cached.", _BATCH
        ),
    ] = DEFAULTS.ageing_s,
    eviction: Annotated[
        str, _option("--eviction", f"Which unused cached pages go first: {', '.join(EVICTION)}.", _BATCH)
    ] = DEFAULTS.eviction,
    preempt_above: Annotated[
        int,
        _option(
            "--preempt-above",
            "Running requests give way to a waiting one whose priority is higher by more than this; -1 = never.",
            _BATCH,
        ),
    ] = DEFAULTS.preempt_above,
    balance_ratio: Annotated[
        float,
        _option(
            "--balance-ratio",
            "Several workers: rows, as a multiple of the least loaded one's, that are too many.",
            _BATCH,
        ),
    ] = DEFAULTS.balance_ratio,
    balance_rows: Annotated[
        int,
        _option("--balance-rows", "Several workers: rows more than the least loaded one's that are too many.", _BATCH),
    ] = DEFAULTS.balance_rows,
    pin_share: Annotated[
        float, _option("--pin-share", "Share of a worker's pages that pins may hold.", _LIMITS)
    ] = DEFAULTS.pin_share,
    disable_radix_cache: Annotated[
        bool, _option("--disable-radix-cache", "Forget the KV of finished requests.", _BATCH)
    ] = DEFAULTS.disable_radix_cache,
    max_running: Annotated[
        int, _option("--max-running", "Most sequences that run on a worker.", _LIMITS)
    ] = DEFAULTS.max_running,
    max_queued: Annotated[int, _option("--max-queued", "Most sequences that wait.", _LIMITS)] = DEFAULTS.max_queued,
    reserve: Annotated[
        float, _option("--reserve", "Share of running output set aside for it: 0 overcommits, 1 never does.", _LIMITS)
    ] = DEFAULTS.reserve,
    worker_wait: Annotated[
        float, _option("--worker-wait", "Seconds that accepted requests wait for a worker.", _LIMITS)
    ] = DEFAULTS.worker_wait_s,
    compile_timeout: Annotated[
        float, _option("--compile-timeout", "Seconds that the verdict on a grammar may take.", _LIMITS)
    ] = DEFAULTS.compile_timeout_s,
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
    """Run the scheduler, unless a command was given."""
    if context.invoked_subcommand is not None:
        return
    with run.config_errors():
        config = SchedulerConfig(
            chunk_ms=chunk_ms,
            chunk_tokens=chunk_tokens,
            max_running=max_running,
            max_queued=max_queued,
            depth=depth,
            policy=policy,
            ageing_s=ageing,
            eviction=eviction,
            preempt_above=preempt_above,
            balance_ratio=balance_ratio,
            balance_rows=balance_rows,
            pin_share=pin_share,
            disable_radix_cache=disable_radix_cache,
            reserve=reserve,
            worker_wait_s=worker_wait,
            compile_timeout_s=compile_timeout,
        )
        common = options.CommonOptions.of(
            Role.SCHEDULER,
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
    raise typer.Exit(run.run_service(lambda: SchedulerService(config, alone=True), common))


run.add_probe(app)


def main() -> None:
    """Entry point."""
    app()


if __name__ == "__main__":
    main()
