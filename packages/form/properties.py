"""The properties of a variant, which say where it can be used, as typed values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from opforge.cache.schema import FormatError, choice, items, record, text

STABLE, TORCH, TVM, PYTHON, SOURCE = FRAMEWORKS = ("torch-stable-abi", "torch", "tvm-ffi", "python", "source")
"""Kinds of variants. `python` has no library, and `source` what it is built from."""
WITHOUT_LIBRARY = (PYTHON, SOURCE)
NOARCH = ("cpu", "cuda", "metal", "neuron", "rocm", "tpu", "xpu", "npu", "universal")
BACKENDS = {"cu": "cuda", "rocm": "rocm", "xpu": "xpu", "cann": "cann"}
"""The backends that a label gives with a version, by their prefix there."""
PREFIXES = {backend: prefix for prefix, backend in BACKENDS.items()}
PLAIN_BACKENDS = ("cpu", "metal", "neuron", "tpu")
PROCESSORS, SYSTEMS = ("x86_64", "aarch64"), ("linux", "darwin", "windows")
NUMBERS = text(r"([0-9]{1,6}\.[0-9]{1,6})?", "a version such as 2.10, or an empty text")
SCHEMA = record(
    {
        "framework": choice(*FRAMEWORKS),
        "framework_version": NUMBERS,
        "backend": choice(*sorted({*NOARCH, *PLAIN_BACKENDS, *PREFIXES, "cann"})),
        "backend_version": NUMBERS,
        "processor": choice(*PROCESSORS, ""),
        "system": choice(*SYSTEMS, ""),
        "cxx": choice("cxx11", "cxx98", ""),
        "arch": items(text("[a-z0-9_:+-]{1,64}", "an architecture")),
    }
)
"""The properties of a variant, as statements, metadata and installed releases hold them."""


class LabelError(FormatError):
    """A text is no label; the message says what is wrong."""


class Properties(NamedTuple):
    """The properties of a variant: where it can be used. Versions are (major, minor)."""

    framework: str
    framework_version: tuple[int, int] | None
    backend: str
    """cpu, cuda, rocm, metal, xpu, cann, neuron or tpu; without a library also universal."""
    backend_version: tuple[int, int] | None = None
    processor: str = ""
    """As `uname -m` prints it; empty for Python alone."""
    system: str = ""
    cxx: str = ""
    """cxx11 or cxx98 if the label names the C++ interface of torch's strings."""
    arch: tuple[str, ...] = ()
    """The CPU level above the base, or the architectures of a device, if the variant is for these alone."""

    def to_json(self) -> dict[str, Any]:
        """Returns the properties with texts for versions: what metadata and lock files hold."""
        values = self._asdict() | {"arch": list(self.arch)}
        for name in ("framework_version", "backend_version"):
            version = values[name]
            values[name] = ".".join(map(str, version)) if version else ""
        return values


def from_json(value: Mapping[str, Any]) -> Properties:
    """Returns the properties that `to_json` gave, of a value that SCHEMA has passed. Raises LabelError."""
    versions = {name: _version(value[name]) for name in ("framework_version", "backend_version")}
    properties = Properties(**{**value, **versions, "arch": tuple(value["arch"])})
    is_compiled = properties.framework not in WITHOUT_LIBRARY
    backends = {*PLAIN_BACKENDS, *PREFIXES} if is_compiled else {*NOARCH, *PLAIN_BACKENDS, "cann"}
    if properties.backend not in backends:
        found = f"{properties.backend!r}, which a variant of {properties.framework!r} cannot be for"
        raise LabelError(f"'properties.backend' is {found}: expected one of {', '.join(map(repr, sorted(backends)))}")
    return properties


def _version(text: str) -> tuple[int, int] | None:
    major, _, minor = text.partition(".")
    return (int(major), int(minor)) if text else None
