"""The documents: links lead somewhere, files and variables exist, command lines are understood, code has real names."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import shlex
import textwrap
from pathlib import Path

import click
import pytest

from opforge import errors
from opforge.cli import group

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*/README.md"), *ROOT.glob("benchmarks/**/*.md")]
)
ROOMS = ("src", "accelerator", "builders", "cache", "ops")
THEIRS = {"setup.py", "relu.cpp", "triton.py", "scale.cpp", "train.py", "ops.py", "scale.cu", "mine.h"}
"""Files of the reader's own."""
FILES = [path for path in ROOT.rglob("*") if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)]
CODE = "".join(path.read_text() for path in FILES if path.name.endswith((".py", ".h")))
COMMAND = re.compile(r"(?:[A-Z_]+=\S+ )*((?:opforge|build-ops|python -m opforge) .*)")
OUR_VARIABLE = re.compile(r"\bOPFORGE_[A-Z0-9_]+\b(?!\*)")


def fenced(text: str, language: str = r"\w*") -> list[str]:
    """The fenced code blocks of a page, in order."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE)
    return [textwrap.dedent(block) for _, block in found]


def prose(text: str) -> str:
    """A page without its code blocks."""
    return re.sub(r"^ *```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """What the headings of a page are called in a link."""
    headings = re.findall(r"^#+ (.*)$", prose(page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def calls(lines: list[str]) -> list[str]:
    """Those of the lines that call opforge, without the variables before them."""
    return [found.group(1) for line in lines if (found := COMMAND.fullmatch(line.strip()))]


def command_lines(text: str) -> list[str]:
    """The lines to be typed as they stand, those that go on in the next one whole."""
    text = re.sub(r" *\\\n *", " ", text)
    indented = re.findall(r"^ {4,}(\S.*)$", prose(text), re.MULTILINE)
    return calls([line for block in [*fenced(text), *indented] for line in block.splitlines()])


def mentioned(text: str) -> list[str]:
    """The commands that sentences and tables speak of, some without their arguments."""
    return calls(re.findall(r"`([^`\n]+)`", prose(text)))


def refusal(line: str) -> str:
    """Why opforge's commands would not take this line; nothing where they would."""
    words = shlex.split(line.replace("[options] ", "").replace("[OP ...]", "OP"), comments=True)
    if words[:2] == ["python", "-m"]:
        module, *words = words[2:]
        if module != "opforge":
            return "" if importlib.util.find_spec(module) else f"there is no module {module}"
        words.insert(0, "opforge")
    if words[:2] == ["opforge", "cache"] and len(words) == 2:
        return ""
    command: click.Command = group
    parent: click.Context | None = None
    name, *arguments = words if words[0] == "opforge" else ["opforge", *words]
    for word in [name, *arguments]:
        if isinstance(command, click.Group) and word != name and not word.startswith("-"):
            found = command.get_command(click.Context(command), word)
            if found is None:
                return f"there is no command {word!r}"
            command, arguments = found, arguments[1:]
    try:
        command.make_context(name, arguments, parent)
    except click.exceptions.Exit:
        return ""  # --help, --version
    except click.ClickException as error:
        missing = "does not exist" in error.format_message()  # the reader's file, not ours
        return "" if missing else error.format_message()
    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
class TestPage:
    def test_every_link_leads_somewhere(self, page):
        dead = []
        for target in re.findall(r"\[[^\]]+\]\(([^)\s]+)\)", prose(page.read_text())):
            path, _, anchor = target.partition("#")
            file = (page.parent / path) if path else page
            if not target.startswith("https://") and not (file.exists() and (not anchor or anchor in anchors(file))):
                dead.append(target)
        assert dead == []

    def test_every_file_that_is_named_exists(self, page):
        text = re.sub(r"\[[^\]]*\]\([^)]*\)", "", prose(page.read_text()))
        named = re.findall(r"`((?:[\w.-]+/)*[\w-]+\.(?:py|cpp|cu|h|md|toml))`", text)
        ours = [name for name in named if not name.startswith(("my_package/", "torch/")) and name not in THEIRS]
        assert [name for name in ours if not any(str(file).endswith("/" + name) for file in FILES)] == []

    def test_every_command_line_is_understood(self, page, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        typed, spoken = command_lines(page.read_text()), mentioned(page.read_text())
        found = {line: refusal(line) for line in [*typed, *spoken]}
        short = {line for line in spoken if found[line].startswith("Missing argument")}
        assert {line: why for line, why in found.items() if why and line not in short} == {}

    def test_every_variable_is_one_that_is_read(self, page):
        assert {name for name in OUR_VARIABLE.findall(page.read_text()) if name not in CODE} == set()

    def test_every_piece_of_python_parses_and_imports_real_names(self, page):
        wrong = []
        for block in fenced(page.read_text(), "python"):
            if block.startswith("# examples/"):
                continue  # an excerpt: the tests of those packages hold it against its file
            for node in ast.walk(ast.parse(block)):
                if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "opforge":
                    module = importlib.import_module(node.module or "")
                    wrong += [f"{node.module}.{one.name}" for one in node.names if not hasattr(module, one.name)]
        assert wrong == []


def test_there_is_something_to_check():
    lines = [line for page in PAGES for line in [*command_lines(page.read_text()), *mentioned(page.read_text())]]
    assert len(PAGES) > 15 and len(lines) > 60
    assert {"opforge report", "build-ops CPUAdam --portable --out prebuilt/"} <= {line.strip() for line in lines}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("opforge repotr", "there is no command 'repotr'"),
        ("opforge report --jsn", "--jsn"),
        ("build-ops CPUAdam --target cuda:sm_8x", "column"),
        ("opforge cache frob", "there is no command 'frob'"),
        ("python -m opforge.nothing", "there is no module opforge.nothing"),
    ],
)
def test_a_wrong_line_would_be_found(line, why):
    assert why in refusal(line)


def test_the_guide_lists_every_error():
    table = (ROOT / "docs" / "guide.md").read_text()
    assert {name for name in errors.__all__ if name != "OpforgeError" and f"`{name}`" not in table} == set()


@pytest.mark.parametrize(
    "words",
    [
        "compiler was found",
        "no source registers an op",
        "a compiler was killed",
        "torch refused the definition",
        "is registered already",
        "OPFORGE_PREBUILT=require forbids",
        "has to be in the process first",
        "The cache folder",
        "The layer",
        "it needs glibc",
        "it needs GLIBCXX_",
        "it needs torch's",
    ],
)
def test_the_faq_quotes_errors_of_ours_as_they_are(words):
    joined = re.sub(r'"\n\s*f?"', "", CODE)  # a message over several lines
    assert words in joined and words in (ROOT / "docs" / "faq.md").read_text()


def test_the_guide_lists_every_variable_that_is_read():
    read: set[str] = set()
    macros = {name for file in (ROOT / "ops" / "csrc").rglob("*.h") for name in OUR_VARIABLE.findall(file.read_text())}
    for path in [ROOT / "setup.py", *(file for room in ROOMS for file in (ROOT / room).rglob("*.py"))]:
        read |= set(re.findall(r'"(OPFORGE_[A-Z0-9_]+)"(?!:)', path.read_text()))
    table = (ROOT / "docs" / "guide.md").read_text()
    assert {name for name in read - macros if f"`{name}" not in table} == set()
