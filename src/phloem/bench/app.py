"""The commands of `phloem bench`. Only flags are here; what they do is imported when they are used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from .hardware.command import hardware
from .options import check_files, fail, one_of, parts
from .overlap.command import overlap
from .policy.command import policy
from .quality.command import quality

app = typer.Typer(
    help="Measure servers, start peers to measure against, measure our own overlap, radix tree and kernels, compare queue policies.",
    no_args_is_help=True,
)

WORKLOADS = ("unique", "single", "shared-prefix", "json", "trace")
"""As `plan.Workload`, named here so that ``--help`` needs no import of it; a test keeps them equal."""
PEER_NAMES = ("vllm", "llamacpp")
"""As `peers.PEERS`, likewise."""


@app.callback()
def bench() -> None:
    """Measure servers, start peers to measure against, measure our own overlap, radix tree and kernels, compare queue policies."""


@app.command()
def serve(
    url: Annotated[str, typer.Option(help="Base URL of an OpenAI-compatible server.")] = "http://127.0.0.1:8000",
    url_b: Annotated[
        str | None, typer.Option(help="Second server: both are measured in turn (A B, B A, ...) and compared.")
    ] = None,
    workload: Annotated[str, typer.Option(help=f"{' | '.join(WORKLOADS)}.")] = "unique",
    num_prompts: Annotated[
        int, typer.Option(help="Requests per round (shared-prefix: groups x prompts per group).")
    ] = 64,
    input_len: Annotated[int, typer.Option(help="unique, single: prompt tokens.")] = 64,
    output_len: Annotated[int, typer.Option(help="Answer tokens (max_tokens); give json at least 200.")] = 128,
    range_ratio: Annotated[float, typer.Option(help="Lengths are drawn from ratio x length up to length.")] = 1.0,
    groups: Annotated[int, typer.Option(help="shared-prefix: groups.")] = 4,
    prompts_per_group: Annotated[int, typer.Option(help="shared-prefix: requests per group.")] = 16,
    prefix_len: Annotated[int, typer.Option(help="shared-prefix: tokens that a group shares.")] = 1024,
    question_len: Annotated[int, typer.Option(help="shared-prefix: tokens of a request's own.")] = 64,
    ordered: Annotated[bool, typer.Option(help="shared-prefix: group after group instead of shuffled.")] = False,
    trace: Annotated[
        Path | None, typer.Option(help="trace: Mooncake .jsonl or Azure .csv file.", dir_okay=False)
    ] = None,
    scale: Annotated[
        float, typer.Option(help="trace: lengths are multiplied by this (Mooncake on a small model: 0.0625).")
    ] = 1.0,
    speedup: Annotated[float, typer.Option(help="trace: times are divided by this.")] = 1.0,
    max_input_len: Annotated[int, typer.Option(help="trace: longer prompts are cut to this.")] = 1536,
    max_output_len: Annotated[int, typer.Option(help="trace: longer answers are cut to this.")] = 512,
    request_rate: Annotated[
        float | None, typer.Option(help="Open loop: requests per second, Poisson. Default: closed loop.")
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(help="Most requests in flight. Default 16; open loop: 1000.")
    ] = None,
    rounds: Annotated[int, typer.Option(help="Rounds per server.")] = 1,
    warmup: Annotated[int, typer.Option(help="Requests sent before, not counted.")] = 2,
    flush_cache: Annotated[
        bool, typer.Option("--flush-cache", help="Empty the server's prefix cache before each round.")
    ] = False,
    same_prompts: Annotated[
        bool, typer.Option("--same-prompts", help="The same prompts in each round, so that caches are warm.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of prompts, lengths and arrivals.")] = 0,
    api: Annotated[str, typer.Option(help="chat | completions.")] = "chat",
    stream: Annotated[bool, typer.Option(help="Stream answers; without, there are no TTFT, TPOT and ITL.")] = True,
    temperature: Annotated[float, typer.Option(help="0 = greedy.")] = 0.0,
    ignore_eos: Annotated[bool, typer.Option(help="Ask for exactly the given answer length (not for json).")] = True,
    timeout: Annotated[float, typer.Option(help="Seconds after which a request has failed.")] = 600.0,
    model: Annotated[str | None, typer.Option(help="Model name to send. Default: the first of /v1/models.")] = None,
    fit: Annotated[
        bool, typer.Option(help="Fit prompt lengths to the server's own token counts (two short requests).")
    ] = True,
    extra_body: Annotated[str | None, typer.Option(help="JSON object merged into each request body.")] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(help="File with the API key.", exists=True, dir_okay=False)
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Write everything to this JSON file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw it into this PNG file; needs the extra `bench`.")] = None,
    details: Annotated[bool, typer.Option("--details", help="With --output: one entry per request too.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Drive any OpenAI-compatible server and report latencies, throughput and cache use; with a second URL compare two.

    Exit code 0 if every request went well, 1 if some failed or the server can't be measured, 2 for wrong options.
    """
    check_files(output, plot, code=1)
    with parts():
        from .measure import Server
        from .plan import BadOption, Plan, Workload
        from .serve import serve as run
        from .server import ServerUnusable
    try:
        plan = Plan(
            workload=Workload(one_of("--workload", workload, WORKLOADS)),
            num_prompts=num_prompts,
            input_len=input_len,
            output_len=output_len,
            range_ratio=range_ratio,
            groups=groups,
            prompts_per_group=prompts_per_group,
            prefix_len=prefix_len,
            question_len=question_len,
            ordered=ordered,
            trace=trace,
            scale=scale,
            speedup=speedup,
            max_input_len=max_input_len,
            max_output_len=max_output_len,
            request_rate=request_rate,
            concurrency=concurrency,
            rounds=rounds,
            warmup=warmup,
            flush_cache=flush_cache,
            same_prompts=same_prompts,
            seed=seed,
            chat=one_of("--api", api, ("chat", "completions")) == "chat",
            stream=stream,
            temperature=temperature,
            ignore_eos=ignore_eos,
            timeout_s=timeout,
            model=model,
            fit=fit,
            extra=_json_object("--extra-body", extra_body),
        )
    except BadOption as error:
        fail(error, 2)
    headers = {"authorization": f"Bearer {api_key_file.read_text(encoding='utf-8').strip()}"} if api_key_file else {}
    servers = [Server(label, one, headers) for label, one in zip("AB", (url, url_b), strict=True) if one]
    try:
        code = run(plan, servers, output=output, picture=plot, records=details, quiet=quiet, console=Console())
    except (ServerUnusable, OSError, ValueError) as error:
        fail(error)
    raise typer.Exit(code)


