"""The documents: links have a target, files and variables exist, command lines are valid, code imports real names."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import os
import pkgutil
import re
import shlex
import textwrap
from pathlib import Path
from xml.etree import ElementTree

import click
import pytest
from support import scripts

from opforge import errors
from opforge.cli import group
from opforge.foundation.settings import TABLE

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("examples/*/README.md"),
        *ROOT.glob("benchmarks/**/*.md"),
    ]
)
FOLDERS = ("src", "accelerator", "builders", "cache", "ops", "packages", "remote")
READERS_FILES = {
    "stdc-predef.h",
    "setup.py",
    "relu.cpp",
    "softsign.cpp",
    "triton.py",
    "scale.cpp",
    "train.py",
    "ops.py",
    "scale.cu",
    "mine.h",
    "kernel-status.toml",
    "kernel.toml",
    "build.toml",
    "kernels.toml",
    "_functions.py",
    "_ops.py",
    "a/b/../c.h",
}
"""Names of files that the reader writes, or that a compiler has."""
UNCLEAR = (
    "21 times that",
    "would make every import pay",
    "or nothing comes",
    "print there what variants are judged by",
    "was packed from sources that differ",
    "asked of the cache, in full",
    "looked up by what is known",
    "a ceiling that nothing is expected to exceed",
)
"""What readers could not make sense of."""
SETTINGS = {setting.variable for setting in TABLE.values()}
COMMAND = re.compile(r"(?:[A-Z_]+=\S+ )*((?:opforge|build-ops|python -m opforge) .*)")
OUR_VARIABLE = re.compile(r"\bOPFORGE_[A-Z0-9_]+\b(?!\*)")


@functools.cache
def files() -> list[Path]:
    """Returns the files and folders of the checkout, but for hidden ones and what is in them."""
    found = []
    for parent, folders, names in os.walk(ROOT):
        folders[:] = [folder for folder in folders if not folder.startswith(".")]
        found += [Path(parent, name) for name in [*folders, *names] if not name.startswith(".")]
    return found


@functools.cache
def code() -> str:
    """Returns the text of all Python files and headers."""
    return "".join(path.read_text() for path in files() if path.is_file() and path.name.endswith((".py", ".h")))


def fenced(text: str, language: str = r"\w*") -> list[str]:
    """Returns the fenced code blocks of a page, in order."""
    blocks = re.findall(rf"^( *)```{language}\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE)
    return [textwrap.dedent(block) for _, block in blocks]


def prose(text: str) -> str:
    """Returns a page without its fenced code blocks."""
    return re.sub(r"^ *```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE)


@functools.cache
def anchors(page: Path) -> set[str]:
    """Returns the anchors of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", prose(page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def calls(lines: list[str]) -> list[str]:
    """Returns those of the lines that call opforge, without the variables before the command."""
    matches = [COMMAND.fullmatch(line.strip()) for line in lines]
    return [match.group(1) for match in matches if match]


def command_lines(text: str) -> list[str]:
    """Returns the command lines of a page's code blocks. Lines that end in a backslash are joined with the next."""
    text = re.sub(r" *\\\n *", " ", text)
    indented = re.findall(r"^ {4,}(\S.*)$", prose(text), re.MULTILINE)
    return calls([line for block in [*fenced(text), *indented] for line in block.splitlines()])


def inline_commands(text: str) -> list[str]:
    """Returns the commands in sentences and tables. Some have no arguments."""
    return calls(re.findall(r"`([^`\n]+)`", prose(text)))


def command_line_problem(line: str) -> str | None:
    """Returns why opforge's commands reject this line. None if they accept it."""
    line = re.sub(r" (>|\|) .*", "", line)  # what it prints goes to a file or another command
    words = shlex.split(line.replace("[options] ", "").replace("[OP ...]", "OP"), comments=True)
    if words[:2] == ["python", "-m"]:
        module, *words = words[2:]
        if module != "opforge":
            return None if importlib.util.find_spec(module) else f"there is no module {module}"
        words.insert(0, "opforge")
    if words[:2] == ["opforge", "cache"] and len(words) == 2:
        return None
    command: click.Command = group
    name, *arguments = words if words[0] == "opforge" else ["opforge", *words]
    for word in [name, *arguments]:
        if isinstance(command, click.Group) and word != name and not word.startswith("-"):
            subcommand = command.get_command(click.Context(command), word)
            if subcommand is None:
                return f"there is no command {word!r}"
            command, arguments = subcommand, arguments[1:]
    try:
        command.make_context(name, arguments, None)
    except click.exceptions.Exit:
        return None  # --help, --version
    except click.ClickException as error:
        # A file that does not exist is the reader's.
        return None if "does not exist" in error.format_message() else error.format_message()
    return None


