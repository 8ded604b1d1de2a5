"""Which field of a record is wrong, in words. `entry.is_record` answers the same question faster, with yes or no."""

from __future__ import annotations

import os
from typing import Any

from opforge.warm.library import READ_FORMATS, TEXTS

from .entry import RECORD_KEY, is_intact, with_record_key

MAX_SHOWN = 100


def record_problem(record: Any) -> str:
    """Returns what is wrong with a record, and "" if its fields are those that it was written with."""
    if not isinstance(record, dict):
        return f"its record is {ascii(record)[:MAX_SHOWN]}, expected an object"
    try:
        problem = _problem(record)
    except KeyError as error:
        return f"its record has no {error}"
    if not problem and not is_intact(record):
        own = with_record_key(record)[RECORD_KEY]
        problem = f"{_is(record, RECORD_KEY)}, expected {own}: a field was changed after it was written"
    return problem


def _problem(record: dict[str, Any]) -> str:
    if record["format"] not in READ_FORMATS:
        return f"{_is(record, 'format')}, expected one of {', '.join(map(str, READ_FORMATS))}"
    for name in TEXTS:
        if not isinstance(record[name], str):
            return f"{_is(record, name)}, expected a text"
    if os.path.basename(record["file"]) != record["file"] or record["file"] in ("", ".", ".."):
        return f"{_is(record, 'file')}, expected the name of a file in its folder"
    if not isinstance(record["size"], int):
        return f"{_is(record, 'size')}, expected a number of bytes"
    if not isinstance(record["python_module"], bool):
        return f"{_is(record, 'python_module')}, expected true or false"
    for name in ("exports", "needs"):
        if not isinstance(record[name], list) or not all(isinstance(text, str) for text in record[name]):
            return f"{_is(record, name)}, expected a list of texts"
    return ""


def _is(record: dict[str, Any], name: str) -> str:
    return f"{name!r} of its record is {ascii(record.get(name))[:MAX_SHOWN]}"
