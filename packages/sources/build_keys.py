"""The keys that a build.toml may hold, by table and edition, with their types. Any other key is refused.

A key that is passed over would change what is built without a word: a flag that is not given, a file that is missing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from opforge.cache.schema import LIST, Fields
from opforge.packages.form import metadata, names
from opforge.packages.form.properties import NOARCH

EXPECTED = "a build.toml of edition 5, 4 or 3, as kernel-builder reads it"
EDITIONS = (3, 4, 5)
KINDS = ("torch", "torch-noarch", "tvm-ffi")
MINOR = re.compile(r"\d{1,4}\.\d{1,3}", re.ASCII)
BACKENDS = tuple(name for name in NOARCH if name not in ("npu", "universal"))
"""The backends that a file may name."""
COMPILED = ("cpu", "cuda", "metal", "rocm", "xpu")
"""Those that a [kernel.NAME] may be for."""
Check = Callable[[Fields, str], Any]


def _text(fields: Fields, key: str) -> None:
    fields.text(key)


def _texts(fields: Fields, key: str) -> None:
    fields.texts(key)


def _whole(fields: Fields, key: str) -> None:
    fields.whole(key)


def _minor(fields: Fields, key: str) -> None:
    text = fields.text(key)
    if not MINOR.fullmatch(text):
        raise fields.error(f"{key!r} is {ascii(text)[:40]}: expected a version such as 2.11")


def _backends(fields: Fields, key: str) -> None:
    values = fields.texts(key)
    for name in values:
        if name not in BACKENDS:
            raise fields.error(f"{key!r} holds {ascii(name)[:40]}: expected one of {', '.join(BACKENDS)}")
        if values.count(name) > 1:
            raise fields.error(f"{key!r} holds {name!r} twice")


def _kernels(fields: Fields, key: str) -> None:
    for value in fields.get(key, LIST):
        needed = Fields(value, f"{fields.where}: {key}", EXPECTED)
        needed.only(("repo-id", "revision", "version"))
        metadata.dependency(value, fields.where, EXPECTED)
        if ("version" in needed.values) == ("revision" in needed.values):
            raise needed.error("it has not exactly one of 'version' and 'revision'")
        if "version" in needed.values:
            needed.whole("version")


def _stable(fields: Fields, key: str) -> None:
    """Checks the target of the stable ABI: one for all backends, or a table of them."""
    value = fields.values[key]
    if not isinstance(value, dict):
        _minor(fields, key)
        return
    table = Fields(value, f"{fields.where}.{key}", EXPECTED)
    table.only(COMPILED)
    for backend in value:
        _minor(table, backend)


NEEDS: dict[str, Check] = {"python-depends": _texts, "kernel-depends": _kernels}
HUB: dict[str, Check] = {"repo-id": _text, "branch": _text}
OF_BACKEND: dict[str, dict[str, Check]] = {
    "cuda": {**NEEDS, "minver": _minor, "maxver": _minor},
    "neuron": NEEDS,
    "tpu": NEEDS,
    "xpu": NEEDS,
}
GENERAL: dict[str, Check] = {
    **NEEDS,
    "backends": _backends,
    "edition": _whole,
    "license": _text,
    "name": _text,
    "source": _text,
    "upstream": _text,
    "version": _whole,
}
REQUIRED = ("name", "version", "license", "backends")
"""The keys that edition 5 requires in [general]."""
OF_KIND: dict[str, dict[str, Check]] = {
    "torch": {
        "cxx-flags": _texts,
        "include": _texts,
        "maxver": _minor,
        "minver": _minor,
        "pyext": _texts,
        "src": _texts,
        "stable-abi": _stable,
    },
    "torch-noarch": {"cuda_capabilities": _texts, "pyext": _texts, "rocm_archs": _texts},
    "tvm-ffi": {"cxx-flags": _texts, "include": _texts, "pyext": _texts, "src": _texts},
}
KERNEL: dict[str, Check] = {
    "backend": _text,
    "cxx-flags": _texts,
    "depends": _texts,
    "include": _texts,
    "language": _text,
    "src": _texts,
}
OF_KERNEL: dict[str, dict[str, Check]] = {
    "cuda": {"cuda-capabilities": _texts, "cuda-flags": _texts, "cuda-minver": _minor},
    "rocm": {"hip-flags": _texts, "rocm-archs": _texts},
    "xpu": {"sycl-flags": _texts},
}
"""The keys that kernels of one backend have besides."""
LANGUAGES = {"cuda": "cuda", "cuda-hipify": "rocm"}
"""Edition 3 names a language, with the backend that it stands for."""


def _check(table: Any, where: str, checks: dict[str, Check]) -> Fields:
    fields = Fields(table, where, EXPECTED)
    fields.only(tuple(checks))
    for key in fields.values:
        checks[key](fields, key)
    return fields


def general(table: Any, path: str) -> Fields:
    """Returns [general]. Raises KernelFormatError for a key that the file's edition has not, or a wrong value."""
    where = f"{path}: general"
    tables: dict[str, dict[str, Check]] = {"hub": HUB, **OF_BACKEND}
    plain = Fields(table, where, EXPECTED)
    edition = plain.whole("edition", 0)
    if edition and edition not in EDITIONS:
        raise plain.error(f"'edition' is {edition}, and opforge reads {', '.join(map(str, EDITIONS))}")
    older: dict[str, Check] = {"universal": lambda fields, key: fields.flag(key)} if edition in (0, 3) else {}
    nested: dict[str, Check] = {
        name: lambda fields, key: _check(fields.values[key], f"{fields.where}.{key}", tables[key]) for name in tables
    }
    fields = _check(table, where, {**GENERAL, **older, **nested})
    for key in REQUIRED if edition == EDITIONS[-1] else ("name",):
        fields.get(key, {})
    names.check_short(fields.text("name"), f"{where}: name")
    return fields


def part(kind: str, table: Any, path: str) -> Fields:
    """Returns [torch], [torch-noarch] or [tvm-ffi]. Raises KernelFormatError."""
    return _check(table, f"{path}: {kind}", OF_KIND[kind])


def kernel(table: Any, where: str, edition: int) -> Fields:
    """Returns a [kernel.NAME], with its backend. Raises KernelFormatError."""
    fields = Fields(table, where, EXPECTED)
    backend = fields.text("backend", "")
    if "language" in fields.values:
        if edition not in (0, 3):
            raise fields.error(f"'language' is not a field of edition {edition}: name the 'backend'")
        language = fields.text("language")
        if language not in LANGUAGES:
            raise fields.error(f"'language' is {ascii(language)[:40]}: expected one of {', '.join(LANGUAGES)}")
        backend = backend or LANGUAGES[language]
    # Edition 3 means CUDA where nothing is named.
    backend = backend or ("cuda" if edition in (0, 3) else fields.text("backend"))
    if backend not in COMPILED:
        raise fields.error(f"'backend' is {ascii(backend)[:40]}: expected one of {', '.join(COMPILED)}")
    _check(table, where, {**KERNEL, **OF_KERNEL.get(backend, {})})
    fields.texts("src")
    return Fields({**table, "backend": backend}, where, EXPECTED)
