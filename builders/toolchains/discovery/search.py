"""The folders that a compiler searches by itself, from its own output.

A folder's name may hold what str.splitlines and str.strip count as white space, such as U+2028.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable
from contextlib import suppress

MARK = os.path.dirname(os.path.realpath(__file__))
"""A folder that is passed as -isystem when a compiler prints its folders: it is searched after those of -I."""
MISSING = re.compile(r'^ignoring nonexistent directory "(.+)"$', re.MULTILINE)


def header_folders(report: str) -> list[str]:
    """Returns the folders of headers, in order, from what a compiler prints with -v. MARK is none of them."""
    folders, inside = [], False
    for line in report.split("\n"):
        if line.startswith("#include <...>"):
            inside = True
        elif line.startswith("End of search list"):
            break
        elif inside:
            folders.append(os.path.realpath(line.removeprefix(" ").removesuffix(" (framework directory)")))
    return [folder for folder in folders if folder != MARK]


def first_folders(report: str) -> list[str]:
    """Returns the folders of headers that come before MARK: an op's own header may be looked for there first.

    A wrapper has added them, a file of flags, or CXX itself: `mpicxx` searches MPI's headers before all others.
    """
    before, mark, _after = report.partition(f"\n {MARK}\n")
    return header_folders(before) if mark else []


def missing_folders(report: str) -> list[str]:
    """Returns the folders of headers that would be searched if they were there."""
    return [os.path.normpath(path) for path in MISSING.findall(report) if os.path.isabs(path)]


def library_folders(report: str) -> list[str]:
    """Returns the folders of libraries, in order, from what a compiler prints with -print-search-dirs.

    Each is there as the linker names what it finds in it, and without links: a merged /usr has two spellings.
    """
    line = next((line for line in report.split("\n") if line.startswith("libraries: =")), "")
    return _spellings(filter(os.path.isdir, line.partition("=")[2].split(os.pathsep)))


def linked_folders(commands: Iterable[str]) -> list[str]:
    """Returns the folders of libraries that the commands of a wrapper name, in order.

    `mpicxx` adds MPI's folder before the compiler's own, and -print-search-dirs does not tell. Those that are not
    there are returned too: one that appears is searched.
    """
    words = list[str]()
    for command in commands:
        with suppress(ValueError):  # an open quote: none of the compilers that print commands so
            words += shlex.split(command)
    return _spellings(word[2:] for word in words if word.startswith("-L/"))


def _spellings(folders: Iterable[str]) -> list[str]:
    spellings = [(os.path.abspath(folder), os.path.realpath(folder)) for folder in folders]
    return list(dict.fromkeys(path for pair in spellings for path in pair))
