"""Fills in what a page leaves to the site: HTML comments such as `<!-- site: commands -->`, which a forge hides.

| comment | what replaces it |
| -- | -- |
| `<!-- site: contents -->` | a toctree of the pages that the section above it links to, with its heading as caption |
|  | Links of a nested list are pages below the first link of the item: its page gets a toctree of them |
| `<!-- site: contents all -->` | a toctree of all pages of its own folder that the page links to |
| `<!-- site: module NAME -->` | the reference of a module's public names, from their docstrings |
| `<!-- site: commands -->` | every command with its arguments and options, from click |
| `<!-- site: search WORD, WORD -->` | entries of the index: a search for such a word finds this place first |
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

import opforge

from . import commands

ROOT = Path(__file__).resolve().parents[2]
INDEX = "docs/index"
"""The page whose lists are the navigation."""
LINK = re.compile(r"\]\(([^)#:]+)\.md\)")
COMMENT = re.compile(r"^<!-- site: (\w+) ?(.*?) -->$", re.MULTILINE)


def fill_in(app: Sphinx, docname: str, source: list[str]) -> None:
    """Replaces the comments of a page. Sphinx calls it with the text of each page in a list."""
    text = source[0]
    source[0] = COMMENT.sub(lambda match: _replacement(match, text), text)
    index = (ROOT / f"{INDEX}.md").read_text(encoding="utf-8")
    if names := below(index).get(docname):
        folder = os.path.dirname(docname)
        source[0] += "\n" + _toctree([os.path.relpath(name, folder) for name in names], []) + "\n"


def _replacement(match: re.Match[str], text: str) -> str:
    kind, argument = match.groups()
    if kind == "contents":
        return contents(text[: match.start()], is_page=argument == "all")
    if kind == "module":
        return module(argument)
    if kind == "commands":
        return commands.reference()
    if kind == "search" and argument:
        return search_words(argument.split(", "))
    raise ValueError(f"{match[0]} is not one of contents, module NAME, commands, search WORDS")


def search_words(words: list[str]) -> str:
    """Returns a directive that makes the words main entries of the index, which the search ranks above all else."""
    return "\n".join(["```{eval-rst}", ".. index::", *(f"   ! single: {word}" for word in words), "```"])


def contents(text: str, is_page: bool = False) -> str:
    """Returns a hidden toctree of the pages to which the last section of a text links, or the whole text."""
    if is_page:
        return _toctree(sorted({link for link in LINK.findall(text) if "/" not in link}), [])
    _, _, section = ("\n" + text).rpartition("\n## ")
    caption, _, body = section.partition("\n")
    return _toctree([link for item in _items(body) for link in item[0]], [f":caption: {caption}"])


def below(index: str) -> dict[str, list[str]]:
    """Returns the pages that nested lists of the index put below another one, by the name of that one."""
    folder, pages = os.path.dirname(INDEX), dict[str, list[str]]()
    for top, nested in _items(index):
        if nested:
            names = [os.path.normpath(os.path.join(folder, link)) for link in (top[0], *nested)]
            pages.setdefault(names[0], []).extend(names[1:])
    return pages


def _items(text: str) -> list[tuple[list[str], list[str]]]:
    """Returns the links of each item of a text's lists, and those of the list inside of the item."""
    items: list[tuple[list[str], list[str]]] = [([], [])]
    is_nested = False
    for line in text.splitlines():
        if line.startswith("- "):
            items.append(([], []))
        is_nested = line.startswith("  - ") or (is_nested and line.startswith("    "))
        items[-1][is_nested].extend(LINK.findall(line))
    return items


def _toctree(links: list[str], options: list[str]) -> str:
    return "\n".join(["```{toctree}", ":hidden:", *options, "", *dict.fromkeys(links), "```"])


FIRST = ("load", "load_inline", "OpBuilder", "get_accelerator", "get_kernel")
"""The names that most users of `opforge` look for: they come first, and the others in the order of the alphabet."""


def module(name: str) -> str:
    """Returns the directives that document each public name of a module under the name that users import.

    What `import opforge` has too is documented there alone.
    """
    imported = importlib.import_module(name)
    lines = ["```{eval-rst}", f".. automodule:: {name}", "   :no-members:", ""]
    for public in sorted(imported.__all__, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST)):
        if name != "opforge" and public in opforge.__all__:
            lines += [f":py:obj:`{name}.{public} <opforge.{public}>`: the same as `opforge.{public}`.", ""]
        else:
            lines += [*_directive(f"{name}.{public}", getattr(imported, public)), ""]
    return "\n".join([*lines, "```"])


def _directive(name: str, value: Any) -> list[str]:
    if inspect.isclass(value):
        kind = "exception" if issubclass(value, BaseException) else "class"
        bases = ["   :show-inheritance:"] if value.__bases__ != (object,) else []
        return [f".. auto{kind}:: {name}", "   :members:", *bases]
    return [f".. auto{'function' if callable(value) else 'data'}:: {name}"]
