"""Makes an opforge builder of a setuptools Extension that CppExtension or CUDAExtension created."""

from __future__ import annotations

import importlib
import os
import sysconfig
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from opforge.accelerator.host.cpuinfo import read_cpuinfo
from opforge.accelerator.target import Target
from opforge.builders.base import OpBuilder
from opforge.builders.declaration import abi as abis
from opforge.builders.declaration import machine

from . import nvcc_flags, prepared_link

if TYPE_CHECKING:
    from opforge.builders.declaration.op_spec import OpSpec

VISIBLE = "-fvisibility=default"
SUFFIXES = (".cpp", ".cc", ".cxx", ".c++", ".C")


def extension_problem(ext: Any) -> str | None:
    """Returns why opforge cannot build the extension; None if it can."""
    supported = (*SUFFIXES, nvcc_flags.SUFFIX)
    others = [source for source in ext.sources if not source.endswith(supported)]
    if others:
        return f"{others[0]} is not a C++ or CUDA source ({', '.join(supported)})"
    if "torch" not in ext.libraries:
        return "it does not link with torch"
    if isinstance(ext.extra_compile_args, dict) and "nvcc_dlink" in ext.extra_compile_args:
        return "its device code is linked separately (dlink)"
    return None


class ExtensionBuilder(OpBuilder):
    """The builder of one extension, whose library is shipped.

    The library needs the torch libraries that torch's command would link, and it registers its ops when it is opened,
    whether opforge or another program opens it.
    """

    abi = abis.TORCH
    torch_libraries: ClassVar[tuple[str, ...]] = ()

    def spec(self) -> OpSpec:
        """Returns the declaration, with the extension's own choice of torch's libraries."""
        return super().spec()._replace(extension_libraries=self.torch_libraries)


def builder_for(ext: Any, command: Any) -> ExtensionBuilder:
    """Returns a builder that compiles and links `ext` as the running `build_ext` command would.

    Raises BuilderError for what no builder can express.
    """
    attributes, macros, own_nvcc_flags, debug = _attributes(ext, command)
    target: Target | str = _baseline_target()
    if any(source.endswith(nvcc_flags.SUFFIX) for source in ext.sources):
        device_flags, codes = nvcc_flags.without_architectures(ext.name, own_nvcc_flags)
        target = Target("cuda", codes)
        attributes |= _cuda_attributes(attributes, macros, device_flags)
    builder: ExtensionBuilder = type("SetupExtensionBuilder", (ExtensionBuilder,), attributes)(target, debug=debug)
    return builder


class FacadeBuilder(ExtensionBuilder):
    """The builder of an extension on the facade. Of torch's libraries its own names that of the C interface alone."""

    abi = abis.FACADE
    torch_libraries = ("libtorch_cpu.so",)


def facade_problem(ext: Any) -> str | None:
    """Returns why the facade cannot build an extension that links with torch; None if it can."""
    if any(source.endswith(nvcc_flags.SUFFIX) for source in ext.sources):
        return "the facade has no headers for CUDA yet"
    return extension_problem(ext)


def facade_builder_for(ext: Any, command: Any) -> FacadeBuilder:
    """Returns a builder that compiles `ext` on the facade, and links it as the running `build_ext` command would.

    Raises BuilderError for what no builder can express.
    """
    attributes, _macros, _nvcc_flags, debug = _attributes(ext, command)
    first, *own = attributes["extra_compile_args"]
    attributes["torch_libraries"] = FacadeBuilder.torch_libraries
    attributes["extra_compile_args"] = tuple(own) if first == VISIBLE else (first, *own)
    builder: FacadeBuilder = type("SetupFacadeBuilder", (FacadeBuilder,), attributes)(_baseline_target(), debug=debug)
    return builder


