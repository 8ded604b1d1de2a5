"""The matrix of commands and kinds in docs/reference/commands.md: `python docs/opforge_docs/kinds.py` writes it."""

from __future__ import annotations

import os
import re

from opforge.cli.kinds import of
from opforge.cli.verbs import FILES, WITHOUT_MEANING, WITHOUT_NAMES, without_meaning
from opforge.remote.kind_table import KINDS

PAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "reference", "commands.md")
BEGIN = "| `opforge` |"


def table() -> str:
    """Returns the table, in Markdown."""
    rows = [["`opforge`", "by name", *(f"`{kind}`" for kind in KINDS)], ["--"] * (len(KINDS) + 2)]
    for verb in WITHOUT_MEANING:
        reasons = [WITHOUT_NAMES.get(verb, ""), *(without_meaning(verb, kind) for kind in KINDS)]
        rows.append([f"`{verb}`", *(f"no: {reason}" if reason else "yes" for reason in reasons)])
    rows.append(["without a signature", "-", *map(_unsigned, KINDS)])
    rows.append(["a topic keeps", "-", *("-" if kind in FILES else of(kind).merge.name for kind in KINDS)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _unsigned(kind: str) -> str:
    if kind in FILES:
        return "-"
    return "no" if of(kind).unsigned else "if the URL has `unsigned=1`"


def main() -> None:
    """Writes the table into the page."""
    with open(PAGE, encoding="utf-8") as file:
        page = file.read()
    start = page.index(BEGIN)
    found = re.match(r"(?:\|.*\n)+", page[start:])
    assert found
    with open(PAGE, "w", encoding="utf-8") as file:
        file.write(page[:start] + table() + page[start + len(found[0]) :])


if __name__ == "__main__":
    main()
