"""How a choice ends by what it drew. A stop string is the detokeniser's business; it comes as StopAt and beats what is found here."""

from __future__ import annotations

from collections.abc import Collection

from phloem_proto.messages import End

from .requests import Choice, Request

# Codes of a worker's row failures, in the terms of ErrorInfo.
FAILURE_CODES = {"grammar_too_slow": "grammar_too_large", "logprobs_too_large": "too_large"}


def token_end(token: int, request: Request, eos_ids: Collection[int]) -> End | None:
    """The end that this output token is: end-of-sequence (matched None) or one of the request's stop ids."""
    if token in eos_ids and not request.params.ignore_eos:
        return End("stop")
    if token in request.stop_ids:
        return End("stop", matched=token)
    return None


def failed(code: str, message: str) -> End:
    """The end of a row that the worker can't go on with."""
    return End("error", code=FAILURE_CODES.get(code, "internal"), message=message)


def held_end(choice: Choice, eos_ids: Collection[int]) -> End | None:
    """The end that lies in output a request brought with it; what is behind it is cut off."""
    request = choice.request
    for at, token in enumerate(choice.output):
        end = token_end(token, request, eos_ids)
        # A min_tokens of the request kept such ids from being drawn earlier, so one that is here ends the choice.
        if end is not None:
            del choice.output[at + 1 :]
            return end
    return None
