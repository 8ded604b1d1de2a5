"""The conventions of CONTRIBUTING.md that a test can check: sizes of files and folders, names, docstrings."""

from __future__ import annotations

import ast
import os
import re
from collections import Counter

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
MAX_LINES = 300
MAX_FILES = 15
REGISTRIES = ("builders/cpu", "builders/cuda", "builders/triton", "builders/toolchains", "accelerator/devices")
"""Folders with one file for each op, compiler or device. They may have any number."""
VAGUE = {"one", "told", "given", "made", "found", "known", "wanted", "said", "asked", "taken"}
"""Names of variables that do not say what the variable holds."""
NOT_CODE = re.compile(
    r"""
    //[^\n]* | /\*.*?\*/                          # comments
    | R"(?P<end>[^\s()\\]{0,16})\(.*?\)(?P=end)"   # raw strings
    | "(?:\\.|[^"\\\n])*" | (?<!\w)'(?:\\.|[^'\\\n])+'  # strings and characters; 1'000 is a number
    | ^[ \t]*\#[ \t]*(?:include|error|warning|pragma)\b[^\n]*
    """,
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)
"""What is neither a name nor an operator in a file of C++ or C."""
NO_VERB = {"property", "cached_property", "setter", "fixture", "command", "group"}
"""Decorators of functions whose docstring need not begin with a verb: it names a value, or is the help of a command."""
NOT_VERBS = {"As", "Its", "Always", "This"}
"""Words with the ending of a verb's third person that begin other sentences."""


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


def vague_names(code):
    """Yields the (line, name) of every assignment, loop target and parameter with a vague name."""
    for node in ast.walk(ast.parse(code)):
        name = ""
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        elif isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs)):
            name = node.name or ""
        if name in VAGUE:
            yield node.lineno, name


def vague_names_in_cpp(code):
    """Yields the (line, name) of every vague name in C++ or C, outside of comments and strings."""
    names = NOT_CODE.sub(lambda match: "\n" * match[0].count("\n"), code)
    for number, line in enumerate(names.split("\n"), 1):
        yield from ((number, word) for word in re.findall(r"\b[a-z]+\b", line) if word in VAGUE)


def docstrings_without_a_verb(code):
    """Yields the (line, first word) of every function's docstring that does not begin with a third-person verb."""
    for node in ast.walk(ast.parse(code)):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or node.name.startswith("test_"):
            continue
        decorators = {ast.unparse(decorator).partition("(")[0].rpartition(".")[2] for decorator in node.decorator_list}
        words = (ast.get_docstring(node) or "").split()
        if (
            words
            and not decorators & NO_VERB
            and (not re.fullmatch("[A-Z][a-z-]+s,?", words[0]) or words[0] in NOT_VERBS)
        ):
            yield node.lineno, words[0]


def test_the_code_files_of_every_folder_are_checked():
    folders = {path.split(os.sep)[0] for path in code_files()}
    assert folders == {folder.split("/")[0] for folder in FOLDERS}


def test_no_file_is_too_long():
    lengths = {path: len(read(path).splitlines()) for path in code_files()}
    too_long = {path: length for path, length in sorted(lengths.items()) if length > MAX_LINES}
    assert too_long == {}, f"a file may have {MAX_LINES} lines: divide these by subject"


def test_no_folder_has_too_many_files():
    sizes = Counter(os.path.dirname(path) for path in code_files())
    too_large = {path: size for path, size in sorted(sizes.items()) if size > MAX_FILES and path not in REGISTRIES}
    assert too_large == {}, f"a folder may have {MAX_FILES} code files: divide these by subject"


@pytest.mark.parametrize(
    "code",
    [
        "one = 1",
        "told: int = 1",
        "for given in (): pass",
        "[made for made in ()]",
        "def f(found): pass",
        "lambda known: 1",
        "with f() as one: pass",
        "(told := 1)",
        "first, *given = ()",
    ],
)
def test_a_vague_name_is_recognized(code):
    assert len(list(vague_names(code))) == 1


def test_no_variable_has_a_vague_name():
    names = [
        f"{path}:{line}: {name}"
        for path in sorted(code_files())
        for line, name in (vague_names if path.endswith(".py") else vague_names_in_cpp)(read(path))
    ]
    assert names == [], "name each variable for what it holds: entry, path, record"


@pytest.mark.parametrize(
    "code",
    [
        "for (const auto& one : all) {}",
        "auto f = [](int given) { return 1; };",
        'const char* const said = "x";',
        "const int big = 1'000, told = 1, other = 2'000;",
        "/* a comment */ int made = 1;  // and one more",
        'const char* s = R"(told)"; int known = 1;',
        "float one(int at);",
    ],
)
def test_a_vague_name_in_cpp_is_recognized(code):
    assert len(list(vague_names_in_cpp(code))) == 1


@pytest.mark.parametrize(
    "code",
    [
        "// one\n/* told\n * given */",
        '"one \\" made" "found"',
        '\'"\' + one_more + "one"',
        'R"x(one " )" told)x"',
        "#include <one/made.h>\n#error one was given\n  # pragma told",
        "int one_of, oneof, One, kOne = 1'000;",
    ],
)
def test_comments_strings_and_longer_names_in_cpp_are_not_vague(code):
    assert list(vague_names_in_cpp(code)) == []


def test_a_vague_name_in_cpp_is_reported_with_its_line():
    assert list(vague_names_in_cpp("/* one\n two */\nint a;\nint told;\n")) == [(4, "told")]


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


def test_every_docstring_of_a_function_begins_with_a_verb():
    lines = [
        f"{path}:{line}: {word}"
        for path in sorted(code_files())
        if path.endswith(".py")
        for line, word in docstrings_without_a_verb(read(path))
    ]
    assert lines == [], "begin with what the function does: Returns, Builds, Writes"
