"""Work that is over when one of the processes it needs ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import anyio
from anyio.abc import Process

from .processes import ProcessFailed, failure

T = TypeVar("T")


async def unless_one_ends(processes: Mapping[str, Process], folder: Path, work: Callable[[], Awaitable[T]]) -> T:
    """The result of ``work``; if one of the processes ends meanwhile, its log instead (`ProcessFailed`)."""
    result: list[T] = []
    failures: list[Exception] = []

    async def watch(name: str, process: Process) -> None:
        await process.wait()
        failures.append(failure(name, process, folder))
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        for name, process in processes.items():
            tasks.start_soon(watch, name, process)
        try:
            result.append(await work())
        except Exception as error:  # kept out of the group, which would wrap it
            failures.append(error)
        tasks.cancel_scope.cancel()
    if result:
        return result[0]
    raise _plain(failures)


def _plain(failures: Sequence[Exception]) -> Exception:
    """What to show: the process that ended, if one did, else the first error inside the groups that wrap it."""
    error = next((one for one in failures if isinstance(one, ProcessFailed)), failures[0])
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
