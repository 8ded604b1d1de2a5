"""The scripts that flags give to a linker: it finds them in its folders, and they name further scripts and folders."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise

FLAGS = ("-T", "-dT", "--script", "--default-script", "--version-script", "--dynamic-list")
"""The flags after which GNU's linkers look for a file in the folders of -L, unless the name is a path to one."""
INCLUDED = re.compile(rb'\bINCLUDE\s+("[^"\n]+"|[^\s;]+)')
FOLDER = re.compile(rb'\bSEARCH_DIR\s*\(\s*("[^"\n]+"|[^\s)]+)\s*\)')
COMMENT = re.compile(rb"/\*.*?\*/", re.DOTALL)
BINARY = (b"\x7fELF", b"!<arch>\n", b"!<thin>\n")
LARGEST = 1 << 16
"""Bytes of a script. What is larger is another file of text."""


def scripts(words: Sequence[str], folders: Iterable[str]) -> dict[str, bytes]:
    """Returns the scripts of a link by their paths, without comments, and those that they include.

    A name counts in each folder that has it: an input too many costs a rebuild at worst.

    Args:
        words: The command, with what is passed on to the linker as words of its own.
        folders: The folders of libraries.
    """
    folders = [*folders]
    names = [*_named(words), *(word for word in words if word.startswith("/"))]
    found = dict[str, bytes]()
    while names:
        name = names.pop()
        for path in dict.fromkeys(os.path.normpath(os.path.join(folder, name)) for folder in ("/", *folders)):
            text = None if path in found else _text(path)
            if text is not None:
                found[path] = text
                names += map(_unquoted, INCLUDED.findall(text))
    return found


def folders_in(texts: Iterable[bytes]) -> list[str]:
    """Returns the absolute folders that scripts add to those in which the linker looks for libraries."""
    folders = (_unquoted(name) for text in texts for name in FOLDER.findall(text))
    return [os.path.normpath(folder) for folder in dict.fromkeys(folders) if os.path.isabs(folder)]


def _named(words: Sequence[str]) -> Iterator[str]:
    """Yields the names of scripts in flags. Long flags may begin with one dash, and have the name in the next word."""
    for before, word in pairwise(("", *words)):
        flag, _, name = word.partition("=")
        if before in FLAGS or f"-{before}" in FLAGS:
            yield word
        elif name and {flag, f"-{flag}"} & {*FLAGS}:
            yield name
        elif word.startswith("-T"):
            yield word[2:]


def _text(path: str) -> bytes | None:
    """Returns the text of a script; None if the file is none."""
    with suppress(OSError, ValueError), open(path, "rb") as file:
        content = file.read(LARGEST + 1)
        if len(content) <= LARGEST and not content.startswith(BINARY) and b"\0" not in content:
            return COMMENT.sub(b" ", content)
    return None


def _unquoted(name: bytes) -> str:
    return os.fsdecode(name.strip(b'"'))
