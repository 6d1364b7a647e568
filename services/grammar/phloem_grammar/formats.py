"""What a ``format`` must also match, where llguidance allows more than an independent validator does.

Measured against jsonschema-rs with random strings drawn from llguidance's own masks: 29 February in years without one, a leap second at
any time of day, and e-mail addresses whose local part is longer than RFC 5321 allows.
"""

from __future__ import annotations

_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][48]|[13579][26]|[2468]0)00)"
_DATE = (
    f"(?:{_LEAP_YEAR}-02-29"
    "|[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8])))"
)
_TIME = "[0-9]{2}:[0-9]{2}:[0-5][0-9](?:[^0-9].*)?"

NARROWER = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}[Tt]{_TIME}$",
    "email": "^.{1,64}@[^@]{1,255}$",
}
"""Format to a pattern (anchored) that its strings must match as well."""