def dead_links(page: Path) -> list[str]:
    """Returns the targets of links that are no page of the web, and that are not there."""
    dead = []
    for target in re.findall(r"\[[^\]]+\]\(([^)\s]+)\)", prose(page.read_text())):
        path, _, anchor = target.partition("#")
        file = (page.parent / path) if path else page
        if not target.startswith("https://") and not (file.exists() and (not anchor or anchor in anchors(file))):
            dead.append(target)
    return dead


def missing_files(page: Path) -> list[str]:
    """Returns the names of files of ours that the page names, and that no folder has."""
    text = re.sub(r"\[[^\]]*\]\([^)]*\)", "", prose(page.read_text()))
    names = re.findall(r"`((?:[\w.-]+/)*[\w-]+\.(?:py|cpp|cu|h|md|toml))`", text)
    ours = [name for name in names if not name.startswith(("my_package/", "torch/")) and name not in READERS_FILES]
    return [name for name in ours if not any(str(file).endswith("/" + name) for file in files())]


def invalid_command_lines(page: Path) -> dict[str, str]:
    """Returns the page's command lines that opforge's commands reject, each with their error."""
    blocks, inline = command_lines(page.read_text()), inline_commands(page.read_text())
    problems = {line: command_line_problem(line) or "" for line in [*blocks, *inline]}
    without_arguments = {line for line in inline if problems[line].startswith("Missing argument")}
    return {line: text for line, text in problems.items() if text and line not in without_arguments}


def unread_variables(page: Path) -> set[str]:
    """Returns the variables of the page that neither the code nor the settings know."""
    return {name for name in OUR_VARIABLE.findall(page.read_text()) if name not in code() and name not in SETTINGS}


