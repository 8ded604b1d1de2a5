"""The builders for the arguments of `opforge.load` and `load_inline`: what is read off sources, and what is written.

Not imported by a call that is answered from this process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict

from opforge.cache.current import open_store, writable_store
from opforge.cache.filesystem.files import read_file, renew
from opforge.errors import BuilderError, SettingError, SourceNotFoundError
from opforge.machine_folder import make_folder, temp_path, write_file

from .base import OpBuilder
from .declaration import abi as abis
from .declaration.by_device import ALL, DeviceScope, similar, words
from .declaration.machine import torch_built_for
from .toolchains import DEVICES

if TYPE_CHECKING:
    from opforge.accelerator.target import Target

    from .declaration.by_device import Macros, Words

_builders: dict[tuple[Any, ...], OpBuilder] = {}

RENEW_SECONDS = 15 * 24 * 3600.0
"""How long after a noted use of inline sources the next one is noted. It is half of the time for which unused ones are
kept: the new time makes one look-up compare contents."""
TORCH_HEADERS = tuple(
    f"torch/{name}.h" for name in ("all", "extension", "library", "python", "script", "torch", "types")
)
USES_TORCH = (*TORCH_HEADERS, "ATen/", "pybind11", "PYBIND11_MODULE", "<c10/", '"c10/', "TORCH_LIBRARY")
USES_STABLE = ("torch/csrc/stable/", "STABLE_TORCH_LIBRARY")
SUFFIX_DEVICES = {".cu": "cuda", ".hip": "hip", ".sycl": "xpu", ".cl": "opencl"}
"""The device of a source, if its name says it. A `.cu` is HIP's too if the installed torch is built for HIP."""
CUDA_HEADERS = "#include <torch/types.h>\n#include <cuda.h>\n#include <cuda_runtime.h>\n"
SYCL_HEADERS = "#include <torch/types.h>\n#include <sycl/sycl.hpp>\n"
"""What torch's load_inline puts before the sources for a device."""

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


class TorchFlags(TypedDict):
    """The flags of torch.utils.cpp_extension.load, by its own names."""

    extra_cflags: Sequence[str] | None
    extra_cuda_cflags: Sequence[str] | None
    extra_sycl_cflags: Sequence[str] | None
    extra_ldflags: Sequence[str] | None
    extra_include_paths: Paths | None
    with_cuda: bool | None
    with_sycl: bool | None


class Attributes(TypedDict):
    """The attributes of `OpBuilder` that a call declares, but for its name and its sources."""

    abi: str | Mapping[str, str] | None
    torch_target: str
    requires_torch: str
    architectures: Words
    groups: Sequence[Mapping[str, Any]]
    fakes: Mapping[str, Callable[..., Any]] | None
    signatures: Mapping[str, tuple[Any, Sequence[Any]]] | None
    include_dirs: Sequence[str | os.PathLike[str]] | Mapping[str, Any]
    define_macros: Macros
    extra_compile_args: Words
    extra_link_args: Words
    libraries: Words


class Build(TypedDict):
    """What a call says of the build rather than of the op."""

    target: Target | str | None
    debug: bool
    sanitize: str
    build_directory: str | None


def from_files(
    name: str, sources: Paths | Mapping[str, Any], flags: TorchFlags, given: Attributes, build: Build
) -> OpBuilder:
    """Returns the builder for `load`'s arguments."""
    located = each(sources, lambda part: _absolute(name, _paths(name, "sources", part)))
    groups = [_located_group(name, group) for group in listed_groups(name, given["groups"])]
    paths = [path for part in (located, *(group["sources"] for group in groups)) for path in files_of(part)]
    devices, target = _devices(name, located, paths, flags, build["target"])
    for path in paths:
        if not os.path.isfile(path):
            raise SourceNotFoundError(name, path, [os.path.dirname(path)])
    # As compilers do, headers are looked for beside a link, not beside what it leads to.
    folder = os.path.commonpath([os.path.dirname(path) for path in paths]) if paths else "/"
    attributes = {
        **given,
        "name": name,
        "folder": folder,
        "sources": _below(folder, located),
        "groups": tuple({**group, "sources": _below(folder, group["sources"])} for group in groups),
        "devices": devices,
        "abi": given["abi"] or detected_abi(located, groups, devices),
        "fakes": dict(given["fakes"] or {}),
        "signatures": dict(given["signatures"] or {}),
        "libraries": each(given["libraries"], lambda part: words(name, "libraries", part)),
        **_with_torchs(name, flags, given),
    }
    return _builder(attributes, {**build, "target": target})