def _attributes(ext: Any, command: Any) -> tuple[dict[str, Any], list[str], list[str], bool]:
    """Returns a builder's attributes; of the extension its macros, its flags for nvcc, and whether it is debugged."""
    torch = machine.torch_folder() or ""
    link = prepared_link.of(ext, command, os.path.join(torch, "lib"))
    cxx_flags, own_nvcc_flags = _own_flags(ext, "cxx"), _own_flags(ext, "nvcc")
    undefined = [(name,) for name in ext.undef_macros]
    _folder, defined, folders = command.compiler._fix_compile_args(
        None, [*ext.define_macros, *undefined], list(ext.include_dirs)
    )
    macros = _macro_flags(defined)
    attributes: dict[str, Any] = {
        "name": ext.name.rpartition(".")[2],
        "folder": os.path.realpath(os.getcwd()),
        "sources": tuple(ext.sources),
        "include_dirs": _existing(folders, [os.path.join(torch, "include")]),
        "extra_compile_args": (
            VISIBLE,  # other libraries may link with the extension, as with torch's own build of it
            *_python_flags(command),
            *macros,
            *cxx_flags,
        ),
        "extra_link_args": link.words,
        "torch_libraries": link.torch_libraries,
        "__module__": __name__,
    }
    debug = bool(command.debug) or any(map(_requests_debugging, [*cxx_flags, *own_nvcc_flags]))
    return attributes, macros, own_nvcc_flags, debug


def _cuda_attributes(
    attributes: Mapping[str, Any], macros: Iterable[str], device_flags: Iterable[str]
) -> dict[str, Any]:
    """Returns the attributes that an extension with CUDA sources adds or changes."""
    torch_extension: Any = importlib.import_module("torch.utils.cpp_extension")
    common_flags = torch_extension.COMMON_NVCC_FLAGS
    toolkit_include = os.path.realpath(os.path.join(torch_extension.CUDA_HOME or "", "include"))
    return {
        "devices": ("cuda",),
        "extra_compile_args": {
            "cxx": attributes["extra_compile_args"],
            "cuda": ("-Xcompiler=-fvisibility=default", *macros, *common_flags, *device_flags),
        },
        # The toolchain links the runtime statically and adds the toolkit's headers, also for C++ sources.
        "extra_link_args": tuple(word for word in attributes["extra_link_args"] if word != "-lcudart"),
        "include_dirs": tuple(folder for folder in attributes["include_dirs"] if folder != toolkit_include),
    }


def _own_flags(ext: Any, compiler: str) -> list[str]:
    """Returns the extension's flags for a compiler, which are a dict by compiler or one list for all.

    A relative path in them counts from the builder's folder, which is the project's.
    """
    flags = ext.extra_compile_args
    return list(flags.get(compiler, ()) if isinstance(flags, dict) else flags)


def _requests_debugging(flag: str) -> bool:
    return flag.startswith("-g") and flag != "-g0" and not flag.startswith(nvcc_flags.GENERATE_FLAGS)


def _baseline_target() -> str:
    """Returns the oldest processor of this machine's kind. Wheels move to other machines; torch builds for it too."""
    level = read_cpuinfo("/").level
    return f"cpu:{level.partition('-v')[0]}" if level else "cpu"


def _python_flags(command: Any) -> list[str]:
    """Returns the flags of Python's own build and of CFLAGS, such as -DNDEBUG, without those for debugging.

    They are the prepared compiler's, of the list that torch takes: with ninja another one than without.
    """
    compiler = command.compiler
    argv = compiler.compiler_so if command.use_ninja else getattr(compiler, "compiler_so_cxx", compiler.compiler_so)
    words = [str(word) for word in argv]
    first = next((number for number, word in enumerate(words) if word.startswith("-")), len(words))
    return [word for word in words[first:] if not word.startswith("-g")]


def _macro_flags(macros: Iterable[tuple[Any, ...]]) -> list[str]:
    flags = []
    for name, *value in macros:
        if not value:
            flags.append(f"-U{name}")
        else:
            flags.append(f"-D{name}" if value[0] is None else f"-D{name}={value[0]}")
    return flags


def _existing(folders: Iterable[str], excluded: Iterable[str]) -> tuple[str, ...]:
    """Returns the existing folders once each, without Python's and the `excluded` ones, which a builder adds itself."""
    skipped = [os.path.realpath(path) for path in (*excluded, sysconfig.get_path("include"))]
    existing = dict.fromkeys(os.path.realpath(folder) for folder in folders if os.path.isdir(folder))
    return tuple(folder for folder in existing if not any(f"{folder}/".startswith(f"{path}/") for path in skipped))
