"""Puts one object in another's place in every module that was imported already and holds it under a name of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple


class Replacement(NamedTuple):
    """The object that stands under `name` where it comes from, and what is to stand there."""

    name: str
    old: Any
    new: Any


class Rebound(NamedTuple):
    """One name that was given another value; `old` is what it had."""

    names: dict[str, Any]
    name: str
    old: Any


def rebind(replacements: Iterable[Replacement], keeps: Callable[[str], bool]) -> list[Rebound]:
    """Replace in all imported modules but those whose name `keeps` is true of; gives what `restore` takes.

    A module that calls the object something else has it replaced too, unless the object stands under several names
    with different replacements: then the name decides. Values in classes, closures and containers stay.
    """
    wanted: dict[int, dict[str, Any]] = {}
    for one in replacements:
        wanted.setdefault(id(one.old), {})[one.name] = one.new
    done = []
    for module_name, module in list(sys.modules.items()):
        if keeps(module_name):
            continue
        try:
            # Past the module's own attribute access, which may import what it was told to import late.
            names: dict[str, Any] = object.__getattribute__(module, "__dict__")
        except AttributeError:
            continue
        for name, value in list(names.items()):
            choices = wanted.get(id(value))
            if choices is None:
                continue
            new = _choose(name, choices)
            if new is not None:
                done.append(Rebound(names, name, value))
                names[name] = new
    return done


def _choose(name: str, choices: Mapping[str, Any]) -> Any:
    if name in choices:
        return choices[name]
    first = next(iter(choices.values()))
    return first if all(new is first for new in choices.values()) else None


def restore(done: Iterable[Rebound]) -> None:
    """Give each name its old value again."""
    for names, name, old in done:
        names[name] = old
