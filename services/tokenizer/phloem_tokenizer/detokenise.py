"""One choice's output: token ids in, releasable text out.

Released text is a pure function of the ids, whatever the chunking: ids are taken one by one, their bytes decoded as they
complete characters. So a detokeniser is restored by pushing the ids that were already delivered and dropping the text.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass

from phloem_tokenizer.stops import StopScanner, StopSet
from phloem_tokenizer.vocab import Vocabulary


@dataclass(frozen=True, slots=True)
class Released:
    """What some more ids led to. With `stop` set, the choice ends with its first `keep` ids."""

    text: str
    stop: str | None = None
    keep: int = 0


class Detokeniser:
    """State of one choice: some bytes of an unfinished character (at most 3) and some held-back text."""

    def __init__(
        self, vocabulary: Vocabulary, stops: StopSet, *, include_stop: bool = False, skip_special_tokens: bool = True
    ) -> None:
        self._vocabulary = vocabulary
        self._scanner = StopScanner(stops, include_stop)
        self._hidden = vocabulary.special if skip_special_tokens else frozenset()
        self._partial = b""
        self.count = 0  # ids taken

    def push(self, ids: Sequence[int]) -> Released:
        """Take ids up to the one that completes a stop string. Not to be called again after a stop."""
        texts: list[str] = []
        for token in ids:
            self.count += 1
            if token in self._hidden:
                continue
            scanned = self._scanner.push(self._decode(self._vocabulary.piece(token)))
            texts.append(scanned.text)
            if scanned.stop is not None:
                return Released("".join(texts), scanned.stop, self.count)
        return Released("".join(texts))

    def skip(self, ids: Sequence[int]) -> None:
        """Take ids that are output and have no text: the tokens that ended the choice."""
        self.count += len(ids)

    def finish(self) -> Released:
        """The output ends here: an unfinished character becomes U+FFFD and nothing stays held back."""
        last = self._partial.decode("utf-8", "replace")
        self._partial = b""
        scanned = self._scanner.push(last)
        if scanned.stop is not None:
            return Released(scanned.text, scanned.stop, self.count)
        return Released(scanned.text + self._scanner.finish())

    def _decode(self, piece: bytes) -> str:
        """Text that is complete after these bytes; equals decoding the whole with errors="replace", piece by piece."""
        data = self._partial + piece
        text, used = codecs.utf_8_decode(data, "replace", False)
        self._partial = data[used:]
        return text
