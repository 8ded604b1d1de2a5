"""The conventions of CONTRIBUTING.md that a test can check: docstrings begin with a verb."""

from __future__ import annotations

import ast
import os
import re
import subprocess

import pytest
from support.paths import CHECKOUT

FOLDERS = (
    "accelerator",
    "builders",
    "cache",
    "ops",
    "packages",
    "remote",
    "src/opforge",
    "tests",
    "benchmarks",
    "examples",
)
SUFFIXES = (".py", ".c", ".cpp", ".cu", ".h", ".hpp", ".cl", ".sycl")
NUMBER_OF_A_FORMAT = re.compile(r"^[A-Z_, ]*\bFORMAT\b[^=\n]*= *[^\n]*\d|^[A-Z_]*_FORMAT *= *\d", re.MULTILINE)
"""A version of something on disk or on the wire, where it is declared."""
NO_VERB = {"property", "cached_property", "setter", "fixture", "command", "group"}
"""Decorators of functions whose docstring need not begin with a verb: it names a value, or is the help of a command."""
NOT_VERBS = {"As", "Its", "Always", "This"}
"""Words with the ending of a verb's third person that begin other sentences."""
FIRST_WORDS = re.compile(
    r"^(?:[ \t]*@(?:\w+[.])*(\w+)[^\n]*\n)?(?![ \t]*(?:class|def test_\w*)\b)[^\n]*:[ \t]*(?:#[^\n]*)?\n"
    r"[ \t]+\w?[\"']+\s*([^\s\"']+)",
    re.MULTILINE,
)
"""Those of docstrings of functions that are no tests, with the decorator before. Parsing every file takes seconds."""


def code_files():
    """Yields the path of every code file, relative to the checkout."""
    for folder in FOLDERS:
        # Symlinks below src/opforge lead to other folders of this list. os.walk does not follow them.
        for path, subfolders, names in os.walk(os.path.join(CHECKOUT, folder)):
            subfolders[:] = [name for name in subfolders if name != "__pycache__" and not name.startswith(".")]
            yield from (
                os.path.relpath(os.path.join(path, name), CHECKOUT) for name in names if name.endswith(SUFFIXES)
            )


def read(path):
    with open(os.path.join(CHECKOUT, path), encoding="utf-8") as file:
        return file.read()


def is_verb(word):
    """Returns whether a docstring's first word is a verb in the third person."""
    return bool(re.fullmatch("[A-Z][a-z-]+s,?", word)) and word not in NOT_VERBS


def docstrings_without_a_verb(code):
    """Yields the (line, first word) of every function's docstring that does not begin with a third-person verb."""
    if all(is_verb(word) or decorator in NO_VERB for decorator, word in FIRST_WORDS.findall(code)):
        return
    for node in ast.walk(ast.parse(code)):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or node.name.startswith("test_"):
            continue
        decorators = {ast.unparse(decorator).partition("(")[0].rpartition(".")[2] for decorator in node.decorator_list}
        words = (ast.get_docstring(node) or "").split()
        if words and not decorators & NO_VERB and not is_verb(words[0]):
            yield node.lineno, words[0]


def test_the_code_files_of_every_folder_are_checked():
    folders = {path.split(os.sep)[0] for path in code_files()}
    assert folders == {folder.split("/")[0] for folder in FOLDERS}


@pytest.mark.parametrize(
    "docstring", ["Return the path.", "The path.", "Whether it is.", "As `f`, but", "`x` is", "A path."]
)
def test_a_docstring_without_a_verb_is_recognized(docstring):
    assert len(list(docstrings_without_a_verb(f'class A:\n    async def f(self):\n        """{docstring}"""'))) == 1


@pytest.mark.parametrize(
    "code",
    [
        'def f():\n    """Returns it."""',
        'def f():\n    """Page-locks it."""',
        'def f():\n    """Finds, or builds."""',
        "def f():\n    pass",
        'class A:\n    """A thing."""',
        '@property\ndef f(self):\n    """The path."""',
        '@pytest.fixture(scope="module")\ndef f():\n    """A store."""',
        '@click.command("f", cls=Command)\ndef f():\n    """Show it."""',
        'def test_a():\n    """Otherwise it would fail."""',
    ],
)
def test_other_docstrings_are_not_reported(code):
    assert list(docstrings_without_a_verb(code)) == []


@pytest.mark.test_all("parses every file, and no promise depends on it")
def test_every_docstring_of_a_function_begins_with_a_verb():
    lines = [
        f"{path}:{line}: {word}"
        for path in sorted(code_files())
        if path.endswith(".py")
        for line, word in docstrings_without_a_verb(read(path))
    ]
    assert lines == [], "begin with what the function does: Returns, Builds, Writes"


@pytest.mark.parametrize(
    "code", ["FORMAT = 1", "_FORMAT = 2", "PLAN_FORMAT = 3", "A, FORMAT = 1, 2", "FORMAT: int = 4"]
)
def test_a_number_of_a_format_is_recognized(code):
    assert NUMBER_OF_A_FORMAT.search(code)


def test_every_number_of_a_format_stands_in_one_file():
    product = [path for path in code_files() if path.endswith(".py") and path.split("/")[0] in (*FOLDERS[:7], "src")]
    elsewhere = [path for path in product if NUMBER_OF_A_FORMAT.search(read(path))]
    assert elsewhere == [], "declare it in opforge/foundation/formats.py"
    assert "src/opforge/foundation/formats.py" in product


def texts_that_say_none(code):
    """Yields the (line, text) of every text of an error that says of a field only that it is none of its kind."""
    ends = re.search(r"(?:is|are) none[\"']", code)  # parsing all files would take seconds
    for node in ast.walk(ast.parse(code)) if ends else ():
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and re.search(r"\b(is|are) none$", node.value)
        ):
            yield node.lineno, node.value


def test_an_error_names_what_a_field_holds_and_what_was_expected():
    assert [*texts_that_say_none('raise ValueError(f"{name} in its record is none")')]
    product = [path for path in code_files() if path.endswith(".py") and path.split("/")[0] in (*FOLDERS[:7], "src")]
    assert [(path, line) for path in product for line in texts_that_say_none(read(path))] == []


def test_git_has_no_package_and_no_library_but_inputs_of_tests():
    """A command that adds everything takes along what pip has downloaded."""
    if not os.path.exists(os.path.join(CHECKOUT, ".git")):
        pytest.skip("needs a checkout of git: a release has no other files than git")
    listed = subprocess.run(
        ["git", "ls-files"], cwd=CHECKOUT, capture_output=True, text=True, check=True
    ).stdout.split()
    made = [name for name in listed if name.endswith((".whl", ".tar.gz", ".zip", ".so", ".o", ".a", ".pyc"))]
    assert [name for name in made if not name.startswith(("tests/fuzz/corpus/", "tests/support/store/formats/"))] == []
