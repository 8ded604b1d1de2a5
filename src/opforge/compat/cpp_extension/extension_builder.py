"""From a setuptools Extension, as CppExtension and CUDAExtension make it, to an opforge builder."""

from __future__ import annotations

import importlib
import os
import sysconfig
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from opforge.accelerator.host.cpuinfo import read_cpuinfo
from opforge.accelerator.target import Target
from opforge.builders.base import OpBuilder
from opforge.builders.spec import abi as abis
from opforge.builders.spec.installed_torch import torch_folder

from . import nvcc_flags

if TYPE_CHECKING:
    from opforge.builders.spec.op_spec import OpSpec

SUFFIXES = (".cpp", ".cc", ".cxx", ".c++", ".C")


def refusal(ext: Any) -> str:
    """Why the extension is not opforge's to build, or nothing."""
    others = [source for source in ext.sources if not source.endswith((*SUFFIXES, nvcc_flags.SUFFIX))]
    if others:
        return f"{others[0]} is no C++ or CUDA source ({', '.join((*SUFFIXES, nvcc_flags.SUFFIX))})"
    if "torch" not in ext.libraries:
        return "it does not link with torch"
    if isinstance(ext.extra_compile_args, dict) and "nvcc_dlink" in ext.extra_compile_args:
        return "its device code is linked by itself (dlink)"
    return ""


class ExtensionBuilder(OpBuilder):
    """The builder of one extension. What it builds is shipped: it names the torch libraries that torch would, and its
    ops are registered by whoever opens it."""

    abi = abis.TORCH
    torch_libraries: ClassVar[tuple[str, ...]] = ()

    def spec(self) -> OpSpec:
        """Returns the declaration, with the extension's own choice of torch's libraries."""
        return super().spec()._replace(extension_libraries=self.torch_libraries)


def builder_of(ext: Any, command: Any) -> ExtensionBuilder:
    """The builder of `ext` as the running `build_ext` command would compile it. Raises BuilderError."""
    torch = torch_folder() or ""
    own = os.path.join(torch, "lib")
    linked = {name: os.path.exists(os.path.join(own, f"lib{name}.so")) for name in ext.libraries}
    given, for_nvcc = _given(ext, "cxx"), _given(ext, "nvcc")
    macros = _macros([*command.compiler.macros, *ext.define_macros, *((name,) for name in ext.undef_macros)])
    target: Target | str = _baseline()
    attributes: dict[str, Any] = {
        "name": ext.name.rpartition(".")[2],
        "folder": os.path.realpath(os.getcwd()),
        "sources": tuple(ext.sources),
        "include_dirs": _folders([*ext.include_dirs, *command.include_dirs], [os.path.join(torch, "include")]),
        "extra_compile_args": (
            "-fvisibility=default",  # others may link with what is shipped, as they can with what torch builds
            *_compiler_flags(command.compiler),
            *macros,
            *given,
        ),
        "extra_link_args": (
            *(f"-L{folder}" for folder in _folders([*ext.library_dirs, *command.library_dirs], [own])),
            *(f"-Wl,-rpath,{folder}" for folder in ext.runtime_library_dirs),
            *(os.path.abspath(path) for path in ext.extra_objects),
            *ext.extra_link_args,
        ),
        "libraries": tuple(name for name, of_torch in linked.items() if not of_torch),
        "torch_libraries": tuple(f"lib{name}.so" for name, of_torch in linked.items() if of_torch),
        "__module__": __name__,
    }
    if any(source.endswith(nvcc_flags.SUFFIX) for source in ext.sources):
        flags, codes = nvcc_flags.without_architectures(ext.name, for_nvcc)
        theirs: Any = importlib.import_module("torch.utils.cpp_extension")
        target = Target("cuda", codes)
        toolkit = os.path.join(theirs.CUDA_HOME or "", "include")
        attributes |= {
            "devices": ("cuda",),
            "extra_compile_args": {
                "cxx": attributes["extra_compile_args"],
                "cuda": ("-Xcompiler=-fvisibility=default", *macros, *theirs.COMMON_NVCC_FLAGS, *flags),
            },
            # The runtime is linked in and the toolkit's headers are nvcc's to bring, for the host's sources too.
            "libraries": tuple(name for name in attributes["libraries"] if name != "cudart"),
            "include_dirs": tuple(one for one in attributes["include_dirs"] if one != os.path.realpath(toolkit)),
        }
    debug = bool(command.debug) or any(map(_asks_for_debugging, [*given, *for_nvcc]))
    builder: ExtensionBuilder = type("SetupExtensionBuilder", (ExtensionBuilder,), attributes)(target, debug=debug)
    return builder


def _given(ext: Any, compiler: str) -> list[str]:
    """The extension's own flags for a compiler: they are a dict by compiler, or a list for all."""
    given = ext.extra_compile_args
    return list(given.get(compiler, ()) if isinstance(given, dict) else given)


def _asks_for_debugging(flag: str) -> bool:
    return flag.startswith("-g") and flag != "-g0" and not flag.startswith(nvcc_flags.GENERATE)


def _baseline() -> str:
    """The oldest processor of this machine's kind, which is what compilers and torch build for: wheels travel."""
    level = read_cpuinfo("/").level
    return f"cpu:{level.partition('-v')[0]}" if level else "cpu"


def _compiler_flags(compiler: Any) -> list[str]:
    """The flags that Python was built with and those of CFLAGS, such as -DNDEBUG, but for debugging."""
    words = [str(word) for word in compiler.compiler_so]
    first = next((number for number, word in enumerate(words) if word.startswith("-")), len(words))
    return [word for word in words[first:] if not word.startswith("-g")]


def _macros(macros: Iterable[tuple[Any, ...]]) -> list[str]:
    flags = []
    for name, *value in macros:
        if not value:
            flags.append(f"-U{name}")
        else:
            flags.append(f"-D{name}" if value[0] is None else f"-D{name}={value[0]}")
    return flags


def _folders(folders: Iterable[str], known: Iterable[str]) -> tuple[str, ...]:
    """The existing folders once each, without Python's and those in `known`, which a builder brings itself."""
    skipped = [os.path.realpath(path) for path in (*known, sysconfig.get_path("include"))]
    found = dict.fromkeys(os.path.realpath(folder) for folder in folders if os.path.isdir(folder))
    return tuple(one for one in found if not any(f"{one}/".startswith(f"{path}/") for path in skipped))
