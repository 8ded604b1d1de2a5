"""`opforge.load` and `opforge.load_inline`: an op of one's own, with torch.utils.cpp_extension's arguments."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from opforge.cache.keys import key_of
from opforge.cache.layout import make_folder, write_file
from opforge.errors import BuilderError, SourceNotFoundError, ToolchainNotFoundError

from . import abis, loader
from .base import OpBuilder
from .opened import open_store, writable_store

TORCH_HEADERS = tuple(
    f"torch/{name}.h" for name in ("all", "extension", "library", "python", "script", "torch", "types")
)
USES_TORCH = (*TORCH_HEADERS, "ATen/", "pybind11", "PYBIND11_MODULE", "<c10/", '"c10/', "TORCH_LIBRARY")
USES_STABLE = ("torch/csrc/stable/", "STABLE_TORCH_LIBRARY")
DEVICE_SUFFIXES = {".cu": "CUDA", ".cuh": "CUDA", ".sycl": "SYCL", ".hip": "HIP"}
_builders: dict[tuple[Any, ...], OpBuilder] = {}


def load(
    name: str,
    sources: str | Sequence[str],
    extra_cflags: Sequence[str] | None = None,
    extra_cuda_cflags: Sequence[str] | None = None,
    extra_sycl_cflags: Sequence[str] | None = None,
    extra_ldflags: Sequence[str] | None = None,
    extra_include_paths: str | Sequence[str] | None = None,
    build_directory: str | None = None,
    verbose: bool = False,
    with_cuda: bool | None = None,
    with_sycl: bool | None = None,
    is_python_module: bool = True,
    is_standalone: bool = False,
    keep_intermediates: bool = True,
    *,
    abi: str | None = None,
    torch_target: str = abis.OLDEST_TORCH,
    fakes: Mapping[str, Callable[..., Any]] | None = None,
    signatures: Mapping[str, tuple[Any, Sequence[Any]]] | None = None,
    debug: bool = False,
    sanitize: str = "",
) -> Any:
    """Compile sources into an op and load it; a hit where nothing that it was built from has changed.

    The arguments are torch.utils.cpp_extension.load's, then our own by name. `abi` is read off the sources where it is
    not given: ATen and pybind mean "torch", torch/csrc/stable means "torch-stable", no torch at all means "c".
    `build_directory` names a cache folder for this op; by default it is shared with all others. `is_python_module` and
    `keep_intermediates` change nothing here: a library with no Python module gives its ops all the same.

    Returns the Python module for pybind sources, otherwise an object with the op's functions. Called again in one
    process, it looks at the sources again and loads a changed one beside the first. Raises what `OpBuilder.load` does.
    """
    paths = [os.path.abspath(path) for path in ([sources] if isinstance(sources, str) else sources)]
    _refuse(name, paths, with_cuda, with_sycl, is_standalone, extra_cuda_cflags, extra_sycl_cflags)
    for path in paths:
        if not os.path.isfile(path):
            raise SourceNotFoundError(name, path, [os.path.dirname(path)])
    folder = os.path.realpath(os.path.commonpath([os.path.dirname(path) for path in paths]) if paths else os.getcwd())
    include = [extra_include_paths] if isinstance(extra_include_paths, str) else list(extra_include_paths or ())
    attributes = {
        "name": name,
        "folder": folder,
        "sources": tuple(os.path.relpath(os.path.realpath(path), folder) for path in paths),
        "include_dirs": tuple(os.path.abspath(path) for path in include),
        "cxx_flags": tuple(extra_cflags or ()),
        "link_flags": tuple(extra_ldflags or ()),
        "abi": abi or detect_abi(paths),
        "torch_target": torch_target,
        "fakes": dict(fakes or {}),
        "signatures": dict(signatures or {}),
    }
    builder = _builder(attributes, debug, sanitize, build_directory)
    return builder.load(verbose)


class _UserBuilder(OpBuilder):
    """A builder made from arguments, in a cache folder of its own where one was asked for."""

    directory: str | None = None

    def load(self, verbose: bool = False) -> Any:
        if self.directory is None:
            return super().load(verbose)
        entry = self.obtain(store=open_store(self.directory))
        return loader.load_entry(self.name, entry, self.fakes, self.signatures)


def _builder(attributes: dict[str, Any], debug: bool, sanitize: str, directory: str | None) -> OpBuilder:
    """The same builder for the same arguments, so that a second call is answered from memory."""
    plain = {name: value for name, value in attributes.items() if name not in ("fakes", "signatures")}
    key = (
        *plain.items(),
        tuple(attributes["fakes"].items()),
        tuple(attributes["signatures"]),
        debug,
        sanitize,
        directory,
    )
    if key not in _builders:
        kind = type("UserBuilder", (_UserBuilder,), {**attributes, "directory": directory, "__module__": __name__})
        _builders[key] = kind(debug=debug, sanitize=sanitize)
    return _builders[key]


def detect_abi(paths: Sequence[str]) -> str:
    """The ABI that sources are written for, by what they include: see `load`."""
    text = ""
    for path in paths:
        with open(path, encoding="utf-8", errors="replace") as file:
            text += file.read()
    if _uses_torch(text):
        return abis.TORCH
    if any(mark in text for mark in USES_STABLE):
        return abis.STABLE
    # Without a word of torch: plain functions, if they are exported as such; otherwise a header of theirs includes it.
    return abis.PLAIN if 'extern "C"' in text else abis.TORCH


def _uses_torch(text: str) -> bool:
    """Whether a source is written for ATen, c10 or pybind. Substrings: to compile a pattern costs more than a hit."""
    text = text.replace("STABLE_TORCH_LIBRARY", "")
    return any(mark in text for mark in USES_TORCH)


def _refuse(
    name: str,
    paths: Sequence[str],
    with_cuda: bool | None,
    with_sycl: bool | None,
    is_standalone: bool,
    cuda_flags: Sequence[str] | None,
    sycl_flags: Sequence[str] | None,
) -> None:
    if is_standalone:
        raise BuilderError(name, "is_standalone=True", "opforge builds libraries to load, not programs to run")
    asked = {language for path in paths if (language := DEVICE_SUFFIXES.get(os.path.splitext(path)[1]))}
    asked |= {"CUDA"} if with_cuda or cuda_flags else set()
    asked |= {"SYCL"} if with_sycl or sycl_flags else set()
    if asked:
        raise ToolchainNotFoundError(
            f"toolchain for {' and '.join(sorted(asked))} sources",
            ["opforge.builders.toolchains.TOOLCHAINS, which has: host (g++, clang++)"],
            f"This version of opforge compiles C++ for the CPU; build {name} with torch.utils.cpp_extension.",
        )


def load_inline(
    name: str,
    cpp_sources: str | Sequence[str],
    cuda_sources: str | Sequence[str] | None = None,
    sycl_sources: str | Sequence[str] | None = None,
    functions: str | Sequence[str] | Mapping[str, str] | None = None,
    extra_cflags: Sequence[str] | None = None,
    extra_cuda_cflags: Sequence[str] | None = None,
    extra_sycl_cflags: Sequence[str] | None = None,
    extra_ldflags: Sequence[str] | None = None,
    extra_include_paths: str | Sequence[str] | None = None,
    build_directory: str | None = None,
    verbose: bool = False,
    with_cuda: bool | None = None,
    with_sycl: bool | None = None,
    is_python_module: bool = True,
    with_pytorch_error_handling: bool = True,
    keep_intermediates: bool = True,
    use_pch: bool = False,
    no_implicit_headers: bool = False,
    *,
    abi: str | None = None,
    torch_target: str = abis.OLDEST_TORCH,
    fakes: Mapping[str, Callable[..., Any]] | None = None,
    signatures: Mapping[str, tuple[Any, Sequence[Any]]] | None = None,
    debug: bool = False,
    sanitize: str = "",
) -> Any:
    """As `load`, for sources given as text, with torch.utils.cpp_extension.load_inline's arguments.

    Sources that use the stable ABI are compiled as they are. Others get `torch/extension.h` and, for each of
    `functions` (a name, names, or names with docstrings), a pybind binding. `use_pch` changes nothing.
    """
    if cuda_sources or sycl_sources:
        _refuse(name, [], bool(cuda_sources), bool(sycl_sources), False, None, None)
    text = cpp_sources if isinstance(cpp_sources, str) else "\n".join(cpp_sources)
    if abi is None:
        stable = any(mark in text for mark in USES_STABLE)
        abi = abis.STABLE if stable and not _uses_torch(text) else abis.TORCH
    if abi == abis.TORCH:
        text = _pybind_source(text, functions, with_pytorch_error_handling, no_implicit_headers)
    elif functions:
        raise BuilderError(name, f"functions={functions!r} with abi={abi!r}", "They are bound by pybind; leave it out")
    folder = writable_store(open_store(build_directory) if build_directory else None).layout.path(
        "sources", key_of([name, text])
    )
    path = os.path.join(folder, "main.cpp")
    if not os.path.exists(path):
        make_folder(folder)
        write_file(path, text.encode())
    return load(
        name,
        [path],
        extra_cflags,
        extra_cuda_cflags,
        extra_sycl_cflags,
        extra_ldflags,
        extra_include_paths,
        build_directory,
        verbose,
        with_cuda,
        with_sycl,
        is_python_module,
        abi=abi,
        torch_target=torch_target,
        fakes=fakes,
        signatures=signatures,
        debug=debug,
        sanitize=sanitize,
    )


def _pybind_source(
    text: str, functions: str | Sequence[str] | Mapping[str, str] | None, guarded: bool, bare: bool
) -> str:
    names = [functions] if isinstance(functions, str) else functions or ()
    documented = dict(names) if isinstance(names, Mapping) else {one: one for one in names}
    lines = [] if bare else ["#include <torch/extension.h>"]
    lines.append(text)
    if documented:
        lines.append("PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {")
        for function, doc in documented.items():
            bound = f"torch::wrap_pybind_function({function})" if guarded else f"&{function}"
            quoted = doc.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
            lines.append(f'm.def("{function}", {bound}, "{quoted}");')
        lines.append("}")
    return "\n".join(lines) + "\n"