def _devices(
    op: str, sources: Any, paths: Sequence[str], flags: TorchFlags, target: Target | str | None
) -> tuple[tuple[str, ...], Target | str | None]:
    """Returns the devices that sources are for, and the target, which torch's arguments may choose."""
    with_cuda = flags["with_cuda"] or bool(flags["extra_cuda_cflags"])
    with_sycl = flags["with_sycl"] or bool(flags["extra_sycl_cflags"])
    if isinstance(sources, Mapping):
        return known_devices(op, sources), target or ("cuda" if with_cuda else "xpu" if with_sycl else None)
    return (detect_device(op, paths, with_cuda, with_sycl),), target


def _with_torchs(op: str, flags: TorchFlags, given: Attributes) -> dict[str, Any]:
    """Returns the attributes that torch's flags are part of, with `OpBuilder`'s own after them."""
    macros = given["define_macros"]
    include = _absolute(op, _paths(op, "extra_include_paths", flags["extra_include_paths"] or ()))
    own_include = each(given["include_dirs"], lambda part: _absolute(op, words(op, "include_dirs", part)))
    own_link = each(given["extra_link_args"], lambda part: words(op, "extra_link_args", part))
    return {
        "include_dirs": after(include, own_include),
        "define_macros": macros if is_by_device(macros) else DeviceScope(op).macros(macros),
        "extra_compile_args": _compile_args(
            op,
            given["extra_compile_args"],
            cxx=words(op, "extra_cflags", flags["extra_cflags"] or ()),
            nvcc=words(op, "extra_cuda_cflags", flags["extra_cuda_cflags"] or ()),
            sycl=words(op, "extra_sycl_cflags", flags["extra_sycl_cflags"] or ()),
        ),
        "extra_link_args": after(words(op, "extra_ldflags", flags["extra_ldflags"] or ()), own_link),
    }


class Texts(TypedDict):
    """The sources of `load_inline`, and how they are completed."""

    cpp_sources: str | Sequence[str]
    cuda_sources: str | Sequence[str] | None
    sycl_sources: str | Sequence[str] | None
    functions: str | Sequence[str] | Mapping[str, str] | None
    with_pytorch_error_handling: bool
    no_implicit_headers: bool


def from_texts(name: str, texts: Texts, flags: TorchFlags, given: Attributes, build: Build) -> OpBuilder:
    """Returns the builder for `load_inline`'s arguments. Writes the sources."""
    abi, written = _completed(name, texts, given["abi"])
    from opforge.cache.keys import key_of

    own_cache = _own_cache(name, build["build_directory"])
    folder = writable_store(open_store(own_cache) if own_cache else None).layout.path(
        "sources", key_of([name, *sorted(written.items())])
    )
    try:
        for file, content in written.items():
            _write_source(os.path.join(folder, file), content.encode())
        renew(folder, RENEW_SECONDS)
    except OSError as error:
        from .resources import raise_if_exhausted

        raise_if_exhausted(name, error)
        raise
    files = [os.path.join(folder, file) for file in written]
    return from_files(name, files, flags, {**given, "abi": abi}, build)


def _completed(name: str, texts: Texts, abi: Any) -> tuple[str, dict[str, str]]:
    """Returns the ABI of sources that are text, and the text of each file with headers and bindings."""
    text, cuda, sycl = join(texts["cpp_sources"]), join(texts["cuda_sources"]), join(texts["sycl_sources"])
    bound, is_bare = documented(texts["functions"]), texts["no_implicit_headers"]
    abi = abi or detect_inline_abi(text + cuda + sycl)
    if abi == abis.TORCH:
        text = with_bindings(text, bound, texts["with_pytorch_error_handling"], is_bare)
    elif bound:
        advice = "Omit it: only pybind, which abi='torch' uses, binds functions by name"
        raise BuilderError(name, f"functions={texts['functions']!r} with abi={abi!r}", advice)
    if abi == abis.TORCH and not is_bare:
        cuda = CUDA_HEADERS + cuda if cuda else ""
        sycl = SYCL_HEADERS + sycl if sycl else ""
    files = {"main.cpp": text, "cuda.cu": cuda, "sycl.sycl": sycl}
    return abi, {file: content for file, content in files.items() if content.strip()}


def _write_source(path: str, content: bytes) -> None:
    """Writes the file unless it has this content. It may have been edited, emptied, or put there by someone else."""
    try:
        if not os.path.islink(path) and read_file(path) == content:
            return
    except (OSError, ValueError):
        pass
    make_folder(os.path.dirname(path))
    if os.path.isdir(path) and not os.path.islink(path):
        os.rename(path, temp_path(path))  # a folder cannot be replaced by a file
    write_file(path, content)


