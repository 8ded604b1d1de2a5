"""The versions of torch that an op works with, as its author states them: ">=2.11,<2.14"."""

from __future__ import annotations

import re

from opforge.errors import BuilderError
from opforge.foundation.versions import version_of

from . import machine

LIMIT = re.compile(r"\s*(>=|<)\s*(\d+(?:\.\d+)*)\s*")


def checked(builder: str, text: object) -> str:
    """Returns the range without spaces. Raises BuilderError for anything but limits with ">=" and "<"."""
    limits = [LIMIT.fullmatch(part) for part in text.split(",")] if isinstance(text, str) else [None]
    if all(limits):
        return ",".join(f"{limit[1]}{limit[2]}" for limit in limits if limit)
    expected = 'Expected a lower limit, an upper limit, or both, such as ">=2.11,<2.14"'
    raise BuilderError(builder, f"requires_torch={text!r}", expected)


def problem(text: str, here: str | None) -> str | None:
    """Returns why the torch of version `here` is not in the range, or None. None if torch is not installed.

    What cannot be read, as in a record of another opforge, is not met.
    """
    limits = map(LIMIT.fullmatch, text.split(",")) if here else ()
    is_met = all(limit and _is_met(limit[1], limit[2], here or "") for limit in limits)
    return None if is_met else f"it needs torch {text}, and torch {here} is installed"


def installed_problem(text: str) -> str | None:
    """Returns why the installed torch is not in the range, or None."""
    folder = machine.torch_folder()
    return problem(text, machine.torch_version(folder)) if folder else None


def _is_met(relation: str, limit: str, here: str) -> bool:
    number = version_of(limit)
    while number and not number[-1]:
        number = number[:-1]  # 2.14.0 is 2.14
    return (version_of(here) >= number) is (relation == ">=")
