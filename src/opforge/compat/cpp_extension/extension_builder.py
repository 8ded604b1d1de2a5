"""Makes an opforge builder of a setuptools Extension that CppExtension or CUDAExtension created."""

from __future__ import annotations

import importlib
import os
import sysconfig
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from opforge.accelerator.host.cpuinfo import read_cpuinfo
from opforge.accelerator.target import Target
from opforge.builders.base import OpBuilder
from opforge.builders.declaration import abi as abis
from opforge.builders.declaration import machine
from opforge.builders.declaration.op_spec import OpSpec
from opforge.builders.run import diagnostics
from opforge.builders.toolchains import nvcc

from . import nvcc_flags, prepared_link

VISIBLE = "-fvisibility=default"
OF_CUDA: Mapping[str, tuple[str, ...]] = {"-lc10_cuda": (), "-ltorch_cuda": (), "-lcudart": nvcc.RUNTIME}
"""Words of CUDAExtension's -> those of an extension on the facade, which loads beside a torch without CUDA."""
SUFFIXES = (".cpp", ".cc", ".cxx", ".c++", ".C")


def extension_problem(ext: Any) -> str | None:
    """Returns why opforge cannot build the extension; None if it can."""
    supported = (*SUFFIXES, nvcc_flags.SUFFIX)
    if others := [source for source in ext.sources if not source.endswith(supported)]:
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
    builder: ExtensionBuilder = _builder(ExtensionBuilder, ext, command)
    return builder


class FacadeBuilder(ExtensionBuilder):
    """The builder of an extension on the facade. Of torch's libraries its own names that of the C interface alone."""

    abi = abis.FACADE
    torch_libraries = ("libtorch_cpu.so",)


def facade_builder_for(ext: Any, command: Any) -> FacadeBuilder:
    """Returns a builder that compiles `ext` on the facade, and links it as the running `build_ext` command would.

    Raises BuilderError for what no builder can express.
    """
    builder: FacadeBuilder = _builder(FacadeBuilder, ext, command)
    return builder


def error_text(ext: Any, error: Exception) -> str:
    """Returns what setuptools prints of an error: for a header that is not found, also the folders that do not exist.

    They are left out of the command, as compilers ignore them.
    """
    text = str(error)
    missing = [folder for folder in map(str, ext.include_dirs) if not os.path.isdir(folder)]
    if missing and any(diagnostics.MISSING_HEADER.match(item["message"]) for item in getattr(error, "diagnostics", ())):
        text += f"\ninclude_dirs has what is no folder in {os.getcwd()}: {', '.join(missing)}"
    return text


def _builder(kind: type[ExtensionBuilder], ext: Any, command: Any) -> Any:
    """Returns a builder of a subclass of `kind`. Raises BuilderError for what no builder can express."""
    is_on_facade = kind is FacadeBuilder
    attributes, macros, own_nvcc_flags, debug = _attributes(ext, command, not is_on_facade)
    target: Target | str = _baseline_target()
    if any(source.endswith(nvcc_flags.SUFFIX) for source in ext.sources):
        device_flags, codes = nvcc_flags.without_architectures(ext.name, own_nvcc_flags)
        target = Target("cuda", codes)
        attributes |= _cuda_attributes(attributes, macros, device_flags, not is_on_facade)
    if is_on_facade:
        attributes["torch_libraries"] = kind.torch_libraries
        attributes["extra_link_args"] = tuple(
            part for word in attributes["extra_link_args"] for part in OF_CUDA.get(word, (word,))
        )
    return type(f"Setup{kind.__name__}", (kind,), attributes)(target, debug=debug)


def _attributes(ext: Any, command: Any, is_visible: bool) -> tuple[dict[str, Any], list[str], list[str], bool]:
    """Returns a builder's attributes; of the extension its macros, its flags for nvcc, and whether it is debugged.

    `is_visible` says whether other libraries may link with the extension, as with torch's own build of it.
    """
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
            *((VISIBLE,) if is_visible else ()),
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
    attributes: Mapping[str, Any], macros: Iterable[str], device_flags: Iterable[str], is_on_torch: bool
) -> dict[str, Any]:
    """Returns the attributes that an extension with CUDA sources adds or changes.

    On torch's headers those are among them that torch always gives nvcc; the facade has its own.
    """
    torch_extension: Any = importlib.import_module("torch.utils.cpp_extension")
    first = (f"-Xcompiler={VISIBLE}",) if is_on_torch else ()
    common_flags = torch_extension.COMMON_NVCC_FLAGS if is_on_torch else ()
    toolkit_include = os.path.realpath(os.path.join(torch_extension.CUDA_HOME or "", "include"))
    return {
        "devices": ("cuda",),
        "extra_compile_args": {
            "cxx": attributes["extra_compile_args"],
            "cuda": (*first, *macros, *common_flags, *device_flags),
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
