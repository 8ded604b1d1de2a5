"""What an editor and the reference show: the public modules' names, their docstrings, their signatures."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest

import opforge

MAKEFILE = Path(__file__).resolve().parents[3] / "Makefile"
OPEN_ENDED = {"init_distributed", "pin_empty"}
"""The methods that take any arguments on purpose: torch.distributed's own, and a shape as torch.empty takes it."""


def public_modules() -> list[str]:
    """The modules that `make docs` shows."""
    (listed,) = re.findall(r"^PUBLIC := ((?:.*\\\n)*.*)$", MAKEFILE.read_text(), re.MULTILINE)
    return listed.replace("\\\n", " ").split()


def names_of(module):
    """The public names of a module: those that it lists; in `opforge.errors` every class."""
    listed = getattr(module, "__all__", None)
    return listed or [name for name, value in vars(module).items() if inspect.isclass(value) and name.endswith("Error")]


def public_callables():
    """Every public function, class and method, with the name to show for it."""
    for module_name in public_modules():
        module = importlib.import_module(module_name)
        for name in names_of(module):
            value = getattr(module, name)
            if callable(value):
                yield f"{module_name}.{name}", value
            if inspect.isclass(value):
                for member in dir(value):
                    found = inspect.getattr_static(value, member)
                    own = inspect.isfunction(found) and found.__module__.startswith("opforge")
                    if own and not member.startswith("_"):
                        yield f"{module_name}.{name}.{member}", found


def test_the_reference_has_modules_with_names():
    assert {"opforge", "opforge.accelerator", "opforge.errors", "opforge.ops"} <= set(public_modules())
    assert all(names_of(importlib.import_module(name)) for name in public_modules())


def test_every_public_name_has_a_docstring():
    found = dict(public_callables())
    assert len(found) > 100
    assert [name for name, value in found.items() if not inspect.getdoc(value)] == []


def test_an_editor_sees_the_arguments_of_every_public_function():
    wild = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    assert [
        name
        for name, value in public_callables()
        if name.rpartition(".")[2] not in OPEN_ENDED
        and not name.endswith("Error")
        and any(one.kind in wild for one in inspect.signature(value).parameters.values())
    ] == []


def test_dir_shows_what_is_public_and_nothing_else():
    shown = {name for name in dir(opforge) if not name.startswith("__")}
    assert shown == {*opforge.__all__, "accelerator", "builders", "errors", "ops"}


@pytest.mark.parametrize("name", ["accelerator", "builders", "errors", "ops"])
def test_a_part_is_reached_without_an_import_of_its_own(name):
    assert getattr(opforge, name).__name__ == f"opforge.{name}"
