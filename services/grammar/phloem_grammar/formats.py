"""Patterns in place of the ``format``s that llguidance reads in a wider sense than an independent validator does.

Measured against jsonschema-rs with random strings drawn from llguidance's own masks: it allows 29 February in years without one, a leap
second at any time of day, e-mail addresses whose local part is longer than RFC 5321 allows, and labels such as ``ab--c``. The patterns here
allow somewhat less than the standards do (no lower-case ``t`` and ``z``, at most 62 characters before the ``@``, labels up to 32 characters),
which costs a generator little.
"""

from __future__ import annotations

_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][48]|[13579][26]|[2468]0)00)"
_DATE = (
    f"(?:{_LEAP_YEAR}-02-29"
    "|[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8])))"
)
_HOUR_MINUTE = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_HOUR_MINUTE}:[0-5][0-9](?:\.[0-9]{{1,9}})?(?:Z|[+-]{_HOUR_MINUTE})"
_ATOM = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,20}"
_LABEL = "[A-Za-z0-9]{1,10}(?:-[A-Za-z0-9]{1,10}){0,2}"

PATTERNS = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}T{_TIME}$",
    "hostname": rf"^{_LABEL}(?:\.{_LABEL}){{0,4}}$",
    "email": rf"^{_ATOM}(?:\.{_ATOM}){{0,2}}@{_LABEL}(?:\.{_LABEL}){{1,4}}$",
}
"""Format to the anchored pattern that stands for it."""
