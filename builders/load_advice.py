"""Advice about a library that cannot be loaded. Imported only if loading fails, or for an instrumented library."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from opforge.errors import LoadError, NamespaceClashError
from opforge.foundation.files import read_file
from opforge.foundation.symbols import demangled

UNDEFINED = re.compile(r"undefined symbol: (\w+)")
ABSENT = re.compile(r"(?!libtorch|libc10)([^\s/]+): cannot open shared object file")
"""Of a library that the op needs, and that no package of torch has."""
OTHER_NAMESPACE = re.compile(r"(?:kernel of|definition) \w+::")
"""The beginning of a name in torch's refusal: the block's own namespace is left out before."""
SOURCES = (".c", ".cc", ".cpp", ".cxx", ".cu", ".hip", ".sycl")


def load_error(op: str, path: str, error: Exception, watched: Iterable[str] = ()) -> LoadError:
    """Returns the error for a library that cannot be opened.

    A missing symbol is written as in sources, with the line among `watched`, the files that the library was built
    from, that uses it.
    """
    problem = str(error).removeprefix(f"{path}: ")
    if missing := UNDEFINED.search(problem):
        readable = demangled([missing[1]])[missing[1]]
        place = _use_of(readable, watched)
        problem = problem.replace(missing[1], f"{readable}, which {place} uses" if place else readable)
        return LoadError(op, path, problem, advice(str(error)))
    return LoadError(op, path, problem, advice(problem))


def _use_of(symbol: str, watched: Iterable[str]) -> str:
    """Returns the first place in the files, as FILE:LINE, that has the symbol's name; empty if none has."""
    import os

    name = symbol
    while (shorter := re.sub(r"<[^<>]*>", "", name)) != name:
        name = shorter  # without what templates are for
    words = re.findall(r"\w+", name.partition("(")[0])
    for path in (path for path in watched if words and path.endswith(SOURCES) and os.path.isfile(path)):
        try:
            lines = read_file(path).decode(errors="replace").splitlines()
        except (OSError, ValueError):
            continue
        if used := [number for number, line in enumerate(lines, 1) if re.search(rf"\b{words[-1]}\b", line)]:
            return f"{path}:{used[-1]}"  # the first may be its declaration
    return ""


def advice(problem: str) -> str:
    """Returns the advice about an error of dlopen or of Python's import."""
    if "failed to map segment" in problem or "Operation not permitted" in problem:
        allowed = "set OPFORGE_CACHE_DIR, or TMPDIR for the ops of a saved program, to one that allows execution"
        return f"The folder is probably mounted noexec: {allowed}"
    if "version `GLIBCXX" in problem or "version `CXXABI" in problem:  # which may have been here
        own = "run Python with LD_PRELOAD=$(g++ -print-file-name=libstdc++.so.6), for that g++"
        return f"This process has an older libstdc++ than the g++ that built it: set CXX to an older one, or {own}"
    if "version `GLIBC" in problem:
        return "It was built on a newer system: build it here, or against an older sysroot"
    if "undefined symbol: aoti_torch_" in problem or "undefined symbol: torch_" in problem:
        return "It is for a newer torch: upgrade torch, or lower the builder's torch_target and build it again"
    if "is already registered" in problem and "generic_type" in problem:  # pybind11's error
        return "A process has one class of this name: bind it with py::module_local(), or restart the process"
    if "undefined symbol" in problem:
        return "Name the source or the library that defines it: in sources, or in libraries or extra_link_args (-l...)"
    if absent := ABSENT.match(problem):
        flag = "extra_link_args = ['-Wl,-rpath,/the/folder']"
        return f"Install {absent[1]}, or name its folder: in LD_LIBRARY_PATH, or by {flag}"
    return "Rebuild it with: build-ops --force"


def schema_advice(torch: Any, schemas: list[str], problem: str) -> str:
    """Returns which schema torch cannot read, and why: torch does not say so across its C interface."""
    if "the dispatch key" in problem:
        return "Write CPU, CUDA, XPU, Meta, CompositeExplicitAutograd or another key of torch's, in this letter case"
    if OTHER_NAMESPACE.search(problem):
        return "A block serves its own namespace: write the name without another one, or move it to a block of that"
    for schema in schemas:
        try:
            parsed = torch._C.parse_schema(schema)
        except RuntimeError as error:
            return f"The schema {schema!r} cannot be read: {str(error).strip()}"  # with a mark at the place
        for value in (*parsed.arguments, *parsed.returns):
            for kind in (value.type, *value.type.containedTypes()):
                if kind.kind() == "VarType":  # what torch makes of any lower-case word that it does not know
                    types = "Write Tensor, int (for int64_t), float (for double), bool or str"
                    return f"{str(kind)!r} in the schema {schema!r} is not a type. {types}"
    return "Look for an op that is defined twice, or a kernel for an op that no block defines"


def registration_error(op: str, path: str, problem: str, schemas: list[str], suffix: str) -> Exception:
    """Returns the error for ops that torch refused: another library has one of them, or a schema cannot be read."""
    import torch

    for schema in schemas:
        public, _, overload = schema.partition("(")[0].partition(".")
        namespace, _, name = public.partition("::")
        # As torch.ops finds it, without an exception on the way.
        if torch._C._get_operation_overload(f"{namespace}{suffix}::{name}", overload) is not None:
            return NamespaceClashError(op, public)
    return LoadError(op, path, problem, schema_advice(torch, schemas, problem))


def check_sanitizers(op: str, path: str, needed: Sequence[str]) -> None:
    """Raises LoadError if a library needs a sanitizer's run-time library that is not in the process.

    Opening the library would then end the process.
    """
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        mapped = file.read()
    if missing := next((name for name in needed if name not in mapped), None):
        preload = f"Run Python with LD_PRELOAD=$(g++ -print-file-name={missing.partition('.so')[0]}.so)"
        raise LoadError(op, path, f"it is instrumented, and {missing} must be loaded before it", preload)
