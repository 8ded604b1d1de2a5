"""`opforge.load` and `opforge.load_inline`: an op of one's own, with torch.utils.cpp_extension's arguments."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from opforge.cache.current import open_store, writable_store
from opforge.cache.filesystem.files import make_folder, read_file, renew, temp_path, write_file
from opforge.errors import BuilderError, SourceNotFoundError

from . import loader
from .base import OpBuilder
from .jit_sources import (
    CUDA_HEADERS,
    SYCL_HEADERS,
    detect_abi,
    detect_device,
    detect_inline_abi,
    documented,
    join,
    read_sources,
    with_bindings,
)
from .spec import abi as abis
from .spec.op_spec import macros, words

RENEW_SECONDS = 15 * 24 * 3600.0
"""How long after a noted use of inline sources the next one is noted. It is half of the time for which unused ones are
kept: the new time makes one look-up compare contents."""
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
    include_dirs: Sequence[str | os.PathLike[str]] = (),
    define_macros: Sequence[tuple[str, str | None]] | Mapping[str, str] = (),
    extra_compile_args: Sequence[str] | Mapping[str, Sequence[str]] = (),
    extra_link_args: Sequence[str] = (),
    libraries: Sequence[str] = (),
    debug: bool = False,
    sanitize: str = "",
) -> Any:
    """Compiles sources into an op and loads it, from the cache if no file that it was built from has changed.

        op = opforge.load("my_relu", ["relu.cpp"], extra_cflags=["-ffast-math"], fakes={"relu": torch.empty_like})
        op.relu(x)

    The arguments are torch.utils.cpp_extension.load's, then `OpBuilder`'s by name: `extra_compile_args`, say, adds to
    `extra_cflags` and its like. `abi` is detected from the sources by default: ATen and pybind mean "torch",
    torch/csrc/stable means "torch-stable", no torch at all means "c".
    `build_directory` is where the op's own cache folder is made, named `opforge`; by default all ops share one.
    `is_python_module` and `keep_intermediates` change nothing: a library without a Python module, or with an empty one
    beside its blocks, provides its ops.

    Returns the Python module for pybind sources, otherwise an object with the op's functions. Called again in one
    process, it looks at the sources again and loads a changed one beside the first. Raises what `OpBuilder.load` does.
    """
    paths = _absolute(name, _paths(name, "sources", sources))
    if is_standalone:
        raise BuilderError(name, "is_standalone=True", "opforge builds libraries to load, not programs to run")
    device = detect_device(name, paths, with_cuda or bool(extra_cuda_cflags), with_sycl or bool(extra_sycl_cflags))
    for path in paths:
        if not os.path.isfile(path):
            raise SourceNotFoundError(name, path, [os.path.dirname(path)])
    # As compilers do, headers are looked for beside a link, not beside what it leads to.
    folder = os.path.commonpath([os.path.dirname(path) for path in paths]) if paths else "/"
    include = [
        *_paths(name, "extra_include_paths", extra_include_paths or ()),
        *words(name, "include_dirs", include_dirs),
    ]
    abi = abi or detect_abi(read_sources(paths))
    attributes = {
        "name": name,
        "folder": folder,
        "sources": tuple(os.path.relpath(path, folder) for path in paths),
        "include_dirs": _absolute(name, include),
        "define_macros": macros(name, define_macros),
        "extra_compile_args": _compile_args(
            name,
            extra_compile_args,
            cxx=words(name, "extra_cflags", extra_cflags or ()),
            nvcc=words(name, "extra_cuda_cflags", extra_cuda_cflags or ()),
            sycl=words(name, "extra_sycl_cflags", extra_sycl_cflags or ()),
        ),
        "extra_link_args": (
            *words(name, "extra_ldflags", extra_ldflags or ()),
            *words(name, "extra_link_args", extra_link_args),
        ),
        "libraries": words(name, "libraries", libraries),
        "devices": (device,),
        "abi": abi,
        "torch_target": torch_target,
        "fakes": dict(fakes or {}),
        "signatures": dict(signatures or {}),
    }
    builder = _builder(attributes, debug, sanitize, _own_cache(build_directory))
    return builder.load(verbose)


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


def _own_cache(build_directory: str | None) -> str | None:
    """Returns the cache folder below a `build_directory`, which may hold other files; None for the shared one."""
    return os.path.join(build_directory, "opforge") if build_directory else None


def _compile_args(op: str, args: Any, **by_compiler: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Returns torch's arguments for each compiler, then OpBuilder's `extra_compile_args`."""
    own = args if isinstance(args, Mapping) else {"cxx": args}
    own = {key: words(op, f"extra_compile_args[{key!r}]", flags) for key, flags in own.items()}
    return {key: (*by_compiler.get(key, ()), *own.get(key, ())) for key in {**by_compiler, **own}}


def _paths(op: str, argument: str, value: Any) -> tuple[str, ...]:
    """Returns the paths of an argument that may be one path or several, as in torch. Raises BuilderError."""
    return words(op, argument, [value] if isinstance(value, (str, os.PathLike)) else value)


def _absolute(op: str, paths: Sequence[str]) -> tuple[str, ...]:
    try:
        return tuple(map(os.path.abspath, paths))
    except FileNotFoundError:
        missing = next(path for path in paths if not os.path.isabs(path))
        raise SourceNotFoundError(op, missing, ["the working folder, which has been removed"]) from None


class _UserBuilder(OpBuilder):
    """A builder made from arguments, in a cache folder of its own if one was requested."""

    directory: str | None = None

    def load(self, verbose: bool = False) -> Any:
        if self.directory is None:
            return super().load(verbose)
        entry = self.build(store=open_store(self.directory))
        return loader.load_entry(self.name, entry, self.fakes, self.signatures)


def _builder(attributes: dict[str, Any], debug: bool, sanitize: str, directory: str | None) -> OpBuilder:
    """Returns the same builder for the same arguments, so that a second call returns the loaded module."""
    plain = {name: value for name, value in attributes.items() if name not in ("fakes", "signatures")}
    try:
        types = tuple((function, result, *kinds) for function, (result, kinds) in attributes["signatures"].items())
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
    include_dirs: Sequence[str | os.PathLike[str]] = (),
    define_macros: Sequence[tuple[str, str | None]] | Mapping[str, str] = (),
    extra_compile_args: Sequence[str] | Mapping[str, Sequence[str]] = (),
    extra_link_args: Sequence[str] = (),
    libraries: Sequence[str] = (),
    debug: bool = False,
    sanitize: str = "",
) -> Any:
    """Does what `load` does for sources that are text, with the arguments of torch's `load_inline`.

    Sources that use the stable ABI are compiled as they are. Others get `torch/extension.h` and, for each of
    `functions` (a name, names, or names with docstrings), a pybind binding; those for a device get `torch/types.h` and
    the device's own headers. `use_pch` changes nothing. Raises SettingError, a ValueError as torch's, for `functions`
    of another type.
    """
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

    own_cache = _own_cache(build_directory)
    folder = writable_store(open_store(own_cache) if own_cache else None).layout.path(
        "sources", key_of([name, *sorted(written.items())])
    )
    try:
        for file, content in written.items():
            _write_source(os.path.join(folder, file), content.encode())
        renew(folder, RENEW_SECONDS)
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
        include_dirs=include_dirs,
        define_macros=define_macros,
        extra_compile_args=extra_compile_args,
        extra_link_args=extra_link_args,
        libraries=libraries,
        debug=debug,
        sanitize=sanitize,
    )
