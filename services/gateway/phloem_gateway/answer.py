"""What one client is owed: the output of one or several requests, as it comes, until their ends or its own."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

import anyio

from phloem_proto.messages import End, ErrorInfo, TextFrame

from .errors import ApiError, from_info
from .live import Live
from .request import Generation

if TYPE_CHECKING:
    from .gateway import Gateway

GRACE_S = 1.0
"""After the deadline a client has this long to take its error; then it is cut."""


class Answer:
    """Use as ``async with``; then `start`, then `take` until `finished`. Leaving the block cancels what has not ended.

    A client that leaves more than its byte budget unread is cut: `scope` is cancelled, so what writes to it must run inside.

    Args:
        owner, request_id: whose call it is, for aborts and logs.
        deadline: clock time.
        logged_as: the id under which log lines speak of it.
    """

    def __init__(
        self,
        gateway: Gateway,
        generations: tuple[Generation, ...],
        owner: str,
        request_id: str,
        deadline: float,
        logged_as: str,
    ) -> None:
        self._gateway = gateway
        self.generations = generations
        self.owner = owner
        self.request_id = request_id
        self.logged_as = logged_as
        self.arrival = anyio.current_time()
        self.deadline = deadline
        self.scope = anyio.CancelScope(deadline=deadline + GRACE_S)
        self.lives: list[Live] = []
        """In order of ``generations``, once started."""
        self.aborted = False
        self.cut = False
        self._changed = anyio.Event()

    async def __aenter__(self) -> Answer:
        self._gateway.register(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._gateway.close(self)

    async def start(self) -> None:
        """Admit, tokenise and open everything.

        Raises:
            ApiError: refused, or not possible in time; nothing is left behind.
        """
        with anyio.move_on_at(self.deadline) as limit:
            await self._gateway.start(self)
        if limit.cancelled_caught:
            raise deadline_exceeded()
        self.check_aborted()

    def check_aborted(self) -> None:
        """Raises `ApiError` if the call was aborted before it was opened."""
        if self.aborted and not self.lives:
            raise aborted()

    def wake(self) -> None:
        """Something is there to be taken."""
        self._changed.set()

    def cut_off(self) -> None:
        """Give up a client that does not read."""
        self.cut = True
        self.scope.cancel()

    @property
    def finished(self) -> bool:
        """Every choice has ended and everything has been taken."""
        return all(live.ended and not live.pending for live in self.lives)

    async def take(self, timeout_s: float | None = None) -> list[tuple[int, TextFrame]]:
        """Wait for output: (index of the generation, frame) pairs in order. Empty after ``timeout_s`` seconds of silence.

        At the deadline every choice that goes on ends with an error.
        """
        taken = self._taken()
        while not taken and not self.finished:
            wait_until = self.deadline if timeout_s is None else min(self.deadline, anyio.current_time() + timeout_s)
            self._changed = anyio.Event()
            with anyio.move_on_at(wait_until) as limit:
                await self._changed.wait()
            if anyio.current_time() >= self.deadline:
                self._gateway.expire(self)
            elif limit.cancelled_caught:
                return []
            taken = self._taken()
        return taken

    def _taken(self) -> list[tuple[int, TextFrame]]:
        return [(index, frame) for index, live in enumerate(self.lives) for frame in live.take()]


def aborted() -> ApiError:
    """The call was aborted before all of it was opened."""
    return ApiError("aborted", "The request was aborted.")


def deadline_exceeded() -> ApiError:
    """The deadline passed."""
    return ApiError("deadline_exceeded", "The request did not finish before its deadline.")


def failure(end: End, generation: Generation) -> ApiError | None:
    """The error that an end stands for; None for a proper end."""
    if end.reason in ("stop", "length"):
        return None
    code = end.code or ("aborted" if end.reason == "abort" else "internal")
    return from_info(ErrorInfo(code, end.message or "The request was aborted."), generation.params)
