"""What a built library says of itself: what it exports, what it needs, and the oldest system that can load it."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

VERSION = re.compile(r"^(GLIBC|GLIBCXX|CXXABI)_(\d+(?:\.\d+)*)$")


def import_elftools() -> None:
    """Import what `read_library` needs. While the compilers work there is time for it; afterwards somebody waits."""
    with suppress(OSError):  # it may find no more files to open; `read_library` then says so where it is heard
        import elftools.elf.elffile  # noqa: F401


def read_library(path: str) -> dict[str, Any]:
    """exports, needs (sonames), floors (GLIBC, GLIBCXX, CXXABI: the newest version that a symbol asks for), shims (the
    functions of torch's C interface that it calls).

    Raises ValueError where the file is no ELF library.
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
        raise ValueError(f"{path} is no ELF library: {error}") from error


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
    missing = (one.name for one in (table.iter_symbols() if table else ()) if one["st_shndx"] == "SHN_UNDEF")
    return sorted(name for name in missing if name.startswith(("aoti_torch_", "torch_")))


def _needs(elf: Any) -> list[str]:
    dynamic = elf.get_section_by_name(".dynamic")
    return [tag.needed for tag in dynamic.iter_tags("DT_NEEDED")] if dynamic else []


def _floors(elf: Any) -> dict[str, str]:
    newest: dict[str, str] = {}
    section = elf.get_section_by_name(".gnu.version_r")
    for _library, versions in section.iter_versions() if section else ():
        for version in versions:
            found = VERSION.match(version.name)
            if found and _order(found[2]) > _order(newest.get(found[1], "0")):
                newest[found[1]] = found[2]
    return dict(sorted(newest.items()))


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
