"""The end of a program of checks: it runs them, and prints their errors as JSON."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Mapping, Sequence

import torch


def run_checks(checks: Mapping[str, Callable[[], object]], names: Sequence[str] = (), **more: Sequence[str]) -> None:
    """Runs these checks, or all. Prints the error of each by its name, "" if it passed, and what `more` has by then."""
    errors = {}
    for name in names or checks:
        torch.manual_seed(0)
        try:
            checks[name]()
            errors[name] = ""
        except Exception:
            errors[name] = traceback.format_exc()
    print(json.dumps({"errors": errors, **{name: sorted({*values}) for name, values in more.items()}}))
