"""Replaces an object in every imported module that holds it under a name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple


class Replacement(NamedTuple):
    """An object, its name in the module that defines it, and the object that replaces it."""

    name: str
    old: Any
    new: Any


class Rebound(NamedTuple):
    """A name in a module's namespace that now has another value; `old` is its former value."""

    namespace: dict[str, Any]
    name: str
    old: Any


def rebind(replacements: Iterable[Replacement], keeps: Callable[[str], bool]) -> list[Rebound]:
    """Replaces objects in all imported modules, except those for whose name `keeps` is true.

    A module that holds the object under another name gets the replacement too. If an object has several names with
    different replacements, only those names are rebound. Values in classes, closures and containers stay.

    Returns:
        What was replaced, for `restore`.
    """
    by_object: dict[int, dict[str, Any]] = {}
    for replacement in replacements:
        by_object.setdefault(id(replacement.old), {})[replacement.name] = replacement.new
    rebound = []
    for module_name, module in list(sys.modules.items()):
        if keeps(module_name):
            continue
        try:
            # Not by the module's own attribute access: that may import what the module imports lazily.
            namespace: dict[str, Any] = object.__getattribute__(module, "__dict__")
        except AttributeError:
            continue
        for name, value in list(namespace.items()):
            candidates = by_object.get(id(value))
            if candidates is None:
                continue
            if (new := _choose(name, candidates)) is not None:
                rebound.append(Rebound(namespace, name, value))
                namespace[name] = new
    return rebound


def _choose(name: str, candidates: Mapping[str, Any]) -> Any:
    """Returns the replacement for a name; None if the candidates differ and none has that name."""
    if name in candidates:
        return candidates[name]
    first = next(iter(candidates.values()))
    return first if all(new is first for new in candidates.values()) else None


def restore(rebound: Iterable[Rebound]) -> None:
    """Gives each name its former value again."""
    for namespace, name, old in rebound:
        namespace[name] = old
