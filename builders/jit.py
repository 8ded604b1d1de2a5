"""`opforge.load` and `opforge.load_inline`: an op of one's own, with torch.utils.cpp_extension's arguments."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from opforge.cache.current import open_store, writable_store
from opforge.cache.filesystem.files import make_folder, write_file
from opforge.cache.keys import key_of
from opforge.errors import BuilderError, SourceNotFoundError

from . import loader
from .base import OpBuilder
from .spec import abi as abis
from .spec.installed_torch import python_include, torch_folder, torch_states
from .spec.op_spec import words

TORCH_HEADERS = tuple(
    f"torch/{name}.h" for name in ("all", "extension", "library", "python", "script", "torch", "types")
)
USES_TORCH = (*TORCH_HEADERS, "ATen/", "pybind11", "PYBIND11_MODULE", "<c10/", '"c10/', "TORCH_LIBRARY")
USES_STABLE = ("torch/csrc/stable/", "STABLE_TORCH_LIBRARY")
SUFFIX_DEVICES = {".cu": "cuda", ".hip": "hip", ".sycl": "xpu", ".cl": "opencl"}
"""Which device a source is for, where its name tells. A `.cu` is HIP's too, where HIP is what is in use."""
CUDA_HEADERS = "#include <torch/types.h>\n#include <cuda.h>\n#include <cuda_runtime.h>\n"
SYCL_HEADERS = "#include <torch/types.h>\n#include <sycl/sycl.hpp>\n"
"""What torch's load_inline puts before the sources for a device."""
_builders: dict[tuple[Any, ...], OpBuilder] = {}


