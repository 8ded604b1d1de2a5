"""The public names that an editor and the reference show, with their docstrings and signatures."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from pathlib import Path
from types import FunctionType

import pytest

import opforge

REFERENCE = Path(__file__).resolve().parents[3] / "docs" / "reference"
OPEN_ENDED = {"init_distributed", "pin_empty", "reference"}
"""Methods with open signatures on purpose: torch.distributed's arguments, a shape as torch.empty takes it, an op's."""


def public_modules() -> list[str]:
    """Returns the modules that the reference documents."""
    pages = [page.read_text() for page in sorted(REFERENCE.glob("*.md"))]
    return [name for page in pages for name in re.findall(r"^<!-- site: module (\S+) -->$", page, re.MULTILINE)]


def names_of(module):
    """Returns the public names of a module."""
    return module.__all__


def public_callables():
    """Yields every public function, class and method, with its full name."""
    for module_name in public_modules():
        module = importlib.import_module(module_name)
        for name in names_of(module):
            value = getattr(module, name)
            if callable(value):
                yield f"{module_name}.{name}", value
            if inspect.isclass(value):
                for member in dir(value):
                    attribute = inspect.getattr_static(value, member)
                    is_ours = inspect.isfunction(attribute) and attribute.__module__.startswith("opforge")
                    if is_ours and not member.startswith(("_", "test_")):  # the name of a test states what it tests
                        yield f"{module_name}.{name}.{member}", attribute


def test_every_module_of_the_reference_has_public_names():
    assert {"opforge", "opforge.accelerator", "opforge.errors", "opforge.ops"} <= set(public_modules())
    assert all(names_of(importlib.import_module(name)) for name in public_modules())


def test_every_public_name_has_a_docstring():
    callables = dict(public_callables())
    assert len(callables) > 100
    assert [name for name, value in callables.items() if not inspect.getdoc(value)] == []


def undocumented_methods(module):
    """Returns the public methods of a module's public classes without a docstring of their own or of a base."""
    names = []
    for kind in vars(module).values():
        if not inspect.isclass(kind) or kind.__module__ != module.__name__ or kind.__name__.startswith("_"):
            continue
        for name, attribute in vars(kind).items():
            is_method = isinstance(attribute, (FunctionType, property, classmethod, staticmethod))
            documented = any(getattr(vars(base).get(name), "__doc__", None) for base in kind.__mro__)
            if is_method and not name.startswith(("_", "test_")) and not documented:
                names.append(f"{module.__name__}.{kind.__qualname__}.{name}")
    return names


@pytest.mark.test_all("imports each module")
def test_every_public_method_or_a_method_that_it_overrides_has_a_docstring():
    paths = (module.name for module in pkgutil.walk_packages(opforge.__path__, "opforge."))
    # Kernels are compiled by Triton. __main__ would run the command line.
    paths = [path for path in paths if ".kernels." not in path and not path.endswith("__main__")]
    assert len(paths) > 100
    assert [name for path in paths for name in undocumented_methods(importlib.import_module(path))] == []


def test_every_public_function_names_its_arguments():
    open_kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    assert [
        name
        for name, value in public_callables()
        if name.rpartition(".")[2] not in OPEN_ENDED
        and not name.endswith("Error")
        and any(parameter.kind in open_kinds for parameter in inspect.signature(value).parameters.values())
    ] == []


def test_dir_lists_the_public_names_and_no_others():
    names = {name for name in dir(opforge) if not name.startswith("__")}
    assert names == {*opforge.__all__, "accelerator", "builders", "errors", "ops"}


@pytest.mark.parametrize("name", ["accelerator", "builders", "errors", "ops"])
def test_a_public_module_needs_no_import_of_its_own(name):
    assert getattr(opforge, name).__name__ == f"opforge.{name}"
