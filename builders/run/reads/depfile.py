"""Reads the dependency files of compilers, assemblers and linkers: which files they have read."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator

WORD = re.compile(rb"(?:\\+ |[^ ])+")
"""A name in a rule. Only a space ends it: gcc and clang leave form feeds and Unicode's white space as they are."""
CONTINUED = re.compile(rb" ?\\\r?\n")
TARGET = re.compile(rb".*? ?:(?= |$)", re.DOTALL)
"""The target of the first rule. Compilers differ in whether they escape a colon in a name."""


def read_depfile(path: str, folder: str) -> list[str]:
    """Returns the files that a dependency file lists; relative names are relative to `folder`.

    No two programs quote names alike. gcc escapes spaces and tabs; clang escapes spaces, and writes `/` for a
    backslash; some gccs escape colons; bfd, gold and mold escape nothing. So every spelling that is an existing file
    counts: an input too many costs a rebuild at worst. A name without a file is returned too: the file has gone.

    Raises OSError if the list cannot be read or is cut short: GNU as only warns if the disk is full.
    """
    with open(path, "rb") as file:
        content = file.read()
    base, last = os.fsencode(folder), list[bytes]()
    if content.rstrip(b"\r\n").endswith(b"\\"):
        content, last = _last_name(content.rstrip(b"\r\n"), base)
    if not content.endswith(b"\n"):
        raise OSError(errno.ENOSPC, "the list of the files that a compiler read is cut short", path)
    return list(map(os.fsdecode, dict.fromkeys([*parse_depfile(content, base), *last])))


def _last_name(content: bytes, folder: bytes) -> tuple[bytes, list[bytes]]:
    """Returns a list that ends with a backslash without its last name, and the files that this is.

    gcc does not escape a backslash at the end of a name. If it is no file, the list is cut short, and has no line end.
    """
    end = content.rfind(b" ")
    while end > 0 and content[end - 1 : end] == b"\\":
        end = content.rfind(b" ", 0, end)  # an escaped space, which is a part of the name
    files = _files(content[end + 1 :], folder) if end > 0 else []
    return (content[:end] + b"\n", files) if files else (content, [])


def parse_depfile(content: bytes, folder: bytes) -> list[bytes]:
    """Returns the prerequisites of the first rule. Files are looked for relative to `folder`."""
    rules = CONTINUED.sub(b" ", content).split(b"\n")
    target = TARGET.match(rules[0])
    words = WORD.findall(rules[0][target.end() :]) if target else []
    # Linkers, and compilers with -MP, add an empty rule for each file. It has one name, so no space can end it early.
    alone = [rule[:-1] for rule in rules[1:] if rule.endswith(b":")]
    files = [name for word in alone for name in _files(word, folder) or [_unquoted(word)]]
    for word in words:
        named = _files(word, folder) + _split(word, folder)
        is_part = not named and any(word in name for name in alone)
        files += named or ([] if is_part else [_unquoted(word)])
    # A line break in a name looks like the end of the rule. Nothing has this name, so nothing is stored.
    files += [rule for rule in rules[1:] if rule.strip() and not rule.endswith(b":")]
    return list(dict.fromkeys(files))


def _files(word: bytes, folder: bytes) -> list[bytes]:
    """Returns the names of existing files that a word may stand for."""
    unquoted = _unquoted(word)
    candidates = [unquoted, unquoted.replace(b"\\:", b":"), word.replace(b"$$", b"$"), word]
    files = [name for name in dict.fromkeys(candidates) if os.path.isfile(os.path.join(folder, name))]
    return files or _backslashed(unquoted, folder)


def _unquoted(word: bytes) -> bytes:
    """Returns the name that gcc's quoting stands for: backslashes are doubled only before white space."""
    if b"\\" in word:
        word = re.sub(rb"(\\*)\\([ \t])", lambda match: match[1][: len(match[1]) // 2] + match[2], word)
    return word.replace(b"\\#", b"#").replace(b"$$", b"$")


def _split(word: bytes, folder: bytes) -> list[bytes]:
    """Returns the files of a word that is several names; empty if it is one.

    gcc does not escape a backslash at the end of a name, so that the next name seems to be a part of it.
    """
    pieces = word.split(b" ")
    for count in range(1, len(pieces)):
        first, rest = _files(b" ".join(pieces[:count]), folder), b" ".join(pieces[count:])
        if others := first and (_files(rest, folder) or _split(rest, folder)):
            return [*first, *others]
    return []


def _backslashed(name: bytes, folder: bytes) -> list[bytes]:
    """Returns the existing files whose names clang and lld write like this: with `/` in place of each backslash."""
    base = b"/" if name.startswith(b"/") else b""
    paths = _matching(folder, base, name.lstrip(b"/"))
    return [path for path in paths if os.path.isfile(os.path.join(folder, path))]


def _matching(folder: bytes, base: bytes, rest: bytes) -> Iterator[bytes]:
    """Yields the paths below `base` that are `rest` with `/` in place of some backslashes."""
    try:
        names = os.listdir(os.path.join(folder, base))
    except OSError:
        return
    for name in (*names, b"..", b"."):
        written = name.replace(b"\\", b"/")
        if written == rest:
            yield base + name
        elif rest.startswith(written + b"/"):
            yield from _matching(folder, base + name + b"/", rest[len(written) + 1 :].lstrip(b"/"))