def load(
    name: str,
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    extra_cflags: Sequence[str] | None = None,
    extra_cuda_cflags: Sequence[str] | None = None,
    extra_sycl_cflags: Sequence[str] | None = None,
    extra_ldflags: Sequence[str] | None = None,
    extra_include_paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
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

        op = opforge.load("my_relu", ["relu.cpp"], extra_cflags=["-ffast-math"], fakes={"relu": torch.empty_like})
        op.relu(x)

    The arguments are torch.utils.cpp_extension.load's, then our own by name. `abi` is read off the sources where it is
    not given: ATen and pybind mean "torch", torch/csrc/stable means "torch-stable", no torch at all means "c".
    `build_directory` names a cache folder for this op; by default it is shared with all others. `is_python_module` and
    `keep_intermediates` change nothing here: a library with no Python module gives its ops all the same.

    Returns the Python module for pybind sources, otherwise an object with the op's functions. Called again in one
    process, it looks at the sources again and loads a changed one beside the first. Raises what `OpBuilder.load` does.
    """
    paths = _absolute(name, _paths(name, "sources", sources))
    if is_standalone:
        raise BuilderError(name, "is_standalone=True", "opforge builds libraries to load, not programs to run")
    device = _device(name, paths, with_cuda or bool(extra_cuda_cflags), with_sycl or bool(extra_sycl_cflags))
    for path in paths:
        if not os.path.isfile(path):
            raise SourceNotFoundError(name, path, [os.path.dirname(path)])
    # As compilers do, headers are looked for beside a link, not beside what it leads to.
    folder = os.path.commonpath([os.path.dirname(path) for path in paths]) if paths else "/"
    include = [*_paths(name, "extra_include_paths", extra_include_paths or ())]
    text = _text_of(paths)
    abi = abi or _abi_of(text)
    if abi == abis.STABLE and "Python.h" in text:
        include.append(python_include())  # torch's own examples hold an empty module, for `import` to open them
    cuda_flags = words(name, "extra_cuda_cflags", extra_cuda_cflags or ())
    attributes = {
        "name": name,
        "folder": folder,
        "sources": tuple(os.path.relpath(path, folder) for path in paths),
        "include_dirs": _absolute(name, include),
        "cxx_flags": words(name, "extra_cflags", extra_cflags or ()),
        "link_flags": words(name, "extra_ldflags", extra_ldflags or ()),
        "devices": (device,),
        "device_flags": {
            "cuda": cuda_flags,
            "hip": cuda_flags,
            "xpu": words(name, "extra_sycl_cflags", extra_sycl_cflags or ()),
        },
        "abi": abi,
        "torch_target": torch_target,
        "fakes": dict(fakes or {}),
        "signatures": dict(signatures or {}),
    }
    builder = _builder(attributes, debug, sanitize, build_directory or None)
    return builder.load(verbose)


def _paths(op: str, argument: str, given: Any) -> tuple[str, ...]:
    """One path or several, as torch's functions take them. Raises BuilderError."""
    return words(op, argument, [given] if isinstance(given, (str, os.PathLike)) else given)


def _absolute(op: str, paths: Sequence[str]) -> tuple[str, ...]:
    try:
        return tuple(map(os.path.abspath, paths))
    except FileNotFoundError:
        missing = next(path for path in paths if not os.path.isabs(path))
        raise SourceNotFoundError(op, missing, ["the working folder, which has been removed"]) from None


class _UserBuilder(OpBuilder):
    """A builder made from arguments, in a cache folder of its own where one was asked for."""

    directory: str | None = None

    def load(self, verbose: bool = False) -> Any:
        if self.directory is None:
            return super().load(verbose)
        entry = self.build(store=open_store(self.directory))
        return loader.load_entry(self.name, entry, self.fakes, self.signatures)


def _builder(attributes: dict[str, Any], debug: bool, sanitize: str, directory: str | None) -> OpBuilder:
    """The same builder for the same arguments, so that a second call is answered from memory."""
    plain = {name: value for name, value in attributes.items() if name not in ("fakes", "signatures")}
    try:
        types = tuple((function, result, *taken) for function, (result, taken) in attributes["signatures"].items())
    except (TypeError, ValueError) as error:
        expected = "Expected function -> (result, [arguments]), each a type of ctypes"
        raise BuilderError(attributes["name"], f"signatures={attributes['signatures']!r}", expected) from error
    key = (
        *((name, tuple(value.items()) if isinstance(value, dict) else value) for name, value in plain.items()),
        tuple(attributes["fakes"].items()),
        types,
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
    return _abi_of(_text_of(paths))


def _text_of(paths: Sequence[str]) -> str:
    text = ""
    for path in paths:
        with open(path, encoding="utf-8", errors="replace") as file:
            text += file.read()
    return text


def _abi_of(text: str) -> str:
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


def _device(name: str, paths: Sequence[str], with_cuda: bool, with_sycl: bool) -> str:
    """The device that these sources are for: the CPU unless a source's name or an argument says otherwise."""
    asked = {device for path in paths if (device := SUFFIX_DEVICES.get(os.path.splitext(path)[1]))}
    asked |= {"cuda"} if with_cuda and "hip" not in asked else set()
    asked |= {"xpu"} if with_sycl else set()
    if len(asked) > 1:
        raise BuilderError(name, f"its sources are for {' and '.join(sorted(asked))}", "Make an op of each")
    if asked == {"cuda"} and _uses_hip():
        return "hip"
    return asked.pop() if asked else "cpu"


def _uses_hip() -> bool:
    """Whether the torch that is installed calls HIP what sources call CUDA."""
    folder = torch_folder()
    return folder is not None and torch_states(folder, "hip") is not None


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
    extra_include_paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
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
    `functions` (a name, names, or names with docstrings), a pybind binding; those for a device get `torch/types.h` and
    the device's own headers. `use_pch` changes nothing.
    """
    text, cuda, sycl = _joined(cpp_sources), _joined(cuda_sources), _joined(sycl_sources)
    if abi is None:
        stable = any(mark in text + cuda + sycl for mark in USES_STABLE)
        abi = abis.STABLE if stable and not _uses_torch(text + cuda + sycl) else abis.TORCH
    if abi == abis.TORCH:
        text = _pybind_source(text, functions, with_pytorch_error_handling, no_implicit_headers)
    elif functions:
        raise BuilderError(name, f"functions={functions!r} with abi={abi!r}", "They are bound by pybind; leave it out")
    if abi == abis.TORCH and not no_implicit_headers:
        cuda = CUDA_HEADERS + cuda if cuda else ""
        sycl = SYCL_HEADERS + sycl if sycl else ""
    texts = {"main.cpp": text, "cuda.cu": cuda, "sycl.sycl": sycl}
    written = {file: content for file, content in texts.items() if content.strip()}
    folder = writable_store(open_store(build_directory) if build_directory else None).layout.path(
        "sources", key_of([name, *sorted(written.items())])
    )
    try:
        for file, content in written.items():
            if not os.path.exists(os.path.join(folder, file)):
                make_folder(folder)
                write_file(os.path.join(folder, file), content.encode())
    except OSError as error:
        from .resources import exhausted_resource

        scarce = exhausted_resource(name, error)
        if scarce:
            raise scarce from error
        raise
    return load(
        name,
        [os.path.join(folder, file) for file in written],
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


def _joined(sources: str | Sequence[str] | None) -> str:
    return sources if isinstance(sources, str) else "\n".join(sources or ())


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
