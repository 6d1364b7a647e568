"""What the tokenizer service does, without a bus: calls in, replies out. Streams of output are in `streams`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

from phloem_model import ModelFiles
from phloem_proto.codec import pack_ids, unpack_ids
from phloem_proto.messages import Detokenize, Detokenized, Encode, Encoded, Profile
from phloem_tokenizer.encoder import Encoder
from phloem_tokenizer.errors import Refused
from phloem_tokenizer.templates import ChatTemplate
from phloem_tokenizer.vocab import load_vocabulary


class TokenizerCore:
    """One model's tokenizer and chat template. Every method may run in several threads at once, and may block for as
    long as encoding the text takes."""

    def __init__(self, files: ModelFiles, served_name: str) -> None:
        """Loads the tokenizer (about a second). Raises ModelBroken or TokenizerUnsupported."""
        self._encoder = Encoder(files.tokenizer_json, files.bos)
        self._template = ChatTemplate(files.chat_template, files.bos_token, files.eos_token)
        self.vocabulary = load_vocabulary(files.tokenizer_json)
        self.eos_ids = files.eos_ids
        self.profile = Profile(
            model=served_name,
            model_digest=files.model_digest,
            tokenizer_digest=files.tokenizer_digest,
            context_length=files.context_length,
            vocab_size=files.vocab_size,
        )

    def encode(self, request: Encode, now: datetime, give_up: Callable[[], bool] = lambda: False) -> Encoded:
        """Token ids of prompts or of a chat. `now` is what a template may show; `give_up` is asked while one runs."""
        try:
            return Encoded(tuple(pack_ids(ids) for ids in self._encode(request, now, give_up)))
        except Refused as refusal:
            return Encoded(error=refusal.info)

    def _encode(self, request: Encode, now: datetime, give_up: Callable[[], bool]) -> list[list[int]]:
        if give_up():
            raise Refused("deadline", "the deadline passed before the prompt was encoded")
        if bool(request.texts) == bool(request.messages):
            raise Refused("invalid_request", "exactly one of texts and messages must be given", "messages")
        param = "texts"
        if request.texts:
            ids = self._encoder.encode(request.texts, request.add_special_tokens)
        else:
            param = "messages"
            prompt = self._template.render(
                request.messages,
                now=now,
                tools=request.tools,
                template_kwargs=request.template_kwargs,
                give_up=give_up,
            )
            # The template writes BOS itself where the model wants one.
            ids = self._encoder.encode([prompt], add_special_tokens=False)
        if request.max_tokens:
            _check_length(ids, request.max_tokens, param)
        return ids

    def detokenize(self, request: Detokenize) -> Detokenized:
        """Texts, and the bytes of each token if asked for. An id outside the vocabulary is refused."""
        try:
            rows = [self._known(unpack_ids(packed)) for packed in request.ids]
        except Refused as refusal:
            return Detokenized(error=refusal.info)
        except ValueError:
            return Detokenized(error=Refused("invalid_request", "ids are not 32-bit numbers", "ids").info)
        texts = tuple(self.vocabulary.text(row, request.skip_special_tokens) for row in rows)
        pieces = tuple(tuple(map(self.vocabulary.piece, row)) for row in rows) if request.pieces else ()
        return Detokenized(texts, pieces)

    def _known(self, ids: Iterable[int]) -> list[int]:
        row = list(ids)
        if row and max(row) >= len(self.vocabulary):
            raise Refused("invalid_request", f"token id {max(row)} is not below {len(self.vocabulary)}", "ids")
        return row


def _check_length(rows: Iterable[list[int]], limit: int, param: str) -> None:
    longest = max(map(len, rows))
    if longest > limit:
        raise Refused("prompt_too_long", f"the prompt has {longest} tokens, and at most {limit} fit", param)
