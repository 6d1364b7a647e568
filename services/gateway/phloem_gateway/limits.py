"""Bounds on what one request may ask for, each with its reason. Those that an operator may want to move are in `config`."""

from __future__ import annotations

MAX_STOPS = 16
"""Stop strings. The detokeniser searches for each at every step."""
MAX_STOP_CHARS = 1024
"""Characters of one stop string; that much text may be held back."""
MAX_STOP_IDS = 128
"""Stop token ids; they travel in every re-open."""
MAX_LOGIT_BIAS = 1024
"""Entries of logit_bias (OpenAI: 300); the worker keeps a row of them per request."""
MIN_REPETITION_PENALTY = 0.01
"""Logits are divided by it, so that much smaller ones would make infinities of them; a hundredfold is more than anybody wants."""
MAX_TOP_LOGPROBS = 20
"""Alternatives per token, as OpenAI. Each token of the answer carries them."""
MAX_MESSAGES = 4096
"""Messages of a chat; templates loop over them."""
MAX_PARTS = 4096
"""Content parts of one message."""
MAX_SALT_CHARS = 256
"""Characters of a cache salt or an extra key; they are part of a key in the tree."""
MAX_PRIORITY = 2**31 - 1
"""Priorities are 32-bit."""
MAX_SEED = 2**63 - 1
"""Seeds are 64-bit signed, as OpenAI."""
MAX_REQUEST_ID_CHARS = 128
"""Characters of a client's own request id; it stands in headers and log lines."""
MAX_HEAD_BYTES = 64 * 1024
"""Request line and headers of one HTTP request, or its trailers. Common servers take 8 to 64 KiB; keys and cookies fit many times over."""
MAX_PIPELINED = 64
"""Requests that a client may send ahead on one connection; each waits as an object of its own."""
MAX_DEPTH = 64
"""Nesting of a JSON body. Real schemas have less than 20; deeper ones would recurse in whoever reads them next."""
