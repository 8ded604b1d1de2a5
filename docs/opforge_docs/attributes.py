"""The table of attributes in docs/builders.md: `python docs/opforge_docs/attributes.py` writes it.

A test compares it.
"""

from __future__ import annotations

import os
import re

from opforge.builders.declaration.attributes import ATTRIBUTES, INLINE, LOAD, TOML, Attribute

PAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "builders.md")
FIRST = "| attribute | meaning | such as | by device | argument of `opforge.load` | in kernel.toml |\n"
FIRST += "| -- | -- | -- | -- | -- | -- |\n"


def table() -> str:
    """Returns the table, in Markdown."""
    return FIRST + "\n".join(map(_row, ATTRIBUTES.values())) + "\n"


def _row(row: Attribute) -> str:
    is_positional = row.name in ("name", "sources")
    keyword = f"`{row.name}`" if LOAD in row.places or is_positional else ""
    if LOAD in row.places and INLINE not in row.places:
        keyword += ", not of `load_inline`"
    also = "".join(f", `{argument}`" for argument in row.of_torch)
    key = f"`{row.name.replace('_', '-')}`" if TOML in row.places else ""
    cells = f"`{row.name}`", row.text, f"`{row.example}`", "yes" if row.by_device else "", keyword + also, key
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Writes the table into the page."""
    with open(PAGE, encoding="utf-8") as file:
        page = file.read()
    start = page.index("| attribute |")
    end = start + len(re.match(r"(?:\|.*\n)+", page[start:])[0])
    with open(PAGE, "w", encoding="utf-8") as file:
        file.write(page[:start] + table() + page[end:])


if __name__ == "__main__":
    main()
