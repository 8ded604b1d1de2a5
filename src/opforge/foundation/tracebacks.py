"""Shortens the traceback of an error where a public call ends: the caller's line is followed by the error.

A public call ends in

    except BaseException as error:
        tracebacks.shorten(error)
        raise

The plain `raise` does not add the frame that it is in. OPFORGE_FULL_TRACEBACK=1 keeps all frames.

A wrong name also gets the one that was probably meant into the error's text: Python's interpreter adds it when it
prints an error, and notebooks and IPython do not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

from opforge.errors import OpforgeError
from opforge.foundation import settings


def shorten(error: BaseException, always: bool = False) -> None:
    """Removes the frames of opforge and of Python's library from an error of opforge's, or from an interrupt.

    The frames of other code that opforge has called stay: that of a builder, of a package. The errors that led to this
    one are shortened too; one without such a frame is the `__context__`, and is not printed. Other exceptions are left
    as they are, unless `always`: somebody has to find their cause.
    """
    if not (always or isinstance(error, (OpforgeError, KeyboardInterrupt))) or settings.full_traceback():
        return
    pending: list[BaseException | None] = [error]
    seen = set[int]()
    while pending:
        current = pending.pop()
        trace = current.__traceback__ if current else None
        if current is None or id(current) in seen or (trace and not _is_internal(trace)):
            continue  # the last: the caller's own exception, which it handles while it calls opforge
        seen.add(id(current))
        current.__traceback__ = _other_frames(trace)
        pending += [current.__cause__, current.__context__]
        if current.__cause__ and not _shows(current.__cause__):
            current.__context__, current.__cause__ = current.__cause__, None  # is kept, and not printed
        if current.__context__ and not _shows(current.__context__):
            current.__suppress_context__ = True


def _shows(context: BaseException) -> bool:
    """Returns whether an exception has a frame that is neither opforge's nor of Python's library."""
    return _other_frames(context.__traceback__) is not None


def _other_frames(trace: TracebackType | None) -> TracebackType | None:
    """Returns the entries of a traceback that are neither opforge's nor of Python's library."""
    entries = []
    while trace:
        if not _is_internal(trace):
            entries.append(trace)
        trace = trace.tb_next
    rest: TracebackType | None = None
    for entry in reversed(entries):
        rest = TracebackType(rest, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return rest


def _is_internal(trace: TracebackType) -> bool:
    """Returns whether the first entry is a frame of opforge or of Python's library."""
    package = str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
    return package == "opforge" or (package in sys.stdlib_module_names and package != "__main__")


def explain_call(
    error: Exception, function: Callable[..., Any], arguments: Sequence[object], named: Mapping[str, object]
) -> None:
    """Names the argument that was probably meant, if `function` has none of such a name.

    Those that it does not have may have been found out within. Raises SettingError for an argument that does not fit
    its annotation. Changes nothing if another error has come from within `function`.
    """
    if isinstance(error, OpforgeError):
        return
    import inspect

    from .arguments import wrong

    if problem := wrong(function, arguments, named):
        raise problem from None
    parameters, trace = inspect.signature(function).parameters, error.__traceback__
    unknown = next((name for name in named if name not in parameters), "")
    text = f"{function.__name__}() got an unexpected keyword argument {unknown!r}"
    if (trace is None or trace.tb_next is not None) and not str(error).startswith(text):
        return  # a line of the function has run
    has_advice = str(error).startswith(f"{text}. Write ")
    if unknown and not has_advice:  # what is missing then is what was meant, and Python may name only that
        error.args = (f"{text}{_nearest(unknown, parameters)}",)
    shorten(error, always=True)


def explain_missing(error: AttributeError, name: str, offered: Iterable[str]) -> None:
    """Names the function of an op that was probably meant."""
    error.args = (f"{error}{_nearest(name, offered)}",)
    error.name, error.obj = name, None  # otherwise the interpreter would look for a similar name too, and print it
    shorten(error, always=True)


def _nearest(name: str, offered: Iterable[str]) -> str:
    import difflib

    meant = difflib.get_close_matches(name, [*offered], n=1)
    return f". Did you mean {meant[0]!r}?" if meant else ""
