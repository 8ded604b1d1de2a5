"""Errors of an unknown argument or function: with the name that was meant in their text, and without opforge's frames.

Python's interpreter adds such a name when it prints an error. Notebooks and IPython do not. Imported after an error.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Iterable
from typing import Any

from opforge import tracebacks


def explain_call(error: TypeError, function: Callable[..., Any]) -> None:
    """Names the argument that was probably meant. Changes nothing if the error has come from within `function`."""
    trace = error.__traceback__
    if trace is None or trace.tb_next is not None:
        return  # a line of the function has run
    unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
    if unknown and "Did you mean" not in str(error):
        error.args = (f"{error}{_nearest(unknown[1], inspect.signature(function).parameters)}",)
    tracebacks.shorten(error, always=True)


def explain_missing(error: AttributeError, name: str, offered: Iterable[str]) -> None:
    """Names the function of an op that was probably meant."""
    error.args = (f"{error}{_nearest(name, offered)}",)
    error.name, error.obj = name, None  # otherwise the interpreter would look for a similar name too, and print it
    tracebacks.shorten(error, always=True)


def _nearest(name: str, offered: Iterable[str]) -> str:
    meant = difflib.get_close_matches(name, [*offered], n=1)
    return f". Did you mean {meant[0]!r}?" if meant else ""
