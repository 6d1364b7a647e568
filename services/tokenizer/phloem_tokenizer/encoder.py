"""Text to token ids."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from phloem_model.errors import ModelBroken


class Encoder:
    """A loaded tokenizer.json. Calls block for up to seconds on megabytes: run them in a thread.

    Always `encode_batch`, which releases the GIL; `encode` holds it.
    """

    def __init__(self, tokenizer_json: Path, bos: int | None) -> None:
        """Raises ModelBroken if the library can't read the file."""
        try:
            self._tokenizer = Tokenizer.from_file(str(tokenizer_json))
        except Exception as error:  # the library raises bare Exception
            raise ModelBroken(tokenizer_json, f"is not a tokenizer ({error})") from error
        self._tokenizer.no_truncation()  # a prompt that is too long is refused, never cut
        self._tokenizer.no_padding()
        self._bos = bos

    def encode(self, texts: Sequence[str], add_special_tokens: bool) -> list[list[int]]:
        """Ids for each text. With `add_special_tokens` what the model wants around a text is added, but never a second
        BOS to a text that brings its own."""
        found = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        ids: list[list[int]] = [encoding.ids for encoding in found]
        if not add_special_tokens or self._bos is None:
            return ids
        return [one[1:] if one[:2] == [self._bos, self._bos] else one for one in ids]
