"""Libraries that register ops with torch without a TORCH_LIBRARY block. Imported for a second version of an op."""

from __future__ import annotations

from opforge.errors import LoadError


def refuse(op: str, path: str) -> None:
    """Raises LoadError if a library registers ops as soon as it is opened: a process can hold one version of it."""
    with open(path, "rb") as file:
        registers = b"N3c1017RegisterOperators" in file.read()
    if registers:
        problem = "it registers ops with torch::RegisterOperators, and another version of it is in this process"
        raise LoadError(op, path, problem, "Restart the process, or register them with TORCH_LIBRARY")
