"""The builder for the arguments of `opforge.load`, and the attributes that are detected in its sources.

Not imported by a call that is answered from this process. The first call of a process imports it, and looks the op up
by what is remembered: what only errors, sources by device and builds need is imported where they are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from opforge import errors
from opforge.fast_path import library

from .base import OpBuilder
from .declaration.by_device import ALL, DeviceScope, similar, with_absolute_paths, words

if TYPE_CHECKING:
    from opforge.accelerator.target import Target

    from .declaration.attributes import FileKeywords

    Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
    Flags = Sequence[str] | None
    TorchArguments = tuple[Flags, Flags, Flags, Flags, Paths | None, bool | None, bool | None]
    """torch's extra_cflags, extra_cuda_cflags, extra_sycl_cflags, extra_ldflags, extra_include_paths, with_cuda and
    with_sycl. A class for them would cost each process that calls `load`."""

NOT_OF_LOAD = frozenset(
    {"name", "sources", "devices", "folder", "version", "kernel_roots", "toolchain", "python_functions", "trace"}
    | {"tunable", "cases"}
)
"""Attributes that the sources decide, that only a package of ops or `opforge tune` uses, or that no load uses."""
NOT_OF_LOAD_INLINE = frozenset({*NOT_OF_LOAD, "groups"})
"""Groups have files of their own."""
DEFAULTS: dict[str, Any] = {
    "abi": None,  # it is detected
    **{
        name: getattr(OpBuilder, name)
        for name in OpBuilder.__annotations__
        if name not in NOT_OF_LOAD and name[0] != "_" and name != "abi"
    },
    "fakes": None,
    "signatures": None,
    "target": None,
    "debug": False,
    "sanitize": "",
}
"""Every keyword besides torch's, with its default: the attributes of `OpBuilder`, and what a builder is made with."""

TORCH_HEADERS = tuple(
    f"torch/{name}.h" for name in ("all", "extension", "library", "python", "script", "torch", "types")
)
USES_TORCH = (*TORCH_HEADERS, "ATen/", "pybind11", "PYBIND11_MODULE", "<c10/", '"c10/', "TORCH_LIBRARY")
USES_STABLE = ("torch/csrc/stable/", "STABLE_TORCH_LIBRARY")
IS_MODULE = ("PyMODINIT_FUNC", "PyInit_", "NB_MODULE(")
"""Marks of the source of a Python module that is written without pybind."""
SUFFIX_DEVICES = {".cu": "cuda", ".hip": "hip", ".sycl": "xpu", ".cl": "opencl"}
"""The device of a source, if its name says it. A `.cu` is HIP's too if the installed torch is built for HIP."""


def check_keywords(function: str, declared: Mapping[str, Any], others: frozenset[str] = NOT_OF_LOAD) -> None:
    """Raises TypeError for an argument that a function does not have."""
    for name in declared:
        if name not in DEFAULTS or name in others:
            from opforge.foundation import upper_parts

            from .declaration.op_spec import OTHER_WORDS

            line = upper_parts.get(OTHER_WORDS).OTHER_WORDS.get(name)
            advice = f". Write {line}" if line else ""
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}{advice}")


def from_files(
    name: str,
    sources: Paths | Mapping[str, Any],
    torchs: TorchArguments,
    declared: FileKeywords,
    build_directory: str | os.PathLike[str] | None,
) -> OpBuilder:
    """Returns the builder for `load`'s arguments. Raises TypeError for one that it does not have."""
    check_keywords("load", declared)
    given: dict[str, Any] = {**DEFAULTS, **declared}
    made_with = {option: given.pop(option) for option in ("target", "debug", "sanitize")}
    located = each(sources, lambda part: _absolute(name, _paths(name, "sources", part)))
    groups = [_located_group(name, group) for group in listed_groups(name, given["groups"])]
    paths = [path for part in (located, *(group["sources"] for group in groups)) for path in files_of(part)]
    devices, made_with["target"] = _devices(name, located, paths, torchs, made_with["target"])
    for path in paths:
        if not os.path.isfile(path):
            raise errors.SourceNotFoundError(name, path, [os.path.dirname(path)])
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
        "fakes": _by_function(name, "fakes", given["fakes"]),
        "signatures": _by_function(name, "signatures", given["signatures"]),
        "libraries": each(given["libraries"], lambda part: words(name, "libraries", part)),
        **_with_torchs(name, torchs, given),
    }
    return _builder(attributes, made_with, own_cache(name, build_directory) or "")


