"""The folders that a compiler searches by itself, from what it prints about them.

A folder's name may hold what str.splitlines and str.strip count as white space, such as U+2028.
"""

from __future__ import annotations

import os


def header_folders(report: str) -> list[str]:
    """Returns the folders of headers, in order, from what a compiler prints with -v."""
    folders, inside = [], False
    for line in report.split("\n"):
        if line.startswith("#include <...>"):
            inside = True
        elif line.startswith("End of search list"):
            break
        elif inside:
            folders.append(os.path.realpath(line.removeprefix(" ").removesuffix(" (framework directory)")))
    return folders


def library_folders(report: str) -> list[str]:
    """Returns the folders of libraries, in order, from what a compiler prints with -print-search-dirs.

    Each is there as the linker names what it finds in it, and without links: a merged /usr has two spellings.
    """
    line = next((line for line in report.split("\n") if line.startswith("libraries: =")), "")
    folders = filter(os.path.isdir, line.partition("=")[2].split(os.pathsep))
    spellings = [(os.path.abspath(folder), os.path.realpath(folder)) for folder in folders]
    return list(dict.fromkeys(path for pair in spellings for path in pair))
