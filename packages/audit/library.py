"""Checks the library of a package: its needs from other libraries, and defects that make it unsafe to map."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from opforge.builders.declaration.abi import FACADE, ON_STABLE
from opforge.builders.declaration.machine import torch_folder
from opforge.builders.inspection import elf, elf_file, shims
from opforge.builders.inspection.elf_file import ElfFile
from opforge.builders.inspection.reader import FileFormatError, Reader
from opforge.foundation.files import read_file
from opforge.foundation.versions import version_of

from . import python_abi

TORCH_CXX = re.compile(r"_Z[A-Z]*?N?K?(?:3c10|2at|5torch(?!6stable|10headeronly))")
"""The beginning of a mangled name in torch's own namespaces: those of its stable interface are templates, and defined
in the library."""
SYSTEM = re.compile(r"(?:libc|libm|libdl|libpthread|librt|libgcc_s|libstdc\+\+|ld-linux-[a-z0-9_-]+)\.so(?:\.\d+)*")
RUNTIMES = re.compile(
    r"(?:libc10\w*|libtorch\w*|libcuda|libcudart|libnvrtc|libnvJitLink|libcu(?:blas|blasLt|fft|rand|solver|sparse)"
    r"|libnccl|libamdhip64|libhsa-runtime64|libhiprtc|lib(?:roc|hip)(?:blas|blaslt|fft|rand|solver|sparse)|librccl"
    r"|libsycl|libze_loader|libOpenCL|libascendcl|libnrt)\.so(?:\.\d+)*"
)
"""The libraries that torch brings, or the runtime of the device's vendor."""
AT_ONCE = ("_ZN3c1017RegisterOperators", "_ZNO3c1017RegisterOperators")
"""Symbols of code that registers ops when the library is opened, under the name in its source."""
BLOCKS = ("_ZN5torch7LibraryC", "aoti_torch_library_init_")
"""Symbols that do the same, except in a library that opforge has built."""
REGISTER = "opforge_register"
MAX_NAMED = 8


def problems(path: str, abi: str, torch_target: str, allowed: Collection[str] = ()) -> list[str]:
    """Returns the problems of a library that claims this ABI, one line each.

    `torch_target` is the oldest torch that it claims to load under; `allowed` are further libraries that it may need.
    Raises OSError.
    """
    try:
        file = ElfFile(Reader(read_file(path, elf.MAX_BYTES), path))
        return _problems(file, abi, torch_target, allowed)
    except (FileFormatError, ValueError) as error:
        return [f"its library cannot be read: {error}"]


def _problems(file: ElfFile, abi: str, torch_target: str, allowed: Collection[str]) -> list[str]:
    if ".dynsym" not in file.sections or ".dynamic" not in file.sections:
        return ["its library has no table of sections, so what it needs cannot be read"]
    undefined = elf.undefined(file.symbols(".dynsym"))
    lines = [*_mapping_problems(file), *_needed_problems(file.needed(), allowed)]
    lines += _namespace_problems(file, undefined)
    if abi in ON_STABLE:
        lines += _stable_problems(undefined, elf.undefined(file.symbols(".dynsym"), and_weak=False), torch_target)
    oldest = python_abi.OLDEST_ON_FACADE if abi == FACADE else python_abi.OLDEST
    return lines + python_abi.problems(undefined, oldest)


def _mapping_problems(file: ElfFile) -> list[str]:
    lines, tags = [], file.dynamic()
    for tag, name in ((elf_file.RPATH, "RPATH"), (elf_file.RUNPATH, "RUNPATH")):
        if any(tag == other for other, _value in tags):
            folders = f"its library has a {name} ({':'.join(file.search_path())}): where it is loaded, "
            advice = "Link it without -rpath, which LDFLAGS may hold: an environment of conda's compilers sets it"
            lines.append(f"{folders}that folder may be anybody's. {advice}")
    flags = next((value for tag, value in tags if tag == elf_file.FLAGS), 0)
    if any(tag == elf_file.TEXTREL for tag, _value in tags) or flags & elf_file.TEXTREL_FLAG:
        lines.append("its library has relocations in its code: compile with -fPIC")
    stacks = [flag for kind, flag in file.segments() if kind == elf_file.STACK]
    if not stacks or any(flag & elf_file.EXECUTABLE for flag in stacks):
        lines.append("its library asks for an executable stack: link with -z noexecstack")
    return lines


def _namespace_problems(file: ElfFile, undefined: Sequence[str]) -> list[str]:
    is_ours = any(
        symbol.name == REGISTER and symbol.section != elf_file.UNDEFINED for symbol in file.symbols(".dynsym")
    )
    names = [name for name in undefined if name.startswith(AT_ONCE if is_ours else AT_ONCE + BLOCKS)]
    if not names:
        return []
    problem = "its library registers ops when it is opened, in namespaces that another package may define"
    return [f"{problem} ({_listed(names)}): register them with STABLE_TORCH_LIBRARY or TORCH_LIBRARY alone"]


def _needed_problems(needed: Sequence[str], allowed: Collection[str]) -> list[str]:
    lines = []
    for name in needed:
        if not (SYSTEM.fullmatch(name) or RUNTIMES.fullmatch(name) or name in allowed):
            problem = f"its library needs {name}, which other machines may not have"
            lines.append(f"{problem}: link it statically, or name it in allow-libraries")
    return lines


def _stable_problems(undefined: Sequence[str], required: Sequence[str], torch_target: str) -> list[str]:
    lines, unstable = [], [name for name in undefined if TORCH_CXX.match(name)]
    if unstable:
        lines.append(f"it claims torch's stable ABI and uses torch's C++ functions: {_listed(unstable)}")
    folder = torch_folder()
    added = shims.versions(folder) if folder else {}
    if newer := [name for name in required if version_of(added.get(name, "0")) > version_of(torch_target)]:
        since = max((added[name] for name in newer), key=version_of)
        lines.append(f"it claims torch {torch_target} and calls what torch has from {since} on: {_listed(newer)}")
    return lines


def _listed(names: Sequence[str]) -> str:
    shown = sorted(names)[:MAX_NAMED]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return ", ".join(shown) + more