def _devices(
    op: str, sources: Any, paths: Sequence[str], torchs: TorchArguments, target: Target | str | None
) -> tuple[tuple[str, ...], Target | str | None]:
    """Returns the devices that sources are for, and the target, which torch's arguments may choose."""
    with_cuda, with_sycl = torchs[-2:]  # flags for a device's compiler choose none, as in torch
    if isinstance(sources, Mapping):
        return known_devices(op, sources), target or ("cuda" if with_cuda else "xpu" if with_sycl else None)
    return (detect_device(op, paths, bool(with_cuda), bool(with_sycl)),), target


def _with_torchs(op: str, torchs: TorchArguments, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the attributes that torch's arguments are part of, with `OpBuilder`'s own after them."""
    cflags, cuda_cflags, sycl_cflags, ldflags, include_paths, *_rest = torchs
    macros = given["define_macros"]
    include = _absolute(op, _paths(op, "extra_include_paths", include_paths or ()))
    own_include = each(given["include_dirs"], lambda part: _absolute(op, words(op, "include_dirs", part)))
    own_link = each(given["extra_link_args"], lambda part: _flags(op, "extra_link_args", part))
    return {
        "include_dirs": after(include, own_include),
        "define_macros": macros if is_by_device(macros) else DeviceScope(op).macros(macros),
        "extra_compile_args": _compile_args(
            op,
            given["extra_compile_args"],
            cxx=_flags(op, "extra_cflags", cflags or ()),
            nvcc=_flags(op, "extra_cuda_cflags", cuda_cflags or ()),
            sycl=_flags(op, "extra_sycl_cflags", sycl_cflags or ()),
        ),
        "extra_link_args": after(_flags(op, "extra_ldflags", ldflags or ()), own_link),
    }


def own_cache(op: str, build_directory: str | os.PathLike[str] | None) -> str | None:
    """Returns the cache folder below a `build_directory`, which may hold other files; None for the shared one."""
    return _absolute(op, [os.path.join(build_directory, "opforge")])[0] if build_directory else None


def _compile_args(op: str, args: Any, **by_compiler: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Returns torch's arguments for each compiler, then OpBuilder's `extra_compile_args`."""
    own = args if isinstance(args, Mapping) else {"cxx": args}
    own = {key: _flags(op, f"extra_compile_args[{key!r}]", flags) for key, flags in own.items()}
    return {key: (*by_compiler.get(key, ()), *own.get(key, ())) for key in {**by_compiler, **own}}


def _flags(op: str, argument: str, value: Any) -> tuple[str, ...]:
    """Returns the flags of an argument. A relative path in them counts from the working folder, as one of a source."""
    try:
        return with_absolute_paths(words(op, argument, value), os.getcwd())
    except OSError:  # the working folder has been removed, and nothing is below it
        return words(op, argument, value)


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


def _by_function(op: str, argument: str, value: Any) -> dict[str, Any]:
    """Returns an argument that has a value for each function. Raises BuilderError for one of another type."""
    if not isinstance(value or {}, Mapping):
        raise errors.BuilderError(
            op, f"{argument}={value!r}", "Expected a dict whose keys are names of the op's functions"
        )
    return dict(value or {})


def _below(folder: str, sources: Any) -> Any:
    return each(sources, lambda paths: tuple(os.path.relpath(path, folder) for path in paths))


def _absolute(op: str, paths: Sequence[str]) -> tuple[str, ...]:
    try:
        return tuple(map(os.path.abspath, paths))
    except FileNotFoundError:
        missing = next(path for path in paths if not os.path.isabs(path))
        raise errors.SourceNotFoundError(op, missing, ["the working folder, which has been removed"]) from None


def _builder(attributes: dict[str, Any], made_with: Mapping[str, Any], directory: str) -> OpBuilder:
    """Returns a builder with these attributes. Raises BuilderError for signatures of another form."""
    try:
        for _result, kinds in attributes["signatures"].values():
            iter(kinds)
    except (TypeError, ValueError) as error:
        expected = "Expected function -> (result, [arguments]), each a type of ctypes"
        raise errors.BuilderError(attributes["name"], f"signatures={attributes['signatures']!r}", expected) from error
    name = attributes["name"]
    kind_name = name if isinstance(name, str) and name.isidentifier() else "The op"  # errors begin with it
    kind = type(kind_name, (OpBuilder,), {**attributes, "_directory": directory, "__module__": __name__})
    builder: OpBuilder = kind(**made_with)
    return builder


# Arguments that may be dicts by device.


def each(value: Any, function: Callable[[Any], Any]) -> Any:
    """Returns the function's result for the value or, of values by device, for each."""
    return {key: function(part) for key, part in value.items()} if isinstance(value, Mapping) else function(value)


def is_by_device(macros: Any) -> bool:
    """Returns whether definitions are a dict by device, not one of values."""
    return isinstance(macros, Mapping) and any(isinstance(part, (list, tuple, Mapping)) for part in macros.values())


def listed_groups(op: str, groups: Any) -> list[Mapping[str, Any]]:
    """Returns the groups. Raises BuilderError unless it is a list of dicts."""
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
    from .toolchains import DEVICES

    devices = tuple(key for key in sources if key != ALL)
    expected = f"Expected {', '.join(DEVICES)}, and {ALL!r} for what all of them have"
    if not devices:
        raise errors.BuilderError(op, f"sources={sources!r} names no device", expected)
    for device in devices:
        if device not in DEVICES:
            near = similar(device, DEVICES)
            line = f'Write sources = {{"{near}": ...}}. ' if near else ""
            raise errors.BuilderError(op, f"sources has the key {device!r}", line + expected)
    return devices


def detected_abi(sources: Any, groups: Sequence[Mapping[str, Any]], devices: Sequence[str]) -> Any:
    """Returns the ABI that the sources are written for; of sources by device, the ABI of each device."""

    def detect(device: str) -> str:
        lists = [group["sources"] for group in groups if not device or device in group.get("devices", devices)]
        paths = [path for part in (sources, *lists) for path in files_of(part, device)]
        return detect_abi(read_sources(paths), {path[-2:] for path in paths} == {".c"})

    return {device: detect(device) for device in devices} if isinstance(sources, Mapping) else detect("")


# What is read off sources, and the text around inline ones.


def read_sources(paths: Sequence[str]) -> str:
    """Returns the text of all sources."""
    text = ""
    for path in paths:
        with open(path, encoding="utf-8", errors="replace") as file:
            text += file.read()
    return text


def detect_abi(text: str, is_c: bool = False) -> str:
    """Returns the ABI that sources are written for, by what they include, and by whether all are files of C."""
    if uses_torch(text):
        return library.TORCH
    if any(mark in text for mark in USES_STABLE):
        return library.STABLE
    if any(mark in text for mark in IS_MODULE):
        return library.TORCH  # a Python module, whatever else it exports
    # torch is not named: plain functions, if they are exported as such; otherwise one of their headers may include it.
    return library.PLAIN if is_c or 'extern "C"' in text else library.TORCH


def uses_torch(text: str) -> bool:
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
        raise errors.BuilderError(
            op, f"its sources are for {' and '.join(sorted(devices))}", "Declare one op for each device"
        )
    if devices == {"cuda"}:
        from .declaration.machine import torch_built_for

        if torch_built_for("hip") is not None:
            return "hip"
    return devices.pop() if devices else "cpu"
