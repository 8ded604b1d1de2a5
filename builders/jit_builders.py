"""The builders for the arguments of `opforge.load` and `load_inline`. The sources of the latter are written here."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from opforge.cache.current import open_store, writable_store
from opforge.cache.filesystem.files import read_file, renew
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
from .spec import abi as abis
from .spec.by_device import DeviceScope, words

if TYPE_CHECKING:
    from opforge.accelerator.target import Target

_builders: dict[tuple[Any, ...], OpBuilder] = {}

RENEW_SECONDS = 15 * 24 * 3600.0
"""How long after a noted use of inline sources the next one is noted. It is half of the time for which unused ones are
kept: the new time makes one look-up compare contents."""


def from_files(
    *,
    name: str,
    sources: Any,
    extra_cflags: Any,
    extra_cuda_cflags: Any,
    extra_sycl_cflags: Any,
    extra_ldflags: Any,
    extra_include_paths: Any,
    build_directory: str | None,
    with_cuda: bool | None,
    with_sycl: bool | None,
    abi: Any,
    torch_target: str,
    requires_torch: str,
    target: Target | str | None,
    architectures: Any,
    fakes: Any,
    signatures: Any,
    include_dirs: Any,
    define_macros: Any,
    extra_compile_args: Any,
    extra_link_args: Any,
    libraries: Any,
    debug: bool,
    sanitize: str,
    groups: Any = (),
    is_standalone: bool = False,
    **_unused: Any,
) -> OpBuilder:
    """Returns the builder for `load`'s arguments."""
    if is_standalone:
        raise BuilderError(name, "is_standalone=True", "opforge builds libraries to load, not programs to run")
    sources = each(sources, lambda part: _absolute(name, _paths(name, "sources", part)))
    groups = [_located_group(name, group) for group in listed_groups(name, groups)]
    paths = [path for part in (sources, *(group["sources"] for group in groups)) for path in files_of(part)]
    with_cuda, with_sycl = with_cuda or bool(extra_cuda_cflags), with_sycl or bool(extra_sycl_cflags)
    if isinstance(sources, Mapping):
        devices = known_devices(name, sources)
        target = target or ("cuda" if with_cuda else "xpu" if with_sycl else None)
    else:
        devices = (detect_device(name, paths, with_cuda, with_sycl),)
    for path in paths:
        if not os.path.isfile(path):
            raise SourceNotFoundError(name, path, [os.path.dirname(path)])
    # As compilers do, headers are looked for beside a link, not beside what it leads to.
    folder = os.path.commonpath([os.path.dirname(path) for path in paths]) if paths else "/"
    include = _absolute(name, _paths(name, "extra_include_paths", extra_include_paths or ()))
    attributes = {
        "name": name,
        "folder": folder,
        "sources": _below(folder, sources),
        "groups": tuple({**group, "sources": _below(folder, group["sources"])} for group in groups),
        "architectures": architectures,
        "requires_torch": requires_torch,
        "include_dirs": after(
            include, each(include_dirs, lambda part: _absolute(name, words(name, "include_dirs", part)))
        ),
        "define_macros": define_macros if is_by_device(define_macros) else DeviceScope(name).macros(define_macros),
        "extra_compile_args": _compile_args(
            name,
            extra_compile_args,
            cxx=words(name, "extra_cflags", extra_cflags or ()),
            nvcc=words(name, "extra_cuda_cflags", extra_cuda_cflags or ()),
            sycl=words(name, "extra_sycl_cflags", extra_sycl_cflags or ()),
        ),
        "extra_link_args": after(
            words(name, "extra_ldflags", extra_ldflags or ()),
            each(extra_link_args, lambda part: words(name, "extra_link_args", part)),
        ),
        "libraries": each(libraries, lambda part: words(name, "libraries", part)),
        "devices": devices,
        "abi": abi or detected_abi(sources, groups, devices),
        "torch_target": torch_target,
        "fakes": dict(fakes or {}),
        "signatures": dict(signatures or {}),
    }
    return _builder(attributes, target, debug, sanitize, _own_cache(name, build_directory))


def from_texts(
    *,
    name: str,
    cpp_sources: Any,
    cuda_sources: Any,
    sycl_sources: Any,
    functions: Any,
    build_directory: str | None,
    with_pytorch_error_handling: bool,
    no_implicit_headers: bool,
    abi: str | None,
    **others: Any,
) -> OpBuilder:
    """Returns the builder for `load_inline`'s arguments. Writes the sources."""
    text, cuda, sycl = join(cpp_sources), join(cuda_sources), join(sycl_sources)
    bound = documented(functions)
    abi = abi or detect_inline_abi(text + cuda + sycl)
    if abi == abis.TORCH:
        text = with_bindings(text, bound, with_pytorch_error_handling, no_implicit_headers)
    elif bound:
        advice = "Omit it: only pybind, which abi='torch' uses, binds functions by name"
        raise BuilderError(name, f"functions={functions!r} with abi={abi!r}", advice)
    if abi == abis.TORCH and not no_implicit_headers:
        cuda = CUDA_HEADERS + cuda if cuda else ""
        sycl = SYCL_HEADERS + sycl if sycl else ""
    texts = {"main.cpp": text, "cuda.cu": cuda, "sycl.sycl": sycl}
    written = {file: content for file, content in texts.items() if content.strip()}
    from opforge.cache.keys import key_of

    own_cache = _own_cache(name, build_directory)
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
    return from_files(name=name, sources=files, build_directory=build_directory, abi=abi, **others)


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
