"""The ABIs: what each adds to a build, and the versions that it ties the binary to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from opforge.builders.facade import flags as facade
from opforge.cache.records.inputs import RootedPath
from opforge.errors import BuilderError, OpIncompatibleError
from opforge.fast_path.library import FACADE as FACADE
from opforge.fast_path.library import OLDEST_TORCH as OLDEST_TORCH
from opforge.fast_path.library import PLAIN as PLAIN
from opforge.fast_path.library import REGISTER as REGISTER
from opforge.fast_path.library import STABLE as STABLE
from opforge.fast_path.library import TORCH as TORCH
from opforge.fast_path.library import WITH_MODULES as WITH_MODULES
from opforge.fast_path.lookup import INTERFACE as INTERFACE
from opforge.fast_path.machine import python_tag
from opforge.foundation.versions import version_of

from .machine import torch_folder, torch_version

if TYPE_CHECKING:
    from collections.abc import Mapping

ALL = STABLE, PLAIN, TORCH, FACADE
ON_STABLE = STABLE, FACADE
"""The ABIs whose libraries use only torch's stable ABI: one serves every torch from `torch_target` on."""
LOADED_INTERFACES = range(1, INTERFACE + 1)
"""The numbers of the libraries that this opforge loads."""
STABLE_BLOCKS, TORCH_BLOCKS = OF_TORCH = ("OPFORGE_LOADS_STABLE_BLOCKS", ""), ("OPFORGE_LOADS_TORCH_BLOCKS", "")
"""The definitions by which torch's registration macros wait for the loader: see torch/library.h and
torch/csrc/stable/library.h among our headers."""
FACADE_BLOCKS = ("OPFORGE_LOADS_FACADE_BLOCKS", "")
"""The same for the facade's macros: see builders/facade/include/opforge/facade/library.h."""
LOADS = *OF_TORCH, FACADE_BLOCKS
TORCH_HEADERS = "torch-headers"
"""The folder, in that of a build on the facade, of links to the headers of torch that the facade is written on."""


class AbiPart(NamedTuple):
    """The contribution of an ABI to a plan."""

    standard: str
    defines: tuple[tuple[str, str], ...]
    system_include: tuple[RootedPath, ...]
    stubs: tuple[str, ...]
    requires: tuple[tuple[str, str], ...]
    compile_flags: tuple[str, ...] = ("-fvisibility=hidden",)
    """Two versions of a library in one process share no symbol."""
    link_flags: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()
    """Macros of the ABI that no flag of an op or of the user changes."""


def interface_problem(record: Mapping[str, Any], accepted: range = range(INTERFACE, INTERFACE + 1)) -> str | None:
    """Returns why the loader does not take a library by the number of its interface, or None.

    By default only this opforge's own number is accepted, as in the user's store: a build would give no other.
    """
    number = record.get("interface")
    if number in accepted:
        return None
    age = "a newer" if isinstance(number, int) and number >= accepted.stop else "an older"
    return f"it was made by {age} opforge (interface {number}; this one loads {accepted.start} to {accepted.stop - 1})"


def version_constant(op: str, version: str) -> str:
    """Returns TORCH_TARGET_VERSION for "2.10": major and minor each in a byte of its own, in hex."""
    parts = version.split(".") if isinstance(version, str) else []  # the number 2.10 is 2.1
    if len(parts) != 2 or not all(part.isdecimal() and int(part) < 256 for part in parts):
        raise BuilderError(op, f"torch_target={version!r}", 'Expected "MAJOR.MINOR", such as "2.10"')
    if version_of(version) < version_of(OLDEST_TORCH):
        raise BuilderError(op, f"torch_target={version!r}", f"opforge registers ops from torch {OLDEST_TORCH} on")
    return f"0x{int(parts[0]):02x}{int(parts[1]):02x}000000000000"


def check(abi: str, op: str, torch_target: str) -> None:
    """Raises BuilderError for an unknown ABI, or a torch that it cannot be built for."""
    if abi not in ALL:
        raise BuilderError(op, f"abi={abi!r}", f"Expected one of {', '.join(map(repr, ALL))}")
    if abi in ON_STABLE:
        version_constant(op, torch_target)


def requirements(abi: str, op: str) -> tuple[tuple[str, str], ...]:
    """Returns the versions that `abi` ties the binary of `op` to. Raises OpIncompatibleError without torch."""
    if abi != TORCH:
        return ()
    folder = torch_folder()
    if folder is None:
        raise OpIncompatibleError(op, "this environment", ["the `torch` ABI needs torch, and it is not installed"])
    return ("python", python_tag()), ("torch", torch_version(folder))


def part(abi: str, op: str, module: str, torch_target: str) -> AbiPart:
    """Returns the parts of a plan that `abi` adds. Raises BuilderError, and OpIncompatibleError without torch."""
    check(abi, op, torch_target)
    if abi == PLAIN:
        # Its functions are there to be seen; that they see each other, and not another version's, is the linker's part.
        return AbiPart("c++17", (), (), (), (), (), ("-Wl,-Bsymbolic",))
    if abi == STABLE:
        version = version_constant(op, torch_target)
        return AbiPart(
            standard="c++17",
            defines=(("TORCH_TARGET_VERSION", version), ("TORCH_EXTENSION_NAME", module), STABLE_BLOCKS),
            # Python's folder is for sources with an empty module, by which `import` opens the library elsewhere.
            system_include=(RootedPath("torch", "include"), RootedPath("python", "")),
            stubs=("libtorch_cpu.so",),
            requires=(),
        )
    if abi == FACADE:
        # The headers are written on torch's oldest: torch_target says how old a torch may load the library.
        return AbiPart(
            standard=facade.STANDARD,
            defines=(*facade.defines(module), FACADE_BLOCKS),
            system_include=(RootedPath("python", ""),),
            stubs=("libtorch_cpu.so",),
            requires=(),
            compile_flags=(*facade.HIDDEN, "-isystem", TORCH_HEADERS),
            fixed=facade.OF_OLDEST,
        )
    return AbiPart(
        standard="c++20",
        defines=(("TORCH_API_INCLUDE_EXTENSION_H", ""), ("TORCH_EXTENSION_NAME", module), *OF_TORCH),
        system_include=(
            RootedPath("torch", "include"),
            RootedPath("torch", "include/torch/csrc/api/include"),
            RootedPath("python", ""),
        ),
        stubs=("libc10.so", "libtorch_cpu.so", "libtorch.so", "libtorch_python.so"),
        requires=requirements(abi, op),
    )
