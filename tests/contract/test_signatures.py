"""What a user's tools see of `opforge.load`, `load_inline` and a builder: every keyword, without a stub file."""

from __future__ import annotations

import inspect
import pydoc
import re

import jedi
import pytest
from mypy import api

import opforge
from opforge import OpBuilder
from opforge.builders.declaration import attributes
from opforge.compat import attributes as words

KINDS = {"load": "FileKeywords", "load_inline": "TextKeywords"}
FUNCTIONS = pytest.mark.parametrize("name", ["load", "load_inline"])
BUILDERS = {name for name in vars(OpBuilder) if name in OpBuilder.__annotations__ and name[0] != "_"} - {"trace"}
DECLARED = {*attributes.declared_in(attributes.LOAD)}


def keywords(name):
    return set(inspect.signature(getattr(opforge, name)).parameters)


def test_the_table_has_every_attribute_of_a_builder():
    assert attributes.ATTRIBUTES.keys() == BUILDERS


@FUNCTIONS
def test_a_function_takes_the_attributes_that_the_table_says_by_keyword(name):
    assert {"abi", "extra_compile_args", "requires_torch"} <= DECLARED
    made_with = {"target", "debug", "sanitize"}
    taken = {*attributes.KEYWORDS[f"Unpack[{KINDS[name]}]"].__annotations__}
    assert taken - made_with == {*attributes.declared_in(name)} and made_with <= taken
    assert taken <= keywords(name)


@FUNCTIONS
@pytest.mark.parametrize("other", sorted(BUILDERS - DECLARED - {"name", "sources"}))
def test_a_function_refuses_the_other_attributes(name, other):
    with pytest.raises(TypeError, match=f"^{name}\\(\\) got an unexpected keyword argument '{other}'"):
        getattr(opforge, name)("x", "int x;", **{other: "x"})


def test_a_wrong_keyword_is_told_the_nearest():
    with pytest.raises(TypeError, match=r"argument 'requires_torhc'[.] Did you mean 'requires_torch'[?]$"):
        opforge.load("x", ["x.cpp"], requires_torhc="")


def test_a_keyword_of_setuptools_names_the_line_to_write():
    with pytest.raises(TypeError, match=r"argument 'library_dirs'[.] Write extra_link_args = \["):
        opforge.load("x", ["x.cpp"], library_dirs=["/lib"])


def test_lines_for_words_of_others_name_attributes():
    lines = [*words.OTHER_WORDS.values(), *(f"{name} =" for of in words.METHODS.values() for name in of([]))]
    assert {line.partition(" ")[0] for line in lines} <= BUILDERS


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


ANOTHER = pytest.param("3.14", marks=pytest.mark.long("has the type checker read all again, for another Python"))


@pytest.mark.parametrize("python", ["3.11", ANOTHER])
def test_a_type_checker_knows_every_keyword_and_its_type(tmp_path, monkeypatch, python):
    monkeypatch.setenv("MYPY_CONFIG_FILE_DIR", str(tmp_path))  # mypy sets it
    (tmp_path / "mypy.ini").write_text(MYPY_SETTINGS)
    (tmp_path / "calls.py").write_text(CALLS)
    options = [f"--config-file={tmp_path}/mypy.ini", f"--cache-dir={tmp_path}/cache", f"--python-version={python}"]
    printed, problems, status = api.run([*options, f"{tmp_path}/calls.py"])
    load, inline, wrong, *_rest = printed.splitlines()
    assert (status, problems) == (1, "")
    assert {keyword for keyword in keywords("load") if not re.search(rf"\b{keyword}('\?)?:", load)} == set()
    assert {keyword for keyword in keywords("load_inline") if not re.search(rf"\b{keyword}('\?)?:", inline)} == set()
    assert 'Argument "extra_cflags" to "load" has incompatible type "int"; expected "Sequence[str] | None"' in wrong
