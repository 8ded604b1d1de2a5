"""The errors of TORCH_LIBRARY blocks: torch itself compares their functions with the schemas."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from opforge.errors import KernelSchemaError, LoadError

from .places import path

MISMATCH = re.compile(
    r"expected schema: (?P<schema>.*)\n\s*registered at .*\n\s*"
    r"inferred schema: (?P<inferred>.*)\n\s*registered at (?P<place>\S+).*\n\s*reason: (?P<reason>.*?)\.*\s*$"
)


def error(op: str, library: str, problem: str, roots: Iterable[Any]) -> LoadError:
    """Returns the error for what torch says when it refuses a block. `roots` are where the sources are."""
    if match := MISMATCH.search(problem):
        types = f"the function's types are {match['inferred']}. torch says: {match['reason']}"
        return KernelSchemaError(
            op, library, [f"({path(match['place'], roots)}) for {match['schema']}:\n      {types}"]
        )
    advice = "Correct that block"
    if "already" in problem or "multiple times" in problem or "Only a single" in problem:
        advice = "If another library in this process defines the same ops, use one of the two, or another namespace"
    elif "Explicitly provided namespace" in problem:
        advice = "Write the names in the block without its namespace: a second version of an op gets one of its own"
    return LoadError(op, library, problem.strip(), advice)