def missing_names(page: Path) -> list[str]:
    """Returns what the page's pieces of Python import of opforge, and what is not there."""
    missing = []
    for block in fenced(page.read_text(), "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "opforge":
                module = importlib.import_module(node.module or "")
                parts = {part.name for part in pkgutil.iter_modules(getattr(module, "__path__", ()))}
                names = [alias.name for alias in node.names]
                missing += [
                    f"{node.module}.{name}" for name in names if name not in parts and not hasattr(module, name)
                ]
    return missing


def unclear_words(page: Path) -> list[str]:
    """Returns what readers could not make sense of and the page says again."""
    text = " ".join(page.read_text().split()).lower()
    return [words for words in UNCLEAR if words in text]


CHECKS = (dead_links, missing_files, invalid_command_lines, unread_variables, missing_names, unclear_words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_names_exists_and_its_commands_are_valid(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert {check.__name__: found for check in CHECKS if (found := check(page))} == {}


@pytest.mark.parametrize(
    ("check", "line"),
    [
        (dead_links, "[a](nowhere.md)"),
        (dead_links, "[a](#nowhere)"),
        (missing_files, "`nowhere/file.py`"),
        (invalid_command_lines, "`opforge repotr now`"),
        (unread_variables, f"`OPFORGE_{len(PAGES)}`"),
        (missing_names, "```python\nfrom opforge.cache import nowhere\n```"),
        (unclear_words, "which would make every import pay"),
    ],
)
def test_each_check_finds_what_is_wrong(check, line, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\n{line}\n")
    assert [one for one in CHECKS if one(page)] == [check]


def test_the_documents_have_pages_and_command_lines():
    lines = [line for page in PAGES for line in [*command_lines(page.read_text()), *inline_commands(page.read_text())]]
    assert len(PAGES) > 15 and len(lines) > 60
    assert {"opforge report", "build-ops CPUAdam --portable --out prebuilt/"} <= {line.strip() for line in lines}


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("opforge repotr", "there is no command 'repotr'"),
        ("opforge report --jsn", "--jsn"),
        ("build-ops CPUAdam --target cuda:sm_8x", "column"),
        ("opforge cache frob", "there is no command 'frob'"),
        ("python -m opforge.nothing", "there is no module opforge.nothing"),
    ],
)
def test_the_problem_of_an_invalid_command_line_is_returned(line, text):
    assert text in command_line_problem(line)


def test_the_documents_list_every_error():
    table = (ROOT / "docs" / "errors.md").read_text()
    assert {name for name in errors.__all__ if name != "OpforgeError" and f"`{name}`" not in table} == set()


@pytest.mark.parametrize(
    "words",
    [
        "compiler was found",
        "no source registers an op",
        "a compiler was killed",
        "torch refused the definition",
        "torch refused the dispatch key",
        "torch would pass wrong values to its kernels",
        "is registered already",
        "OPFORGE_PREBUILT=require forbids",
        "must be loaded before it",
        "The cache folder",
        "The layer",
        "it needs glibc",
        "it needs GLIBCXX_",
        "it needs torch's",
    ],
)
def test_the_faq_quotes_errors_of_ours_word_by_word(words):
    joined = re.sub(r'"\n\s*f?"', "", code())  # joins messages that are written over several lines
    page = " ".join((ROOT / "docs" / "faq.md").read_text().split())  # joins lines that the formatter has wrapped
    assert words in joined and words in page


def test_the_documents_table_is_that_of_the_settings():
    table = scripts.load("docs/opforge_docs/settings.py").table()
    assert table in (ROOT / "docs" / "settings.md").read_text(), "run: python docs/opforge_docs/settings.py"


def test_the_documents_table_is_that_of_the_attributes():
    table = scripts.load("docs/opforge_docs/attributes.py").table()
    assert table in (ROOT / "docs" / "builders.md").read_text(), "run: python docs/opforge_docs/attributes.py"


def test_the_matrix_of_commands_and_kinds_is_that_of_the_code():
    table = scripts.load("docs/opforge_docs/kinds.py").table()
    assert table in (ROOT / "docs" / "reference" / "commands.md").read_text(), "run: python docs/opforge_docs/kinds.py"


def test_the_readmes_table_is_that_of_the_commands():
    table = scripts.load("docs/opforge_docs/commands.py").table()
    assert table in (ROOT / "README.md").read_text(), "run: python docs/opforge_docs/commands.py"


def test_the_picture_of_a_terminal_shows_commands_of_today_and_no_note_about_its_width():
    """It is drawn by the script beside it, which runs them."""
    drawing, shown = (
        ElementTree.parse(ROOT / "docs/pictures/build-ops.svg"),
        scripts.load("docs/pictures/terminal.py").COMMANDS,
    )
    texts = [(element.text or "").replace("\N{NO-BREAK SPACE}", " ") for element in drawing.iter()]
    commands = [texts[at + 1].strip() for at, text in enumerate(texts) if text == "$ "]
    assert commands == list(shown)
    assert [command_line_problem(command) for command in shown] == [None] * len(shown)
    assert "does not fit" not in " ".join(texts)


def product_files():
    return [ROOT / "setup.py", *(file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py"))]


def test_every_variable_that_the_code_names_is_a_setting():
    """A message that names another one sends its reader astray, and one that is read besides is in no list."""
    headers = [*(ROOT / "ops" / "csrc").rglob("*.h"), *(ROOT / "builders" / "facade" / "include").rglob("*.h")]
    macros = {name for file in headers for name in OUR_VARIABLE.findall(file.read_text())}
    named = {name for path in product_files() for name in re.findall(r"(?<!_)\bOPFORGE_[A-Z0-9_]+\b", path.read_text())}
    others = {"OPFORGE_ABI", "OPFORGE_MODULES"}  # constants of the code
    others |= {"OPFORGE_FACADE"}  # a macro by which a source knows that it is compiled on the facade
    assert named - macros - others <= SETTINGS


def test_only_the_settings_read_their_variables():
    """But for the module that runs in each process that imports torch, and the one that `import opforge` runs.

    Neither may import the settings to say no.
    """
    reading = re.compile(r"""environ(?:\.get\(|\[|\.setdefault\()["']OPFORGE_""")
    found = {path.name for path in product_files() if reading.search(path.read_text())}
    assert found == {"opforge_autoload.py", "__init__.py"}


@pytest.mark.parametrize(
    "page", ["README.md", "benchmarks/README.md", "docs/bench.md", "docs/compat.md", "docs/host-ops.md"]
)
def test_comparisons_name_the_versions_that_are_installed_for_the_tests(page):
    """Another version may behave in another way: torch after 2.13 locks its builds otherwise."""
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split() if "==" in line)
    text = (ROOT / page).read_text()
    assert f"DeepSpeed {pins['deepspeed']}" in text
    assert "cpp_extension" not in text or f"torch {pins['torch']}" in text


@pytest.mark.parametrize("page", ["docs/remote.md", "docs/packages.md", "docs/tutorials/kernel-package.md"])
def test_what_a_page_needs_is_named_above_its_commands(page):
    text = (ROOT / page).read_text()
    commands = [text.find(line.split("\\")[0].strip()) for line in command_lines(text)]
    assert 0 <= text.find("pip install") < min(at for at in commands if at >= 0)
