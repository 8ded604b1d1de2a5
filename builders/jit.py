"""`opforge.load` and `opforge.load_inline`: an op of one's own, with torch.utils.cpp_extension's arguments."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, cast

from .base import OpBuilder, copied, is_fixed

if TYPE_CHECKING:
    from dataclasses import dataclass
    from typing import TypeVar, Unpack

    from .declaration import attributes
    from .declaration.attributes import FileKeywords, TextKeywords
    from .inline_sources import Texts

    Function = TypeVar("Function", bound=Callable[..., Any])

calls: dict[tuple[str, str], list[tuple[Any, OpBuilder]]] = {}
"""By function and name: the arguments of each call, with the working folder, and the builder for them. The newest
first."""
MAX_CALLS = 32
"""How many are kept of one name. Further ones are looked up by what is remembered on disk."""


class _Call:
    """A call of one of the functions, with what its builder follows from."""

    def __init__(self, function: str, name: str, arguments: tuple[Any, ...]) -> None:
        self._key, self._arguments = (function, name), (_working_folder(), arguments)

    def kept(self) -> Any:
        """Returns the op of an earlier call with equal arguments, if no file that the call has read has changed."""
        for before, builder in calls.get(self._key, ()):
            if self._equals(before) and (current := builder.current()):
                return current.module
        self._arguments = copied(self._arguments)  # before the builder is made: they may be changed in between
        return None

    def _equals(self, before: Any) -> bool:
        try:
            return bool(before == self._arguments)
        except Exception:  # an argument of a wrong type may be anything
            return False

    def keep(self, builder: OpBuilder) -> OpBuilder:
        """Keeps the builder for the next call, and returns it."""
        if is_fixed(self._arguments):  # a container of another class may change, and a comparison would not show it
            others = [call for call in calls.get(self._key, ()) if not self._equals(call[0])]
            calls[self._key] = [(self._arguments, builder), *others[: MAX_CALLS - 1]]
        return builder


class _Documented:
    """A public function whose signature, which `help` shows, has every keyword. It is made when it is asked for."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.__wrapped__ = function

    @property
    def __signature__(self) -> Any:
        from . import jit_builders
        from .declaration import attributes

        return attributes.signature(self.__wrapped__, jit_builders.DEFAULTS)


def _public(function: Function) -> Function:
    """Makes the errors of a public function end at its caller's line, also that of an unknown or wrong argument."""

    @wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        try:
            try:
                return function(*arguments, **named)
            except (TypeError, ValueError, AttributeError) as error:
                from opforge.foundation import tracebacks  # not on the path of a hit

                tracebacks.explain_call(error, call, arguments, named)
                raise
        except BaseException as error:
            from opforge.foundation import tracebacks

            tracebacks.shorten(error)
            raise

    call.__wrapped__ = _Documented(function)  # type: ignore[assignment]
    return cast("Function", call)


@_public
def load(
    name: str,
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Mapping[str, Any],
    extra_cflags: Sequence[str] | None = None,
    extra_cuda_cflags: Sequence[str] | None = None,
    extra_sycl_cflags: Sequence[str] | None = None,
    extra_ldflags: Sequence[str] | None = None,
    extra_include_paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
    build_directory: str | os.PathLike[str] | None = None,
    verbose: bool = False,
    with_cuda: bool | None = None,
    with_sycl: bool | None = None,
    is_python_module: bool = True,
    is_standalone: bool = False,
    keep_intermediates: bool = True,
    **declared: Unpack[FileKeywords],
) -> Any:
    """Compiles sources into an op and loads it, from the cache if no file that it was built from has changed.

        op = opforge.load("my_relu", ["relu.cpp"], extra_cflags=["-ffast-math"], fakes={"relu": torch.empty_like})
        op.relu(x)

    The arguments are torch.utils.cpp_extension.load's, then `OpBuilder`'s by name: `extra_compile_args`, say, adds to
    `extra_cflags` and its like. `abi` is detected from the sources by default: ATen and pybind mean "torch",
    torch/csrc/stable means "torch-stable", no torch at all means "c". "torch-facade" compiles the sources of "torch" to
    one library for every torch and Python.
    Of sources by device ({"all": [...], "cpu": [...], "cuda": [...]}) those for `target` are built: by default the
    host's, else those of the accelerator in use. `groups` are further sources with flags of their own.
    `build_directory` is where the op's own cache folder is made, named `opforge`; by default all ops share one.
    `is_python_module` and `keep_intermediates` change nothing: a library without a Python module, or with an empty one
    beside its blocks, provides its ops.

    Returns the Python module for pybind sources, otherwise an object with the op's functions. Called again in one
    process, it looks at the sources again and loads a changed one beside the first. Raises what `OpBuilder.load` does.
    """
    if TYPE_CHECKING:  # jedi completes the names that the keywords are passed on to
        dataclass(attributes.Common)(**declared)  # type: ignore[misc]
        dataclass(attributes.Files)(**declared)  # type: ignore[misc]
    if is_standalone:
        from opforge import errors

        raise errors.BuilderError(name, "is_standalone=True", "opforge builds libraries to load, not programs to run")
    flags = extra_cflags, extra_cuda_cflags, extra_sycl_cflags, extra_ldflags
    torchs = *flags, extra_include_paths, with_cuda, with_sycl
    call = _Call("load", name, (sources, torchs, declared, build_directory))
    if (module := call.kept()) is not None:
        return module
    from . import jit_builders

    return call.keep(jit_builders.from_files(name, sources, torchs, declared, build_directory)).load(verbose)


@_public
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
    build_directory: str | os.PathLike[str] | None = None,
    verbose: bool = False,
    with_cuda: bool | None = None,
    with_sycl: bool | None = None,
    is_python_module: bool = True,
    with_pytorch_error_handling: bool = True,
    keep_intermediates: bool = True,
    use_pch: bool = False,
    no_implicit_headers: bool = False,
    **declared: Unpack[TextKeywords],
) -> Any:
    """Does what `load` does for sources that are text, with the arguments of torch's `load_inline`.

    Sources that use the stable ABI, or export plain functions by `extern "C"`, are compiled as they are. Others get
    `torch/extension.h` and, for each of `functions` (a name, names, or names with docstrings), a pybind binding; those
    for a device get `torch/types.h` and the device's own headers. `use_pch` changes nothing. Raises SettingError, a
    ValueError as torch's, for `functions` of another type.
    """
    if TYPE_CHECKING:  # jedi completes the names that the keywords are passed on to
        dataclass(attributes.Common)(**declared)  # type: ignore[misc]
        dataclass(attributes.Texts)(**declared)  # type: ignore[misc]
    texts: Texts = {
        "cpp_sources": cpp_sources,
        "cuda_sources": cuda_sources,
        "sycl_sources": sycl_sources,
        "functions": functions,
        "with_pytorch_error_handling": with_pytorch_error_handling,
        "no_implicit_headers": no_implicit_headers,
    }
    flags = extra_cflags, extra_cuda_cflags, extra_sycl_cflags, extra_ldflags
    torchs = *flags, extra_include_paths, with_cuda, with_sycl
    call = _Call("load_inline", name, (texts, torchs, declared, build_directory))
    if (module := call.kept()) is not None:
        return module
    from . import inline_sources

    return call.keep(inline_sources.from_texts(name, texts, torchs, declared, build_directory)).load(verbose)


def _working_folder() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""  # it has been removed