def _own_cache(op: str, build_directory: str | None) -> str | None:
    """Returns the cache folder below a `build_directory`, which may hold other files; None for the shared one."""
    return _absolute(op, [os.path.join(build_directory, "opforge")])[0] if build_directory else None


def _compile_args(op: str, args: Any, **by_compiler: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Returns torch's arguments for each compiler, then OpBuilder's `extra_compile_args`."""
    own = args if isinstance(args, Mapping) else {"cxx": args}
    own = {key: words(op, f"extra_compile_args[{key!r}]", flags) for key, flags in own.items()}
    return {key: (*by_compiler.get(key, ()), *own.get(key, ())) for key in {**by_compiler, **own}}


def _paths(op: str, argument: str, value: Any) -> tuple[str, ...]:
    """Returns the paths of an argument that may be one path or several, as in torch. Raises BuilderError."""
    return words(op, argument, [value] if isinstance(value, (str, os.PathLike)) else value)


def _located_group(op: str, group: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a group with absolute paths, as far as it is a group: the rest is checked with the builder."""
    located = {"sources": (), **group}
    for name in {"sources", "include_dirs"} & {*located}:
        strings = each(located[name], partial(words, op, f"groups: {name}"))
        located[name] = each(strings, partial(_absolute, op))
    return located


def _below(folder: str, sources: Any) -> Any:
    return each(sources, lambda paths: tuple(os.path.relpath(path, folder) for path in paths))


def _absolute(op: str, paths: Sequence[str]) -> tuple[str, ...]:
    try:
        return tuple(map(os.path.abspath, paths))
    except FileNotFoundError:
        missing = next(path for path in paths if not os.path.isabs(path))
        raise SourceNotFoundError(op, missing, ["the working folder, which has been removed"]) from None


def _builder(attributes: dict[str, Any], build: Build) -> OpBuilder:
    """Returns the same builder for the same arguments, so that a second call returns the loaded module."""
    directory = _own_cache(attributes["name"], build["build_directory"])
    plain = {name: value for name, value in attributes.items() if name not in ("fakes", "signatures")}
    try:
        types = tuple((function, result, *kinds) for function, (result, kinds) in attributes["signatures"].items())
    except (TypeError, ValueError) as error:
        expected = "Expected function -> (result, [arguments]), each a type of ctypes"
        raise BuilderError(attributes["name"], f"signatures={attributes['signatures']!r}", expected) from error
    key = (
        *((name, frozen(value)) for name, value in plain.items()),
        tuple(attributes["fakes"].items()),
        types,
        build["target"],
        build["debug"],
        build["sanitize"],
        directory,
    )
    if key not in _builders:
        kind = type("UserBuilder", (OpBuilder,), {**attributes, "_directory": directory or "", "__module__": __name__})
        _builders[key] = kind(build["target"], debug=build["debug"], sanitize=build["sanitize"])
    return _builders[key]


# Arguments that may be dicts by device.


def each(value: Any, function: Callable[[Any], Any]) -> Any:
    """Returns what the function returns for the value or, of values by device, for each."""
    return {key: function(part) for key, part in value.items()} if isinstance(value, Mapping) else function(value)


def is_by_device(macros: Any) -> bool:
    """Returns whether definitions are a dict by device, not one of values."""
    return isinstance(macros, Mapping) and any(isinstance(part, (list, tuple, Mapping)) for part in macros.values())


def listed_groups(op: str, groups: Any) -> list[Mapping[str, Any]]:
    """Returns the groups. Raises BuilderError for what is no list of dicts."""
    if not groups:
        return []
    from .declaration.groups import listed

    return listed(op, groups)


def after(first: tuple[Any, ...], value: Any) -> Any:
    """Returns a list, or lists by device, with `first` before it on all devices."""
    return {**value, ALL: (*first, *value.get(ALL, ()))} if isinstance(value, Mapping) else (*first, *value)


def files_of(value: Any, device: str = "") -> list[str]:
    """Returns the files of a list or, of lists by device, of all or of those for this device."""
    lists = [value]
    if isinstance(value, Mapping):
        lists = [part for key, part in value.items() if not device or key in (ALL, device)]
    return [path for part in lists for path in part]


def known_devices(op: str, sources: Mapping[Any, Any]) -> tuple[str, ...]:
    """Returns the devices of sources by device. Raises BuilderError for one that opforge has no compiler for."""
    devices = tuple(key for key in sources if key != ALL)
    expected = f"Expected {', '.join(DEVICES)}, and {ALL!r} for what all of them have"
    if not devices:
        raise BuilderError(op, f"sources={sources!r} names no device", expected)
    for device in devices:
        if device not in DEVICES:
            near = similar(device, DEVICES)
            line = f'Write sources = {{"{near}": ...}}. ' if near else ""
            raise BuilderError(op, f"sources has the key {device!r}", line + expected)
    return devices


def detected_abi(sources: Any, groups: Sequence[Mapping[str, Any]], devices: Sequence[str]) -> Any:
    """Returns the ABI that the sources are written for; of sources by device, the ABI of each device."""

    def detect(device: str) -> str:
        lists = [group["sources"] for group in groups if not device or device in group.get("devices", devices)]
        return detect_abi(read_sources([path for part in (sources, *lists) for path in files_of(part, device)]))

    return {device: detect(device) for device in devices} if isinstance(sources, Mapping) else detect("")


def frozen(value: Any) -> Any:
    """Returns the value with tuples in place of its dicts and lists, to be the key of a dict."""
    if isinstance(value, Mapping):
        return tuple((key, frozen(part)) for key, part in value.items())
    return tuple(map(frozen, value)) if isinstance(value, (list, tuple)) else value


# What is read off sources, and the text around inline ones.


def read_sources(paths: Sequence[str]) -> str:
    """Returns the text of all sources."""
    text = ""
    for path in paths:
        with open(path, encoding="utf-8", errors="replace") as file:
            text += file.read()
    return text


def detect_abi(text: str) -> str:
    """Returns the ABI that sources are written for, by what they include."""
    if _uses_torch(text):
        return abis.TORCH
    if any(mark in text for mark in USES_STABLE):
        return abis.STABLE
    # torch is not named: plain functions, if they are exported as such; otherwise one of their headers may include it.
    return abis.PLAIN if 'extern "C"' in text else abis.TORCH


def detect_inline_abi(text: str) -> str:
    """Returns the ABI of sources that are given as text: torch's header is put before all but stable ones."""
    is_stable = any(mark in text for mark in USES_STABLE) and not _uses_torch(text)
    return abis.STABLE if is_stable else abis.TORCH


def _uses_torch(text: str) -> bool:
    """Returns whether a source is written for ATen, c10 or pybind. A compiled pattern would cost more than a hit."""
    text = text.replace("STABLE_TORCH_LIBRARY", "")
    return any(mark in text for mark in USES_TORCH)


def detect_device(op: str, paths: Sequence[str], with_cuda: bool, with_sycl: bool) -> str:
    """Returns the device that sources are for: the CPU, unless a suffix or an argument names another one.

    Raises BuilderError if they are for several.
    """
    devices = {device for path in paths if (device := SUFFIX_DEVICES.get(os.path.splitext(path)[1]))}
    devices |= {"cuda"} if with_cuda and "hip" not in devices else set()
    devices |= {"xpu"} if with_sycl else set()
    if len(devices) > 1:
        raise BuilderError(op, f"its sources are for {' and '.join(sorted(devices))}", "Declare one op for each device")
    if devices == {"cuda"} and torch_built_for("hip") is not None:
        return "hip"
    return devices.pop() if devices else "cpu"


def join(sources: str | Sequence[str] | None) -> str:
    """Returns sources that are given as text, as one text."""
    return sources if isinstance(sources, str) else "\n".join(sources or ())


def documented(functions: Any) -> dict[str, str]:
    """Returns `functions` of load_inline (a name, names, or names with docstrings) as names with docstrings.

    Raises SettingError for anything else.
    """
    names = [functions] if isinstance(functions, str) else () if functions is None else functions
    if isinstance(names, (list, tuple)):
        pairs = [(name, name) for name in names]
    else:
        pairs = [*names.items()] if isinstance(names, Mapping) else [(None, None)]
    if not all(isinstance(text, str) for pair in pairs for text in pair):
        raise SettingError("functions", functions, "a name, a list of names, or a dict of docstrings by name")
    return dict(pairs)


def with_bindings(text: str, functions: Mapping[str, str], guarded: bool, bare: bool) -> str:
    """Returns a source with torch's header before it and a pybind module for `functions` after it.

    `functions` are names with docstrings. With `guarded`, C++ exceptions become Python's as torch has it; with `bare`,
    no header is added.
    """
    lines = [] if bare else ["#include <torch/extension.h>"]
    lines.append(text)
    if functions:
        lines.append("PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {")
        for function, doc in functions.items():
            binding = f"torch::wrap_pybind_function({function})" if guarded else f"&{function}"
            quoted = doc.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
            lines.append(f'm.def("{function}", {binding}, "{quoted}");')
        lines.append("}")
    return "\n".join(lines) + "\n"
