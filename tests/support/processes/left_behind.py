"""What a test must not leave in the process for the tests after it: variables, the working folder, torch's settings.

A test that leaves one fails itself, whatever runs next to it: otherwise a later test would fail, in some orders alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

OWN = "PYTEST_CURRENT_TEST"
"""The variable that pytest itself changes."""
READ_HERE = ("OPFORGE_", "XDG_", "LD_", "PYTHON", "CXX")
"""How new variables begin that are a failure: other libraries set some of their own when they are imported."""
VARIABLE, FOLDER = "the variable ", "the working folder"
NEW = tuple(VARIABLE + start for start in READ_HERE)


def settings() -> dict[str, Any]:
    """Returns the variables, the working folder and torch's settings of this process, each by its name."""
    values: dict[str, Any] = {VARIABLE + name: value for name, value in os.environ.items() if name != OWN}
    try:
        values[FOLDER] = os.getcwd()
    except OSError:  # somebody has removed it
        values[FOLDER] = None
    return values | {name: get() for name, (get, _put) in _of_torch().items()}


def _of_torch() -> Mapping[str, tuple[Callable[[], Any], Callable[[Any], Any]]]:
    """Returns how torch's settings are read and set, if it is imported."""
    torch: Any = sys.modules.get("torch")
    if not hasattr(torch, "set_default_dtype"):  # it is not there, or a stand-in of a test
        return {}
    return {
        "the number of torch's threads": (torch.get_num_threads, torch.set_num_threads),
        "the default dtype of torch": (torch.get_default_dtype, torch.set_default_dtype),
        "torch.is_grad_enabled()": (torch.is_grad_enabled, torch.set_grad_enabled),
        "torch.are_deterministic_algorithms_enabled()": (
            torch.are_deterministic_algorithms_enabled,
            torch.use_deterministic_algorithms,
        ),
    }


def changes(before: Mapping[str, Any]) -> list[str]:
    """Returns what is another than before, and puts it back."""
    now = settings()
    removed = {name: None for name in before if name.startswith(VARIABLE) and name not in now}
    found = []
    for name, new in {**now, **removed}.items():
        old = before.get(name)
        if old == new or (name not in before and not name.startswith(NEW)):
            continue
        found.append(f"{name} is {new!r}, it was {old!r}")
        _put_back(name, old)
    return found


def _put_back(name: str, value: Any) -> None:
    if name == FOLDER:
        os.chdir(value or "/")
    elif not name.startswith(VARIABLE):
        _of_torch()[name][1](value)
    elif value is None:
        os.environ.pop(name.removeprefix(VARIABLE), None)
    else:
        os.environ[name.removeprefix(VARIABLE)] = value
