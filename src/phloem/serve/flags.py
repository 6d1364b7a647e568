"""Flags of `phloem serve` that the bus's common options don't have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from phloem_scheduler.eviction import EVICTION
from phloem_scheduler.policy import POLICIES

_EDGE = "Edges"
_MODEL = "Model"
_BATCH = "Batching"

HttpHost = Annotated[
    str,
    typer.Option(
        "--http-host", envvar="PHLOEM_HTTP_HOST", help="Address of HTTP; 0.0.0.0 = all.", rich_help_panel=_EDGE
    ),
]
HttpPort = Annotated[
    int,
    typer.Option(
        "--http-port", envvar="PHLOEM_HTTP_PORT", help="Port of HTTP; 0 = any free one.", rich_help_panel=_EDGE
    ),
]
GrpcHost = Annotated[
    str,
    typer.Option(
        "--grpc-host", envvar="PHLOEM_GRPC_HOST", help="Address of gRPC; 0.0.0.0 = all.", rich_help_panel=_EDGE
    ),
]
GrpcPort = Annotated[
    int,
    typer.Option(
        "--grpc-port",
        envvar="PHLOEM_GRPC_PORT",
        help="Port of gRPC; 0 = any free one, -1 = off.",
        rich_help_panel=_EDGE,
    ),
]
ApiKeysFile = Annotated[
    Path | None,
    typer.Option(
        "--api-keys-file",
        envvar="PHLOEM_API_KEYS_FILE",
        help="File with one API key per line.",
        show_default="everybody may call",
        rich_help_panel=_EDGE,
    ),
]
CorsOrigins = Annotated[
    str,
    typer.Option(
        "--cors-origins",
        envvar="PHLOEM_CORS_ORIGINS",
        help="Browser origins, with commas; * = any.",
        show_default="none",
        rich_help_panel=_EDGE,
    ),
]
Radix = Annotated[
    str,
    typer.Option(
        "--radix",
        envvar="PHLOEM_RADIX",
        help="What clients see of the prefix cache: off, shape, text, or auto = text unless API keys are set.",
        rich_help_panel=_EDGE,
    ),
]
RequestTimeout = Annotated[
    float,
    typer.Option(
        "--request-timeout",
        envvar="PHLOEM_REQUEST_TIMEOUT",
        help="Deadline of a request, in seconds.",
        rich_help_panel=_EDGE,
    ),
]
Dtype = Annotated[
    str,
    typer.Option("--dtype", envvar="PHLOEM_DTYPE", help="auto, bfloat16 or float32.", rich_help_panel=_MODEL),
]
Device = Annotated[
    str, typer.Option("--device", envvar="PHLOEM_DEVICE", help="auto, cpu or cuda.", rich_help_panel=_MODEL)
]
Threads = Annotated[
    int,
    typer.Option(
        "--threads", envvar="PHLOEM_THREADS", help="CPU threads of the model; 0 = automatic.", rich_help_panel=_MODEL
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
PageSize = Annotated[
    int,
    typer.Option("--page-size", envvar="PHLOEM_PAGE_SIZE", help="Tokens per KV page.", rich_help_panel=_BATCH),
]
KvTokens = Annotated[
    int,
    typer.Option(
        "--kv-tokens",
        envvar="PHLOEM_KV_TOKENS",
        help="Tokens the KV pool holds; 0 = what --kv-memory-gb hold.",
        rich_help_panel=_BATCH,
    ),
]
KvMemory = Annotated[
    float,
    typer.Option(
        "--kv-memory-gb",
        envvar="PHLOEM_KV_MEMORY_GB",
        help="Memory of the KV pool; 0 = chosen from what is free.",
        rich_help_panel=_BATCH,
    ),
]
Kernels = Annotated[
    str,
    typer.Option(
        "--kernels",
        envvar="PHLOEM_KERNELS",
        help="Who computes on the CPU: auto, torch or a level.",
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
Cores = Annotated[
    str,
    typer.Option(
        "--cores",
        envvar="PHLOEM_CORES",
        help="Cores that threads are bound to; empty = unbound.",
        rich_help_panel=_MODEL,
    ),
]
MaxRows = Annotated[
    int, typer.Option("--max-rows", envvar="PHLOEM_MAX_ROWS", help="Sequences at once.", rich_help_panel=_BATCH)
]
ChunkTokens = Annotated[
    int,
    typer.Option(
        "--chunk-tokens",
        envvar="PHLOEM_CHUNK_TOKENS",
        help="Prompt tokens per step; 0 = as many as fit in --chunk-ms.",
        rich_help_panel=_BATCH,
    ),
]
ChunkMs = Annotated[
    float,
    typer.Option(
        "--chunk-ms",
        envvar="PHLOEM_CHUNK_MS",
        help="Milliseconds a step with prompt tokens may take, up to twice that while many wait.",
        rich_help_panel=_BATCH,
    ),
]
MaxQueued = Annotated[
    int, typer.Option("--max-queued", envvar="PHLOEM_MAX_QUEUED", help="Sequences that wait.", rich_help_panel=_BATCH)
]
Policy = Annotated[
    str,
    typer.Option(
        "--policy", envvar="PHLOEM_POLICY", help=f"Order of the queue: {', '.join(POLICIES)}.", rich_help_panel=_BATCH
    ),
]
Ageing = Annotated[
    float,
    typer.Option(
        "--ageing",
        envvar="PHLOEM_AGEING",
        help="lpm: seconds by which a later request may overtake one with less of its prompt cached.",
        rich_help_panel=_BATCH,
    ),
]
Eviction = Annotated[
    str,
    typer.Option(
        "--eviction",
        envvar="PHLOEM_EVICTION",
        help=f"Which unused cached pages go first: {', '.join(EVICTION)}.",
        rich_help_panel=_BATCH,
    ),
]
PreemptAbove = Annotated[
    int,
    typer.Option(
        "--preempt-above",
        envvar="PHLOEM_PREEMPT_ABOVE",
        help="Running requests give way to a waiting one whose priority is higher by more than this; -1 = never.",
        rich_help_panel=_BATCH,
    ),
]
PinShare = Annotated[
    float,
    typer.Option(
        "--pin-share",
        envvar="PHLOEM_PIN_SHARE",
        help="Share of the KV pages that pins may hold.",
        rich_help_panel=_BATCH,
    ),
]
Depth = Annotated[
    int, typer.Option("--depth", envvar="PHLOEM_DEPTH", help="Plans in flight, 1 to 3.", rich_help_panel=_BATCH)
]
Reserve = Annotated[
    float,
    typer.Option(
        "--reserve",
        envvar="PHLOEM_RESERVE",
        help="Share of running output set aside for it: 0 overcommits, 1 never does.",
        rich_help_panel=_BATCH,
    ),
]
DisableRadixCache = Annotated[
    bool,
    typer.Option(
        "--disable-radix-cache",
        envvar="PHLOEM_DISABLE_RADIX_CACHE",
        help="Forget the KV of finished requests.",
        rich_help_panel=_BATCH,
    ),
]
