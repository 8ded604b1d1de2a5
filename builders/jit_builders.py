"""The builders for the arguments of `opforge.load` and `load_inline`. The sources of the latter are written here."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from opforge.cache.current import open_store, writable_store
from opforge.cache.filesystem.files import read_file, renew
from opforge.cache.keys import key_of
from opforge.errors import BuilderError, SourceNotFoundError
from opforge.warm.machine_folder import make_folder, temp_path, write_file

from .base import OpBuilder
from .jit_devices import after, detected_abi, each, files_of, frozen, is_by_device, known_devices, listed_groups
from .jit_sources import (
    CUDA_HEADERS,
    SYCL_HEADERS,
    detect_device,
    detect_inline_abi,
    documented,
    join,
    with_bindings,
)
from .resources import raise_if_exhausted
from .spec import abi as abis
from .spec.by_device import DeviceScope, words

if TYPE_CHECKING:
    from opforge.accelerator.target import Target

_builders: dict[tuple[Any, ...], OpBuilder] = {}

RENEW_SECONDS = 15 * 24 * 3600.0
"""How long after a noted use of inline sources the next one is noted. It is half of the time for which unused ones are
kept: the new time makes one look-up compare contents."""


class _Files(NamedTuple):
    """The sources of a call of `load`, with absolute paths."""

    sources: Any
    """Those of all devices, or a dict by device."""
    groups: list[dict[str, Any]]
    paths: list[str]
    """Of both."""


def from_files(given: Mapping[str, Any]) -> OpBuilder:
    """Returns the builder for `load`'s arguments, by name."""
    name = given["name"]
    if given.get("is_standalone"):
        raise BuilderError(name, "is_standalone=True", "opforge builds libraries to load, not programs to run")
    files = _located(name, given["sources"], given.get("groups", ()))
    devices, target = _devices(name, files, given)
    for path in files.paths:
        if not os.path.isfile(path):
            raise SourceNotFoundError(name, path, [os.path.dirname(path)])
    # As compilers do, headers are looked for beside a link, not beside what it leads to.
    folder = os.path.commonpath([os.path.dirname(path) for path in files.paths]) if files.paths else "/"
    attributes = {
        "name": name,
        "folder": folder,
        "sources": _below(folder, files.sources),
        "groups": tuple({**group, "sources": _below(folder, group["sources"])} for group in files.groups),
        "devices": devices,
        "abi": given["abi"] or detected_abi(files.sources, files.groups, devices),
        **{attribute: given[attribute] for attribute in ("architectures", "requires_torch", "torch_target")},
        **_flags(name, given),
        "fakes": dict(given["fakes"] or {}),
        "signatures": dict(given["signatures"] or {}),
    }
    directory = _own_cache(name, given["build_directory"])
    return _builder(attributes, target, given["debug"], given["sanitize"], directory)


def _located(name: str, sources: Any, groups: Any) -> _Files:
    located = each(sources, lambda part: _absolute(name, _paths(name, "sources", part)))
    located_groups = [_located_group(name, group) for group in listed_groups(name, groups)]
    parts = (located, *(group["sources"] for group in located_groups))
    return _Files(located, located_groups, [path for part in parts for path in files_of(part)])


def _devices(name: str, files: _Files, given: Mapping[str, Any]) -> tuple[tuple[str, ...], Target | str | None]:
    """Returns the devices of the sources, and the target that is built for."""
    with_cuda = given["with_cuda"] or bool(given["extra_cuda_cflags"])
    with_sycl = given["with_sycl"] or bool(given["extra_sycl_cflags"])
    if isinstance(files.sources, Mapping):
        chosen = "cuda" if with_cuda else "xpu" if with_sycl else None
        return known_devices(name, files.sources), given["target"] or chosen
    return (detect_device(name, files.paths, with_cuda, with_sycl),), given["target"]


def _flags(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what is passed to compilers, torch's arguments before `OpBuilder`'s attributes."""

    def torchs(argument: str) -> tuple[str, ...]:
        return words(name, argument, given[argument] or ())

    def own(argument: str) -> Any:
        return each(given[argument], lambda part: words(name, argument, part))

    folders = _absolute(name, _paths(name, "extra_include_paths", given["extra_include_paths"] or ()))
    macros = given["define_macros"]
    return {
        "include_dirs": after(folders, each(own("include_dirs"), lambda part: _absolute(name, part))),
        "define_macros": macros if is_by_device(macros) else DeviceScope(name).macros(macros),
        "extra_compile_args": _compile_args(
            name,
            given["extra_compile_args"],
            cxx=torchs("extra_cflags"),
            nvcc=torchs("extra_cuda_cflags"),
            sycl=torchs("extra_sycl_cflags"),
        ),
        "extra_link_args": after(torchs("extra_ldflags"), own("extra_link_args")),
        "libraries": own("libraries"),
    }


def from_texts(given: Mapping[str, Any]) -> OpBuilder:
    """Returns the builder for `load_inline`'s arguments, by name. Writes the sources."""
    name, abi = given["name"], given["abi"]
    text, cuda, sycl = (join(given[f"{kind}_sources"]) for kind in ("cpp", "cuda", "sycl"))
    bound = documented(given["functions"])
    abi = abi or detect_inline_abi(text + cuda + sycl)
    if abi == abis.TORCH:
        text = with_bindings(text, bound, given["with_pytorch_error_handling"], given["no_implicit_headers"])
    elif bound:
        advice = "Omit it: only pybind, which abi='torch' uses, binds functions by name"
        raise BuilderError(name, f"functions={given['functions']!r} with abi={abi!r}", advice)
    if abi == abis.TORCH and not given["no_implicit_headers"]:
        cuda = CUDA_HEADERS + cuda if cuda else ""
        sycl = SYCL_HEADERS + sycl if sycl else ""
    texts = {"main.cpp": text, "cuda.cu": cuda, "sycl.sycl": sycl}
    files = _written(name, {file: content for file, content in texts.items() if content.strip()}, given)
    return from_files({**given, "sources": files, "abi": abi})


def _written(name: str, texts: Mapping[str, str], given: Mapping[str, Any]) -> list[str]:
    """Writes sources to the store, unless they are there. Returns their paths."""
    own_cache = _own_cache(name, given["build_directory"])
    layout = writable_store(open_store(own_cache) if own_cache else None).layout
    folder = layout.path("sources", key_of([name, *sorted(texts.items())]))
    try:
        for file, content in texts.items():
            _write_source(os.path.join(folder, file), content.encode())
        renew(folder, RENEW_SECONDS)
    except OSError as error:
        raise_if_exhausted(name, error)
        raise
    return [os.path.join(folder, file) for file in texts]


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


def _builder(
    attributes: dict[str, Any], target: Target | str | None, debug: bool, sanitize: str, directory: str | None
) -> OpBuilder:
    """Returns the same builder for the same arguments, so that a second call returns the loaded module."""
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
        target,
        debug,
        sanitize,
        directory,
    )
    if key not in _builders:
        kind = type("UserBuilder", (OpBuilder,), {**attributes, "_directory": directory or "", "__module__": __name__})
        _builders[key] = kind(target, debug=debug, sanitize=sanitize)
    return _builders[key]
