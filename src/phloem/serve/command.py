"""The `serve` verb of the command line."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import typer

from phloem_bus import extras, options
from phloem_bus.run import config_errors
from phloem_gateway.config import GatewayConfig
from phloem_gpu_worker.config import WorkerConfig
from phloem_gpu_worker.openmp import sleep_soon
from phloem_model.errors import ModelUnavailable
from phloem_proto.subjects import Role
from phloem_scheduler.config import SchedulerConfig

from . import flags
from .preflight import check_gateway, prepare_model

_GATEWAY = GatewayConfig()
_WORKER = WorkerConfig()
_SCHEDULER = SchedulerConfig()


def serve(
    context: typer.Context,
    model: options.Model = options.MODEL,
    served_model_name: options.ServedModelName = "",
    http_host: flags.HttpHost = _GATEWAY.http_host,
    http_port: flags.HttpPort = 8000,
    grpc_host: flags.GrpcHost = _GATEWAY.grpc_host,
    grpc_port: flags.GrpcPort = 50051,
    api_keys_file: flags.ApiKeysFile = None,
    cors_origins: flags.CorsOrigins = "",
    radix: flags.Radix = _GATEWAY.radix,
    request_timeout: flags.RequestTimeout = _GATEWAY.request_timeout_s,
    dtype: flags.Dtype = _WORKER.dtype,
    device: flags.Device = _WORKER.device,
    threads: flags.Threads = _WORKER.threads,
    kernels: flags.Kernels = _WORKER.kernels,
    quantize: flags.Quantize = _WORKER.quantize,
    cores: flags.Cores = _WORKER.cores,
    max_context: flags.MaxContext = _WORKER.max_context,
    page_size: flags.PageSize = _WORKER.page_size,
    kv_tokens: flags.KvTokens = _WORKER.kv_tokens,
    kv_memory_gb: flags.KvMemory = _WORKER.kv_memory_gb,
    max_rows: flags.MaxRows = _WORKER.max_rows,
    chunk_tokens: flags.ChunkTokens = _SCHEDULER.chunk_tokens,
    chunk_ms: flags.ChunkMs = _SCHEDULER.chunk_ms,
    max_queued: flags.MaxQueued = _SCHEDULER.max_queued,
    policy: flags.Policy = _SCHEDULER.policy,
    ageing: flags.Ageing = _SCHEDULER.ageing_s,
    eviction: flags.Eviction = _SCHEDULER.eviction,
    preempt_above: flags.PreemptAbove = _SCHEDULER.preempt_above,
    pin_share: flags.PinShare = _SCHEDULER.pin_share,
    depth: flags.Depth = _SCHEDULER.depth,
    reserve: flags.Reserve = _SCHEDULER.reserve,
    disable_radix_cache: flags.DisableRadixCache = False,
    log_format: options.LogFormat = "console",
    log_level: options.LogLevel = "info",
    drain_seconds: options.DrainSeconds = options.DRAIN_S,
    ready_file: options.ReadyFile = None,
) -> None:
    """Serve a model: all five services in this one process, without a broker.

    Metrics of all of them are on the HTTP port, at /metrics.
    """
    if context.args:
        _fail(f"unexpected argument {context.args[0]!r}; a model is named with --model {context.args[0]}", 2)
    with config_errors():
        common = options.CommonOptions.of(
            Role.GATEWAY,
            model=model,
            served_model_name=served_model_name,
            log_format=log_format,
            log_level=log_level,
            drain_seconds=drain_seconds,
            ready_file=ready_file,
        )
        gateway = GatewayConfig(
            http_host=http_host,
            http_port=http_port,
            grpc_host=grpc_host,
            grpc_port=None if grpc_port == -1 else grpc_port,
            api_keys_file=api_keys_file,
            cors_origins=tuple(origin.strip() for origin in cors_origins.split(",") if origin.strip()),
            radix=radix,
            request_timeout_s=request_timeout,
        )
        worker = WorkerConfig(
            model=model,
            dtype=dtype,
            device=device,
            threads=threads,
            kernels=kernels,
            quantize=quantize,
            cores=cores,
            max_context=max_context,
            page_size=page_size,
            kv_tokens=kv_tokens,
            kv_memory_gb=kv_memory_gb,
            max_rows=max_rows,
        )
        scheduler = SchedulerConfig(
            chunk_tokens=chunk_tokens,
            chunk_ms=chunk_ms,
            max_queued=max_queued,
            policy=policy,
            ageing_s=ageing,
            eviction=eviction,
            preempt_above=preempt_above,
            pin_share=pin_share,
            depth=depth,
            reserve=reserve,
            disable_radix_cache=disable_radix_cache,
        )
        check_gateway(gateway)
        try:
            prepare_model(model)
        except ModelUnavailable as error:
            _fail(str(error), 1)
    # The grammar service starts its children by fork and exec; gRPC's own preparations for a fork are of no use then, and noisy.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
    # Only now: it loads torch, and `phloem --help` should not wait for that.
    with extras.extra("all"):
        sleep_soon()  # before torch is loaded
        from .app import serve as run
        from .settings import ServeSettings

    settings = ServeSettings(model, common.served_model_name, gateway, scheduler, worker)
    code = run(
        settings,
        log_format=common.log_format,
        log_level=common.log_level,
        drain_s=common.drain_s,
        ready_file=common.ready_file,
    )
    raise typer.Exit(code)


def _fail(message: str, code: int) -> NoReturn:
    print(f"phloem serve: {message}", file=sys.stderr)
    raise typer.Exit(code)
