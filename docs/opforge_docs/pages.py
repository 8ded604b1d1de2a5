"""Fills in what a page leaves to the site: HTML comments such as `<!-- site: commands -->`, which a forge hides.

| comment | what replaces it |
| -- | -- |
| `<!-- site: contents -->` | a toctree of the pages that the section above it links to, with its heading as caption |
| `<!-- site: contents all -->` | a toctree of all pages of its own folder that the page links to |
| `<!-- site: module NAME -->` | the reference of a module's public names, from their docstrings |
| `<!-- site: commands -->` | every command with its arguments and options, from click |
| `<!-- site: search WORD, WORD -->` | entries of the index: a search for such a word finds this place first |
"""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

from sphinx.application import Sphinx

import opforge

from . import commands

COMMENT = re.compile(r"^<!-- site: (\w+) ?(.*?) -->$", re.MULTILINE)


def fill_in(app: Sphinx, docname: str, source: list[str]) -> None:
    """Replaces the comments of a page. Sphinx calls it with the text of each page in a list."""
    text = source[0]
    source[0] = COMMENT.sub(lambda match: _replacement(match, text), text)


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
    _, _, section = ("\n" + text).rpartition("\n## ")
    caption, _, body = section.partition("\n")
    links = re.findall(r"\]\(([^)#:]+)\.md\)", text if is_page else body)
    if is_page:
        links = sorted({link for link in links if "/" not in link})
    options = [":hidden:"] if is_page else [":hidden:", f":caption: {caption}"]
    return "\n".join(["```{toctree}", *options, "", *dict.fromkeys(links), "```"])


FIRST = ("load", "load_inline", "OpBuilder", "get_accelerator", "get_kernel")
"""What most users of `opforge` look for: these names come before the others, which are in the order of the alphabet."""


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
