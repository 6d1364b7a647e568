"""``python -m phloem_gpu_worker``: one worker as a process, over NATS."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from phloem_bus import extras, options
from phloem_bus.run import add_probe, config_errors, run_service
from phloem_proto.subjects import Role

with extras.extra("gpu-worker"):
    from .openmp import sleep_soon

    sleep_soon()  # before torch is loaded
    from .config import KERNELS, WorkerConfig
    from .service import WorkerService

_MODEL = "Model"

app = typer.Typer(add_completion=False, context_settings={"help_option_names": ["-h", "--help"]})
add_probe(app)

SWITCH_S = 0.0005
"""How long Python code may hold the interpreter while another thread wants it: the device thread must not wait 5 ms for the event loop."""

Dtype = Annotated[
    str,
    typer.Option(
        "--dtype", envvar="PHLOEM_DTYPE", help="auto, bfloat16 or float32; weights and KV.", rich_help_panel=_MODEL
    ),
]
DeviceName = Annotated[
    str, typer.Option("--device", envvar="PHLOEM_DEVICE", help="auto, cpu or cuda.", rich_help_panel=_MODEL)
]
PageSize = Annotated[
    int,
    typer.Option(
        "--page-size", envvar="PHLOEM_PAGE_SIZE", help="Tokens per KV page, a power of two.", rich_help_panel=_MODEL
    ),
]
KvTokens = Annotated[
    int,
    typer.Option(
        "--kv-tokens",
        envvar="PHLOEM_KV_TOKENS",
        help="Tokens the KV pool holds; 0 = what --kv-memory-gb hold.",
        rich_help_panel=_MODEL,
    ),
]
KvMemory = Annotated[
    float,
    typer.Option(
        "--kv-memory-gb",
        envvar="PHLOEM_KV_MEMORY_GB",
        help="Memory of the KV pool; 0 = chosen from what is free.",
        rich_help_panel=_MODEL,
    ),
]
MaxRows = Annotated[
    int,
    typer.Option("--max-rows", envvar="PHLOEM_MAX_ROWS", help="Sequences that run at once.", rich_help_panel=_MODEL),
]
MaxStepTokens = Annotated[
    int,
    typer.Option(
        "--max-step-tokens",
        envvar="PHLOEM_MAX_STEP_TOKENS",
        help="Most tokens of one step.",
        rich_help_panel=_MODEL,
    ),
]
MaxContext = Annotated[
    int,
    typer.Option(
        "--max-context",
        envvar="PHLOEM_MAX_CONTEXT",
        help="Most tokens of a sequence; 0 = the model's.",
        rich_help_panel=_MODEL,
    ),
]
ThreadCount = Annotated[
    int,
    typer.Option(
        "--threads", envvar="PHLOEM_THREADS", help="CPU threads of the model; 0 = automatic.", rich_help_panel=_MODEL
    ),
]
KernelsName = Annotated[
    str,
    typer.Option(
        "--kernels",
        envvar="PHLOEM_KERNELS",
        help=f"Who computes on the CPU: {', '.join(KERNELS)}.",
        rich_help_panel=_MODEL,
    ),
]
Quantize = Annotated[
    str,
    typer.Option(
        "--quantize",
        envvar="PHLOEM_QUANTIZE",
        help="Weights in int8 or int4, as stored in the file, or none.",
        rich_help_panel=_MODEL,
    ),
]
CoreList = Annotated[
    str,
    typer.Option(
        "--cores",
        envvar="PHLOEM_CORES",
        help="Cores that threads are bound to, such as 0-3,8; empty = unbound.",
        rich_help_panel=_MODEL,
    ),
]
_DEFAULT = WorkerConfig()


@app.callback(invoke_without_command=True)
def serve(
    context: typer.Context,
    model: options.Model = options.MODEL,
    served_model_name: options.ServedModelName = "",
    dtype: Dtype = _DEFAULT.dtype,
    device: DeviceName = _DEFAULT.device,
    page_size: PageSize = _DEFAULT.page_size,
    kv_tokens: KvTokens = _DEFAULT.kv_tokens,
    kv_memory_gb: KvMemory = _DEFAULT.kv_memory_gb,
    max_rows: MaxRows = _DEFAULT.max_rows,
    max_step_tokens: MaxStepTokens = _DEFAULT.max_step_tokens,
    max_context: MaxContext = _DEFAULT.max_context,
    threads: ThreadCount = _DEFAULT.threads,
    kernels: KernelsName = _DEFAULT.kernels,
    quantize: Quantize = _DEFAULT.quantize,
    cores: CoreList = _DEFAULT.cores,
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
    """Run the model: forward passes, KV pages, sampling, grammar matchers."""
    if context.invoked_subcommand is not None:
        return
    with config_errors():
        config = WorkerConfig(
            model=model,
            dtype=dtype,
            device=device,
            page_size=page_size,
            kv_tokens=kv_tokens,
            kv_memory_gb=kv_memory_gb,
            max_rows=max_rows,
            max_step_tokens=max_step_tokens,
            max_context=max_context,
            threads=threads,
            kernels=kernels,
            quantize=quantize,
            cores=cores,
        )
        common = options.CommonOptions.of(
            Role.WORKER,
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
    sys.setswitchinterval(SWITCH_S)
    raise typer.Exit(run_service(lambda: WorkerService(config), common))


def main() -> None:
    """Entry point of the ``phloem-gpu-worker`` command."""
    app()


if __name__ == "__main__":
    main()
