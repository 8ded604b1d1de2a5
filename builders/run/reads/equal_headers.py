"""The headers that gcc took for others, and so does not list.

With `#pragma once` or `#import`, gcc skips a file whose content, size and second of change are those of one that it has
read. A later change of the skipped file is a change of the outcome. torch has ten of them.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator, Sequence

from .questions import content_of

DIRECTIVE = re.compile(rb"^[ \t]*(?:#|%:)[ \t]*(?:include(?:_next)?|import|define)\b(.*)$", re.MULTILINE)
"""The lines that may name a header; a macro may hold the name."""
NAME = re.compile(rb'<([^>\n]+)>|"([^"\n]+)"')
AFTER_INCLUDE = re.compile(rb"(?:_next)?[ \t]*(?:" + NAME.pattern + rb")")
COMPUTED = re.compile(rb"^[ \t]*(?:#|%:)[ \t]*(?:include(?:_next)?|import)\b[ \t]*[A-Za-z_]", re.MULTILINE)
"""A directive in which a macro stands for the name, which it may put together."""
MAX_FILES = 5000
"""How many files are compared for such directives."""
Stamp = tuple[int, int]
"""A file's size and second of change: gcc compares the content of files only if these are equal."""


def unlisted(paths: Iterable[str], own: Collection[str], words: Sequence[str], folders: Sequence[str]) -> set[str]:
    """Returns the files that an #include may name, and that are equal to a listed file without being listed.

    Whether the directive is reached is not checked: an input too many costs a rebuild at worst.

    Args:
        paths: The files that the compiler listed.
        own: Those of them that belong to no package: they are searched more closely.
        words: The command, whose definitions may name headers too.
        folders: The folders that are searched, in order.
    """
    listed = set(map(os.path.normpath, paths))
    defined = b"\n".join(os.fsencode(word) for word in words if word.startswith("-D"))
    named = {name for match in NAME.finditer(defined) for name in match.groups() if name}
    beside = set[tuple[str, bytes]]()
    for path in listed:
        text = content_of(path)
        for match in _names(text) if path in own else _included_names(text):
            named.add(match[1] or match[2])
            if match[2]:
                beside.add((os.path.dirname(path), match[2]))
    places = [[os.path.join(folder, os.fsdecode(name))] for folder, name in beside]
    bases = [*dict.fromkeys(folder.rstrip("/") for folder in folders)]
    places += [[f"{base}/{name}" for base in bases] for name in map(os.fsdecode, named)]
    candidates = {path: stamp for place in places for path, stamp in _before_listed(place, listed)}
    if any(COMPUTED.search(content_of(path)) for path in own):
        for path in _files_around(own, bases):
            if path not in listed and (stamp := _stamp(path)):
                candidates[path] = stamp
    if not candidates:
        return set()
    originals: dict[Stamp | None, list[str]] = {}
    for path in listed:
        originals.setdefault(_stamp(path), []).append(path)
    alike = {path: originals[stamp] for path, stamp in candidates.items() if stamp in originals}
    return {path for path, others in alike.items() if content_of(path) in map(content_of, others)}


def _files_around(own: Collection[str], bases: Iterable[str]) -> Iterator[str]:
    """Yields the files in the folders of the op's own files, and in the searched folders above them; not too many."""
    above = {base for base in bases if any(path.startswith(f"{base}/") for path in own)}
    count = 0
    for top in sorted({*map(os.path.dirname, own), *above}):
        for folder, _folders, names in os.walk(top):
            yield from (os.path.normpath(os.path.join(folder, name)) for name in names)
            count += len(names)
            if count > MAX_FILES:
                return


def _names(text: bytes) -> Iterator[re.Match[bytes]]:
    return NAME.finditer(b"\n".join(DIRECTIVE.findall(text)))


def _included_names(text: bytes) -> Iterator[re.Match[bytes]]:
    """Yields the names behind the word `include`: in thousands of headers ten times as fast as by directives."""
    return filter(None, map(AFTER_INCLUDE.match, text.split(b"include")[1:]))


def _before_listed(paths: Sequence[str], listed: Collection[str]) -> Iterator[tuple[str, Stamp]]:
    """Yields the files, with their stamps, up to the first that is listed: no later one is looked for."""
    for path in paths:
        if "/." in path or "//" in path:
            path = os.path.normpath(path)
        if path in listed:
            return
        if stamp := _stamp(path):
            yield path, stamp


def _stamp(path: str) -> Stamp | None:
    """Returns the facts of a file that gcc compares before its content; None if there is no such file."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return (status.st_size, int(status.st_mtime)) if stat.S_ISREG(status.st_mode) else None
