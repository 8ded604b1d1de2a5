"""No part names one above it but in the tables that say so: what import-linter checks of imports, of texts."""

from __future__ import annotations

import ast
import os
import re
import tomllib
from importlib import import_module

import pytest
from support.paths import CHECKOUT

import opforge
from opforge.foundation import upper_parts
from opforge.remote.kind_table import KINDS

PACKAGE = os.path.dirname(os.path.abspath(opforge.__file__))
TABLES = ("opforge.foundation.upper_parts", "opforge.remote.kind_table")
"""Where parts above are registered."""
ABOVE = {
    "opforge.accelerator": ("opforge.builders",),  # an accelerator names the package of its builders, and no more
    "opforge.accelerator.entry_points": ("opforge.jits",),  # the name of a group of entry points
    "opforge.builders.cpu.": ("opforge.ops.",),  # a declaration names the Python functions and cases of its op
    "opforge.builders.triton.": ("opforge.ops.",),
    "opforge.fast_path.lookup": ("opforge.builders.declaration.kernel_roots",),  # compared with a class's module
}
"""Module or package -> what above it it may name besides, with why."""
NAMED = re.compile(r"opforge(\.[a-z_]+)+(:\w+)?")


def contract(beginning):
    """Returns a contract of imports, by the beginning of its name."""
    with open(os.path.join(CHECKOUT, "pyproject.toml"), "rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    (found,) = [each for each in contracts if each["name"].startswith(beginning)]
    return found


def ranks():
    """Returns the rank of each part: the higher, the further up. It is that of the contract `layers`."""
    layers = contract("layers")["layers"]
    return {part: -at for at, layer in enumerate(layers) for part in layer.split(" | ")}


RANKS = ranks()


def rank(module):
    """Returns the rank of a module; None if it belongs to no part, as the package itself."""
    return RANKS.get(".".join(module.split(".")[:2]))


def modules():
    """Yields (name, path) of each module of the package."""
    for folder, subfolders, files in os.walk(PACKAGE, followlinks=True):
        subfolders[:] = [name for name in subfolders if name != "__pycache__"]
        for file in files:
            if file.endswith(".py"):
                path = os.path.join(folder, file)
                name = os.path.relpath(path, PACKAGE).removesuffix(".py").removesuffix("__init__")
                yield ".".join(["opforge", *filter(None, name.split(os.sep))]), path


def named_in(tree):
    """Yields the texts in a module that are names of modules of opforge."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and NAMED.fullmatch(node.value):
            yield node.value


def test_no_module_names_a_part_above_it_but_in_a_table():
    found = []
    for module, path in modules():
        own = rank(module)
        if own is None or module in TABLES:
            continue
        allowed = [prefix for part, prefixes in ABOVE.items() if module.startswith(part) for prefix in prefixes]
        with open(path, encoding="utf-8") as file:
            code = file.read()
        # Parsing every module takes seconds.
        texts = {*named_in(ast.parse(code))} if re.search("[\"']opforge[.]", code) else set()
        found += [
            f"{module}: {text}"
            for text in sorted(texts)
            if (above := rank(text.partition(":")[0])) is not None
            and above > own
            and not text.startswith(tuple(allowed) or "-")
        ]
    assert found == [], "register it in src/opforge/foundation/upper_parts.py, and ask for it there"


@pytest.mark.parametrize("path", [*upper_parts.UPPER.values(), *(entry.path for entry in KINDS.values())])
def test_what_is_registered_is_there(path):
    module, _, name = path.partition(":")
    assert not name or hasattr(import_module(module), name)


def test_each_line_is_asked_for_by_a_part_below():
    asked = set()
    for module, path in modules():
        with open(path, encoding="utf-8") as file:
            code = file.read()
        if module not in TABLES and any(name in code for name in upper_parts.UPPER):
            texts = {node.value for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Constant)}
            asked |= {
                name
                for name, above in upper_parts.UPPER.items()
                if name in texts and rank(module) is not None and rank(module) < rank(above.partition(":")[0])
            }
    assert asked == {*upper_parts.UPPER}


MAY_USE = {"opforge.errors", "opforge.accelerator.host", "opforge.foundation.settings"}
"""What tools of their own may import. The version of opforge is a text that imports nothing."""


def test_the_contract_of_tools_of_their_own_names_everything_else():
    """It is a list: a part that is new would not be in it."""
    found, divided = contract("launch and port"), ("opforge.accelerator", "opforge.foundation")
    parts = {".".join(name.split(".")[: 3 if name.startswith(divided) else 2]) for name, _path in modules()}
    others = parts - {"opforge", "opforge.__main__", "opforge.foundation.opforge_version", *divided} - MAY_USE
    assert {*found["forbidden_modules"]} == others - {*found["source_modules"]}


def test_the_cache_knows_no_jit_and_no_dtype():
    """It gets names, paths and bytes: what they are is said by kinds, above it."""
    found = []
    for module, path in modules():
        if module.startswith("opforge.cache"):
            with open(path, encoding="utf-8") as file:
                found += [
                    f"{module}: {word}" for word in re.findall(r"(?i)triton|inductor|cubin|b?float\d+", file.read())
                ]
    assert found == []