@app.command()
def peer(
    name: Annotated[str, typer.Argument(help=f"{' | '.join(PEER_NAMES)}.")],
    model: Annotated[
        str, typer.Option(help="A name (smollm2), a .gguf file, or a folder; as for `phloem serve`.")
    ] = "smollm2",
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Default: vllm 8101, llamacpp 8102.")] = None,
    flags: Annotated[list[str] | None, typer.Argument(help="More flags for the peer, after --.")] = None,
) -> None:
    """Start another server to measure against, in the foreground, installing it first; Ctrl-C ends it."""
    with parts():
        from phloem_model import ModelError

        from .peers import PEERS, PeerFailed
        from .peers.run import run_peer
    chosen = PEERS[one_of("the peer", name, PEER_NAMES)]
    try:
        code = run_peer(chosen, model, port or chosen.port, tuple(flags or ()), lambda line: typer.echo(line, err=True))
    except (PeerFailed, ModelError) as error:
        fail(error)
    raise typer.Exit(code)


app.command()(overlap)
app.command()(policy)
app.command()(hardware)
app.command()(quality)


@app.command()
def radix(
    sizes: Annotated[
        str, typer.Option(help="Cached prompts, and as many waiting requests; commas between.")
    ] = "10,1000,10000,100000",
    repeat: Annotated[int, typer.Option(help="Samples of each operation.")] = 1000,
    page_size: Annotated[int, typer.Option(help="Tokens per page.")] = 16,
    seed: Annotated[int, typer.Option(help="Seed of prompts and of the order of operations.")] = 0,
    output: Annotated[Path | None, typer.Option(help="Write everything to this JSON file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw it into this PNG file; needs the extra `bench`.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Measure the scheduler's tree and queue by size, beside matching and sorting all at each pass, and whole passes without a device.

    Everything is CPU time of one thread. Exit code 0 whatever the figures are; the last table says which aims hold.
    """
    check_files(output, plot, code=1)
    with parts():
        from .radix.command import command
        from .radix.run import RadixPlan
    try:
        plan = RadixPlan(_numbers("--sizes", sizes), repeat, page_size, seed)
    except ValueError as error:
        fail(error, 2)
    try:
        command(plan, output=output, picture=plot, quiet=quiet, console=Console())
    except OSError as error:
        fail(error)


def _numbers(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        fail(f"{option} must be whole numbers with commas between", 2)


def _json_object(option: str, text: str | None) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except ValueError as error:
        fail(f"{option} is no JSON: {error}", 2)
    if not isinstance(value, dict):
        fail(f"{option} must be a JSON object", 2)
    return value
