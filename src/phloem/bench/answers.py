"""Judge the answers of a ``json`` workload with a validator that no grammar engine had a part in."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import jsonschema_rs

from .record import Failure, Record
from .workload import Item


def validate(items: Iterable[Item], records: Iterable[Record]) -> None:
    """Mark records whose answer is cut off, is no JSON, or breaks its item's schema. Items without a schema are left alone."""
    validators: dict[int, Any] = {}
    for item, record in zip(items, records, strict=True):
        if item.schema is None or not record.ok:
            continue
        validator = validators.get(item.group)
        if validator is None:
            validator = validators[item.group] = jsonschema_rs.validator_for(item.schema)
        _judge(validator, record)


def _judge(validator: Any, record: Record) -> None:
    if record.finish_reason == "length":
        record.fail(Failure.TRUNCATED, f"no end after {record.output_tokens} tokens")
        return
    try:
        problem = next(validator.iter_errors(json.loads(record.text)), None)
    except ValueError as error:
        record.fail(Failure.INVALID_JSON, str(error))
        return
    if problem is not None:
        record.fail(Failure.INVALID_JSON, problem.message)
