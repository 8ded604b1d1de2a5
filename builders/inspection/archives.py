"""The libraries that a linker reads: those that -l names, if it cannot list them, and the members of thin archives."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import pairwise

THIN = b"!<thin>\n"
BINARY = (b"\x7fELF", b"!<arch>\n", THIN)
HEADER = 60
"""Bytes before each member of an archive."""
STORED = (b"/", b"//", b"/SYM64/")
"""The members that a thin archive holds itself: its index, and the names of its members."""
PLACE = re.compile(rb"/(\d+)")
"""Where a name begins: "/12"; "/12:345" of a member of an archive in this one; "/12      /" if it has 15 bytes."""
SCRIPT_INPUTS = re.compile(rb"\b(?:INPUT|GROUP|AS_NEEDED)\s*\(((?:[^()]|\([^()]*\))*)\)")
LARGEST_SCRIPT = 1 << 16


def files_of_link(words: Sequence[str], listed: Iterable[str], folders: Sequence[str], lists_inputs: bool) -> set[str]:
    """Returns the files that a command links besides its own objects.

    Args:
        words: The command, with what is passed on to the linker, or is in a file, as words of its own.
        listed: The files that the linker listed itself.
        folders: The folders that are searched for libraries, in order.
        lists_inputs: Whether the linker listed its files: then only the members of thin archives are missing.
    """
    files = set(listed) if lists_inputs else {*listed, *_named_libraries(words, folders)}
    for path in [*files]:
        files |= _members(path, set())
    return files


def _named_libraries(words: Sequence[str], folders: Sequence[str]) -> set[str]:
    """Returns the libraries that -l names.

    For each name it returns the first shared library and the first archive: which of them is linked depends on
    -Bstatic, and on what the compiler adds.
    """
    files = set[str]()
    for before, word in pairwise(("", *words)):
        if before in ("-l", "--library"):
            files |= _find(word, folders, files)
        elif word.startswith(("-l", "--library=")):
            files |= _find(word.partition("=")[2] if word.startswith("--") else word[2:], folders, files)
    return files


def _find(name: str, folders: Sequence[str], seen: set[str]) -> set[str]:
    names = [name[1:]] if name.startswith(":") else [f"lib{name}.so", f"lib{name}.a"]
    files = set[str]()
    for file in names if name else ():
        path = next(filter(os.path.isfile, (os.path.join(folder, file) for folder in folders)), None)
        if path and path not in seen:
            files |= {path, *_script_inputs(path, folders, {path, *seen})}
    return files


def _script_inputs(path: str, folders: Sequence[str], seen: set[str]) -> set[str]:
    """Returns the files that a linker's script names, such as a libfoo.so that reads `INPUT(libbar.a -lbaz)`."""
    with open(path, "rb") as file:
        text = file.read(LARGEST_SCRIPT)
    if text.startswith(BINARY):
        return set()
    inputs = b" ".join(SCRIPT_INPUTS.findall(re.sub(rb"/\*.*?\*/", b" ", text, flags=re.DOTALL)))
    words = map(os.fsdecode, re.sub(rb"AS_NEEDED|[(),]", b" ", inputs).split())
    files = set[str]()
    for word in words:
        if word.startswith("-l"):
            files |= _find(word[2:], folders, {*seen, *files})
            continue
        candidates = (os.path.join(folder, word) for folder in (os.path.dirname(path), *folders))
        inner = next(filter(os.path.isfile, candidates), None)
        if inner and inner not in seen:
            files |= {inner, *_script_inputs(inner, folders, {*seen, *files, inner})}
    return files


def _members(path: str, seen: set[str]) -> set[str]:
    """Returns the files that a thin archive names, and those of thin archives among them; none if it is no such one."""
    try:
        with open(path, "rb") as file:
            content = file.read() if file.read(len(THIN)) == THIN else b""
    except OSError:
        return set()  # a file that is gone is found by its stamp
    files = set[str]()
    for name in _member_names(content):
        member = os.path.normpath(os.path.join(os.path.dirname(path), os.fsdecode(name)))
        if member not in seen and os.path.isfile(member):
            files |= {member, *_members(member, {path, *seen, *files})}
    return files


def _member_names(content: bytes) -> list[bytes]:
    """Returns the paths in a thin archive, whose content begins behind its first line. They may repeat."""
    names, table, offset = list[bytes](), b"", 0
    with suppress(ValueError):  # a damaged archive cannot be linked
        while offset + HEADER <= len(content):
            name, size = content[offset : offset + 16].rstrip(), int(content[offset + 48 : offset + 58])
            offset += HEADER
            if name in STORED:
                table = content[offset : offset + size] if name == b"//" else table
                offset += size + size % 2
            elif place := PLACE.match(name):
                start = int(place[1])
                names.append(table[start : table.index(b"\n", start)].removesuffix(b"/"))
            else:
                names.append(name.removesuffix(b"/"))
    return names
