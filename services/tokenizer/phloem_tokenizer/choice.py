"""One choice of a live request: takes its token frames in order and says what text may go out."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from phloem_proto.codec import pack_ids, unpack_ids
from phloem_proto.messages import End, TextFrame, TokenFrame, TokenLogprob
from phloem_tokenizer.detokenise import Detokeniser, Released
from phloem_tokenizer.stops import StopSet
from phloem_tokenizer.vocab import Vocabulary


class Choice:
    """`count` ids have been taken; after the end nothing more is."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        eos_ids: frozenset[int],
        stops: StopSet,
        *,
        include_stop: bool,
        skip_special_tokens: bool,
        logprobs: bool,
    ) -> None:
        self._vocabulary = vocabulary
        self._eos_ids = eos_ids
        self._include_stop = include_stop
        self._logprobs = logprobs
        self._detokeniser = Detokeniser(
            vocabulary, stops, include_stop=include_stop, skip_special_tokens=skip_special_tokens
        )
        self.ended = False
        self.restored_stop: str | None = None

    @property
    def count(self) -> int:
        return self._detokeniser.count

    def restore(self, ids: Sequence[int], ended: bool) -> None:
        """Take ids whose text was delivered already."""
        self.restored_stop = self._detokeniser.push(ids).stop
        self.ended = ended

    def take(self, frame: TokenFrame) -> tuple[TextFrame, int | None]:
        """The text frame for a token frame that starts at or before `count`, and with how many ids a stop string ends
        the choice (None: none does).

        A stop string in the frame's ids beats the frame's own end, which is at or after it.
        """
        offset = self.count
        known = offset - frame.offset
        ids = unpack_ids(frame.ids)[known:].tolist()
        logprobs = frame.logprobs[known:]
        released, end = self._advance(ids, frame.end)
        keep: int | None = None
        if released.stop is not None:
            keep = released.keep
            end = End("stop", released.stop)
            ids = ids[: keep - offset]
            logprobs = logprobs[: keep - offset]
        self.ended = end is not None
        text = TextFrame(
            frame.rid,
            frame.attempt,
            frame.child,
            offset,
            pack_ids(ids),
            released.text,
            end,
            self._with_pieces(logprobs),
            self._with_pieces(frame.prompt_logprobs),
            frame.cached_tokens,
        )
        return text, keep

    def _advance(self, ids: list[int], end: End | None) -> tuple[Released, End | None]:
        silent = 1 if end is not None and ids and self._is_silent(ids[-1], end) else 0
        spoken = ids[: len(ids) - silent]
        released = self._detokeniser.push(spoken)
        if released.stop is not None or end is None:
            return released, end
        self._detokeniser.skip(ids[len(spoken) :])
        last = self._detokeniser.finish()
        return Released(released.text + last.text, last.stop, last.keep), end

    def _is_silent(self, token: int, end: End) -> bool:
        """Whether the last token is what ended the choice, and so not part of its text."""
        if end.reason != "stop" or self._include_stop:
            return False
        return token == end.matched if isinstance(end.matched, int) else token in self._eos_ids

    def _with_pieces(self, logprobs: tuple[TokenLogprob, ...]) -> tuple[TokenLogprob, ...]:
        if not self._logprobs:
            return logprobs
        piece = self._vocabulary.piece
        return tuple(
            msgspec.structs.replace(
                entry,
                piece=piece(entry.id),
                top=tuple(msgspec.structs.replace(other, piece=piece(other.id)) for other in entry.top),
            )
            for entry in logprobs
        )
