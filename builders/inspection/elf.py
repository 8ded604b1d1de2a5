"""Reads what a built library exports, what it needs, and the oldest system that can load it."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

VERSION = re.compile(r"^(GLIBC|GLIBCXX|CXXABI)_(\d+(?:\.\d+)*)$")


def import_elftools() -> None:
    """Imports what `read_library` needs: in a thread while the compilers run, so that it costs no time afterwards."""
    with suppress(OSError):  # if no more files can be opened, `read_library` reports it
        import elftools.elf.elffile  # noqa: F401


def read_library(path: str) -> dict[str, Any]:
    """Returns what a library exports and needs, JSON-able. Raises ValueError if the file is not an ELF library.

    `machine`; `exports`: names of functions; `needs`: sonames; `floors`: GLIBC, GLIBCXX and CXXABI with the newest
    version that a symbol needs; `shims`: the functions of torch's C interface that it calls.
    """
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    try:
        with open(path, "rb") as file:
            elf = ELFFile(file)
            return {
                "machine": elf["e_machine"].removeprefix("EM_").lower(),
                "exports": _exports(elf),
                "needs": _needs(elf),
                "floors": _floors(elf),
                "shims": _shims(elf),
            }
    except ELFError as error:
        raise ValueError(f"{path} is not an ELF library: {error}") from error


def _exports(elf: Any) -> list[str]:
    table = elf.get_section_by_name(".dynsym")
    return sorted(
        symbol.name
        for symbol in (table.iter_symbols() if table else ())
        if symbol["st_shndx"] != "SHN_UNDEF"
        and symbol["st_info"]["bind"] in ("STB_GLOBAL", "STB_WEAK")
        and symbol["st_info"]["type"] == "STT_FUNC"
        and symbol["st_other"]["visibility"] == "STV_DEFAULT"
        and not symbol.name.startswith("_Z")
    )


def _shims(elf: Any) -> list[str]:
    table = elf.get_section_by_name(".dynsym")
    symbols = table.iter_symbols() if table else ()
    undefined = (symbol.name for symbol in symbols if symbol["st_shndx"] == "SHN_UNDEF")
    return sorted(name for name in undefined if name.startswith(("aoti_torch_", "torch_")))


def _needs(elf: Any) -> list[str]:
    dynamic = elf.get_section_by_name(".dynamic")
    return [tag.needed for tag in dynamic.iter_tags("DT_NEEDED")] if dynamic else []


def _floors(elf: Any) -> dict[str, str]:
    newest: dict[str, str] = {}
    section = elf.get_section_by_name(".gnu.version_r")
    for _library, versions in section.iter_versions() if section else ():
        for version in versions:
            match = VERSION.match(version.name)
            if match and _order(match[2]) > _order(newest.get(match[1], "0")):
                newest[match[1]] = match[2]
    return dict(sorted(newest.items()))


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
