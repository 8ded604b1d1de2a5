"""Attributes of a builder that `OpBuilder` does not have: other words for the same thing, slips, DeepSpeed's methods.

Imported only if a builder has such an attribute.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from opforge.errors import BuilderError

OTHER_WORDS = {
    "cxx_flags": "extra_compile_args = [...]",
    "device_flags": 'extra_compile_args = {"cxx": [...], "cuda": [...]}',
    "link_flags": "extra_link_args = [...]",
    "defines": 'define_macros = [("NAME", "value")]',
    "undef_macros": 'extra_compile_args = ["-UNAME"]',
    "library_dirs": 'extra_link_args = ["-L/the/folder"]',
    "runtime_library_dirs": 'extra_link_args = ["-Wl,-rpath,/the/folder"]',
    "extra_objects": 'extra_link_args = ["/the/object.o"]',
    "extra_cflags": "extra_compile_args = [...]",
    "extra_cuda_cflags": 'extra_compile_args = {"cxx": [...], "cuda": [...]}',
    "extra_sycl_cflags": 'extra_compile_args = {"cxx": [...], "xpu": [...]}',
    "extra_ldflags": "extra_link_args = [...]",
    "extra_include_paths": "include_dirs = [...]",
    "with_cuda": 'devices = ["cuda"]',
    "with_sycl": 'devices = ["xpu"]',
    "cflags": "extra_compile_args = [...]",
    "cxxflags": "extra_compile_args = [...]",
    "nvcc_flags": 'extra_compile_args = {"cxx": [...], "cuda": [...]}',
    "cuda_flags": 'extra_compile_args = {"cxx": [...], "cuda": [...]}',
    "hip_flags": 'extra_compile_args = {"cxx": [...], "hip": [...]}',
    "cuda_capabilities": 'architectures = {"cuda": [...]}',
    "rocm_archs": 'architectures = {"hip": [...]}',
    "minver": 'requires_torch = ">=2.11"',
    "maxver": 'requires_torch = "<2.14"',
    "ldflags": "extra_link_args = [...]",
    "link_args": "extra_link_args = [...]",
    "macros": 'define_macros = [("NAME", "value")]',
    "version_dependent_macros": 'define_macros = [("NAME", "value")]',
    "include_path": "include_dirs = [...]",
    "py_limited_api": 'abi = "torch-stable"',
}
"""A word of setuptools, of torch's `load`, or of a hub kernel -> the line to write instead."""
NOT_NEEDED = {
    "depends": "the compiler reports the headers that a source includes",
    "language": "a source's suffix decides",
    "optional": "is_compatible() says whether the op can be built",
    "export_symbols": "the op's functions are exported by their declarations",
    "swig_opts": "SWIG is not supported",
}
"""A word of setuptools that has no counterpart -> why."""


def _link_word(name: object) -> str:
    """Returns the flag for a library's name. Some builders write it as a flag."""
    return str(name) if str(name).startswith("-") else f"-l{name}"


METHODS: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "sources": lambda values: {"sources": values},
    "include_paths": lambda values: {"include_dirs": values},
    "cxx_args": lambda values: {"extra_compile_args": {"cxx": values}},
    "nvcc_args": lambda values: {"extra_compile_args": {"nvcc": values}},
    "extra_ldflags": lambda values: {"extra_link_args": values},
    "libraries_args": lambda names: {"extra_link_args": [*map(_link_word, names)]},
}
"""A method of DeepSpeed's builders -> the attributes that its result sets."""


def resolve(declared: Any, names: Iterable[str], expected: Collection[str]) -> dict[str, Any]:
    """Returns the attributes that the DeepSpeed methods among `names` set, with their values.

    Raises BuilderError for a name that is another word for one of the `expected` attributes, or a misspelt one.
    """
    builder, values = type(declared).__name__, dict[str, Any]()
    for name in names:
        value = getattr(declared, name)
        if name in METHODS and name not in OTHER_WORDS and not callable(value):
            raise BuilderError(builder, f"{name} is not a method", f"Write def {name}(self), which returns a list")
        if name in METHODS and callable(value):
            for attribute, part in METHODS[name](_called(builder, name, value)).items():
                values[attribute] = _joined(values.get(attribute), part)
        elif name in OTHER_WORDS:
            raise BuilderError(builder, f"it has the attribute {name!r}", f"Write {OTHER_WORDS[name]}")
        elif name in NOT_NEEDED:
            raise BuilderError(builder, f"it has the attribute {name!r}", f"Remove it: {NOT_NEEDED[name]}")
        elif near := difflib.get_close_matches(name, {*expected, *OTHER_WORDS, *METHODS}, n=1, cutoff=0.8):
            meant = OTHER_WORDS.get(near[0], near[0]) if near[0] not in METHODS else f"{near[0]}()"
            meant = near[0] if near[0] in expected else meant
            own = "or begin an attribute of your own with an underscore"
            raise BuilderError(builder, f"it has the attribute {name!r}", f"Write {meant}, {own}")
    return values


def _called(builder: str, name: str, method: Callable[[], Any]) -> Any:
    """Returns the result without empty entries, which DeepSpeed drops too; a text as it is, to be refused later."""
    try:
        values = method()
        return values if isinstance(values, str) else [value for value in values if value != ""]
    except (AttributeError, TypeError) as error:
        lines = ", ".join(f"{attribute} = ..." for attribute in METHODS[name]([]))
        advice = f"The method may need DeepSpeed's base class. Write {lines} instead"
        raise BuilderError(builder, f"{name}() fails: {error}", advice) from error


def _joined(before: Any, part: Any) -> Any:
    if before is None:
        return part
    return {**before, **part} if isinstance(part, dict) else [*before, *part]
