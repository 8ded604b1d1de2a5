"""Makes reStructuredText of docstrings, which are plain text with Google's sections. It runs before napoleon."""

from __future__ import annotations

from typing import Any

from sphinx.application import Sphinx

ATTRIBUTES = ("attribute", "data", "property")


def prepare(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Changes the lines of a docstring in place. Sphinx calls it for each."""
    lines[:] = marked_examples(lines)
    if what in ATTRIBUTES:
        lines[:0] = ["..", ""]  # an empty comment: napoleon takes the words before a first line's colon for the type


def marked_examples(lines: list[str]) -> list[str]:
    """Returns the lines with `::` before each indented block that follows a blank line: it is code.

    A block whose paragraph already ends with `::` is left as it is.
    """
    marked: list[str] = []
    for number, line in enumerate(lines):
        before = [text for text in lines[:number] if text.strip()]
        is_example = line.startswith("    ") and number > 0 and not lines[number - 1].strip()
        if is_example and before and not before[-1].startswith(" ") and not before[-1].endswith("::"):
            marked += ["::", ""]
        marked.append(line)
    return marked
