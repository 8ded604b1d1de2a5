"""What a user's tools see of `opforge.load`, `load_inline` and a builder: every keyword, without a stub file."""

from __future__ import annotations

import inspect
import pydoc

import jedi
import pytest
from mypy import api

import opforge
from opforge import OpBuilder

FUNCTIONS = pytest.mark.parametrize("name", ["load", "load_inline"])
OTHERS = {"devices", "folder", "kernel_roots", "name", "python_functions", "sources", "toolchain", "trace", "version"}
OTHERS |= {"tunable", "tuning"}
"""What `load` reads off the sources, what belongs to a package of ops or to `opforge tune`, and what a load leaves."""
DECLARED = {name for name in vars(OpBuilder) if name in OpBuilder.__annotations__ and name[0] != "_"} - OTHERS


def keywords(name):
    return set(inspect.signature(getattr(opforge, name)).parameters)


@FUNCTIONS
def test_a_function_takes_every_attribute_of_a_builder_by_keyword(name):
    assert {"abi", "extra_compile_args", "requires_torch"} <= DECLARED
    groups = {"groups"} if name == "load_inline" else set()  # they have files of their own
    assert DECLARED - groups <= keywords(name)


@FUNCTIONS
def test_help_lists_every_keyword(name):
    text = pydoc.render_doc(getattr(opforge, name))
    assert {keyword for keyword in keywords(name) if keyword not in text} == set()


@FUNCTIONS
def test_an_editor_completes_every_keyword(name):
    offered = {each.name for each in jedi.Script(f"import opforge\nopforge.{name}('x', ['x.cpp'], ").complete()}
    first = {"name", "sources", "cpp_sources"}
    assert {f"{keyword}=" for keyword in keywords(name) - first} <= offered


def test_an_editor_completes_the_attributes_of_a_builder():
    script = jedi.Script("from opforge import OpBuilder\nclass Mine(OpBuilder): pass\nMine().")
    assert {each.name for each in script.complete()} >= DECLARED


MYPY_SETTINGS = """\
[mypy]
follow_imports = silent
[mypy-torch.*,triton.*]
follow_imports = skip
ignore_missing_imports = True
"""
CALLS = """\
import opforge
reveal_type(opforge.load)
reveal_type(opforge.load_inline)
opforge.load("x", ["x.cpp"], extra_cflags=3)
"""


@pytest.mark.parametrize("python", ["3.11", "3.14"])
def test_a_type_checker_knows_every_keyword_and_its_type(tmp_path, python):
    (tmp_path / "mypy.ini").write_text(MYPY_SETTINGS)
    (tmp_path / "calls.py").write_text(CALLS)
    options = [f"--config-file={tmp_path}/mypy.ini", f"--cache-dir={tmp_path}/cache", f"--python-version={python}"]
    printed, problems, status = api.run([*options, f"{tmp_path}/calls.py"])
    load, inline, wrong, *_rest = printed.splitlines()
    assert (status, problems) == (1, "")
    assert {keyword for keyword in keywords("load") if f"{keyword}:" not in load} == set()
    assert {keyword for keyword in keywords("load_inline") if f"{keyword}:" not in inline} == set()
    assert 'Argument "extra_cflags" to "load" has incompatible type "int"; expected "Sequence[str] | None"' in wrong
