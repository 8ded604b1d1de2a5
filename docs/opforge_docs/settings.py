"""The table of settings in docs/settings.md: `python docs/opforge_docs/settings.py` writes it, a test compares it."""

from __future__ import annotations

import os
import re

from opforge.foundation import settings
from opforge.foundation.settings import TABLE, Setting, kinds

PAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "settings.md")
FIRST = "| variable | key of a file | meaning |\n| -- | -- | -- |\n"
COMPILERS = "| {} |  | the compiler and further flags, as usual; all are part of the key |".format(
    ", ".join(f"`{name}`" for name in ("CXX", *settings.USER_FLAGS))
)


def table() -> str:
    """Returns the table, in Markdown."""
    return FIRST + "\n".join([*map(_row, TABLE.values()), COMPILERS]) + "\n"


def _row(setting: Setting[object]) -> str:
    is_flag = setting.kind in (kinds.FLAG, kinds.LENIENT_FLAG)
    variable = f"`{setting.variable}=1`" if is_flag else f"`{setting.variable}`"
    key = f"`{setting.name}`" if setting.in_files else ""
    also = f" (`{setting.aliases[0]}` if this is unset)" if setting.aliases else ""
    default = f"; by default {setting.default}" if isinstance(setting.default, str) and not is_flag else ""
    shown = "" if default == "; by default " or setting.kind is kinds.BUILDERS else default
    return f"| {variable} | {key} | {setting.meaning}{also}{shown} |"


def main() -> None:
    """Writes the table into the page."""
    with open(PAGE, encoding="utf-8") as file:
        page = file.read()
    start = page.index("| variable |")
    end = start + len(re.match(r"(?:\|.*\n)+", page[start:])[0])
    with open(PAGE, "w", encoding="utf-8") as file:
        file.write(page[:start] + table() + page[end:])


if __name__ == "__main__":
    main()
