"""The headers that gcc took for others, and so does not list.

With `#pragma once` or `#import`, gcc skips a file whose content, size and second of change are those of one that it has
read. A later change of the skipped file is a change of the outcome.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Sequence

from .questions import content_of

DIRECTIVE = re.compile(rb"^[ \t]*(?:#|%:)[ \t]*(?:include(?:_next)?|import|define)\b(.*)$", re.MULTILINE)
"""The lines that may name a header; a macro may hold the name."""
NAME = re.compile(rb'<([^>\n]+)>|"([^"\n]+)"')
Stamp = tuple[int, int]
"""A file's size and second of change: gcc compares the content of files only if these are equal."""


def unlisted(listed: Iterable[str], own: Iterable[str], words: Sequence[str], folders: Sequence[str]) -> set[str]:
    """Returns the files that an #include may name, and that are equal to a listed file without being listed.

    Whether the directive is reached is not checked: an input too many costs a rebuild at worst.

    Args:
        listed: The files that the compiler listed.
        own: Those whose directives are looked at.
        words: The command, whose definitions may name headers too.
        folders: The folders that are searched.
    """
    listed = {os.path.normpath(path) for path in listed}
    named = {path for source in own for path in _named(source, words, folders)} - listed
    candidates = {path: stamp for path in named if (stamp := _stamp(path))}
    if not candidates:
        return set()
    originals: dict[Stamp | None, list[str]] = {}
    for path in listed:
        originals.setdefault(_stamp(path), []).append(path)
    return {
        path
        for path, stamp in candidates.items()
        if any(content_of(path) == content_of(original) for original in originals.get(stamp, ()))
    }


def _named(source: str, words: Sequence[str], folders: Sequence[str]) -> set[str]:
    """Returns the paths at which the headers that a file names may be."""
    defined = [os.fsencode(word) for word in words if word.startswith("-D")]
    lines = b"\n".join([*DIRECTIVE.findall(content_of(source)), *defined])
    names = {os.fsdecode(match[1] or match[2]) for match in NAME.finditer(lines)}
    bases = dict.fromkeys((os.path.dirname(source), *folders))
    return {os.path.normpath(os.path.join(base, name)) for name in names for base in bases}


def _stamp(path: str) -> Stamp | None:
    """Returns what gcc compares before the content; None if there is no such file."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return (status.st_size, int(status.st_mtime)) if stat.S_ISREG(status.st_mode) else None
