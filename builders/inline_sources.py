"""The builder for the arguments of `opforge.load_inline`: sources that are text are completed, and written."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opforge.cache.current_store import open_store, writable_store
from opforge.cache.keys import key_of
from opforge.errors import BuilderError, SettingError
from opforge.foundation.files import make_folder, read_file, renew, temp_path, write_file

from .base import OpBuilder
from .declaration import abi as abis
from .declaration.attributes import TextKeywords
from .jit_builders import (
    NOT_OF_LOAD_INLINE,
    check_keywords,
    detect_abi,
    from_files,
    own_cache,
)
from .resources import raise_for

if TYPE_CHECKING:
    from typing import TypedDict

    from .jit_builders import TorchArguments

    class Texts(TypedDict):
        """The sources of `load_inline`, and how they are completed."""

        cpp_sources: str | Sequence[str]
        cuda_sources: str | Sequence[str] | None
        sycl_sources: str | Sequence[str] | None
        functions: str | Sequence[str] | Mapping[str, str] | None
        with_pytorch_error_handling: bool
        no_implicit_headers: bool


RENEW_SECONDS = 15 * 24 * 3600.0
"""How long after a noted use of inline sources the next one is noted. It is half of the time for which unused ones are
kept: the new time makes one look-up compare contents."""
CUDA_HEADERS = "#include <torch/types.h>\n#include <cuda.h>\n#include <cuda_runtime.h>\n"
SYCL_HEADERS = "#include <torch/types.h>\n#include <sycl/sycl.hpp>\n"
"""The headers that torch's load_inline puts before the sources for a device."""


def from_texts(
    name: str,
    texts: Texts,
    torchs: TorchArguments,
    declared: TextKeywords,
    build_directory: str | os.PathLike[str] | None,
) -> OpBuilder:
    """Returns the builder for `load_inline`'s arguments. Writes the sources. Raises TypeError as `from_files` does."""
    check_keywords("load_inline", declared, NOT_OF_LOAD_INLINE)
    abi, written = _completed(name, texts, declared.get("abi"))
    own = own_cache(name, build_directory)
    layout = writable_store(open_store(own) if own else None, is_for_sources=True).layout
    folder = layout.path("sources", key_of([name, *sorted(written.items())]))
    try:
        for file, content in written.items():
            _write_source(os.path.join(folder, file), content.encode())
        renew(folder, RENEW_SECONDS)
    except OSError as error:
        raise_for(name, layout.root, error)
        raise
    files = [os.path.join(folder, file) for file in written]
    return from_files(name, files, torchs, {**declared, "abi": abi, "groups": ()}, build_directory)


def _completed(name: str, texts: Texts, abi: Any) -> tuple[str, dict[str, str]]:
    """Returns the ABI of sources that are text, and the text of each file with headers and bindings."""
    text, cuda, sycl = (join(argument, texts[argument]) for argument in ("cpp_sources", "cuda_sources", "sycl_sources"))
    bound, is_bare = documented(texts["functions"]), texts["no_implicit_headers"]
    if not (text + cuda + sycl).strip():
        raise BuilderError(name, "its sources are empty", "Pass at least one text in `cpp_sources` or `cuda_sources`")
    abi = abi or detect_inline_abi(text, cuda + sycl, bool(bound))
    if abi in abis.WITH_MODULES:
        text = with_bindings(text, bound, texts["with_pytorch_error_handling"], is_bare)
    elif bound and abi in abis.ALL:
        advice = "Omit it: only pybind, which abi='torch' and 'torch-facade' use, binds functions by name"
        raise BuilderError(name, f"functions={texts['functions']!r} with abi={abi!r}", advice)
    if abi in abis.WITH_MODULES and not is_bare:
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


def detect_inline_abi(text: str, of_device: str, is_bound: bool) -> str:
    """Returns the ABI of sources that are given as text: torch's header is put before all but stable and plain ones.

    A source that exports plain functions and binds none is plain: torch's header would give Python nothing.
    """
    abi = detect_abi(text + of_device)
    is_own = abi == abis.STABLE or (abi == abis.PLAIN and not is_bound and not of_device)
    return abi if is_own else abis.TORCH


def join(argument: str, sources: Any) -> str:
    """Returns the sources of an argument, a text or several, as one text. Raises SettingError for anything else."""
    lines = [sources] if isinstance(sources, str) else () if sources is None else sources
    if not isinstance(lines, (list, tuple)) or not all(isinstance(line, str) for line in lines):
        raise SettingError(argument, sources, "a text, or a list of texts")
    return "\n".join(lines)


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
