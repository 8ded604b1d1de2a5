"""What a variant is for, as typed properties."""

from __future__ import annotations

from typing import Any, NamedTuple

STABLE, TORCH, TVM, PYTHON, SOURCE = FRAMEWORKS = ("torch-stable-abi", "torch", "tvm-ffi", "python", "source")
"""Kinds of variants. `python` has no library, and `source` what it is built from."""
WITHOUT_LIBRARY = (PYTHON, SOURCE)
NOARCH = ("cpu", "cuda", "metal", "neuron", "rocm", "tpu", "xpu", "npu", "universal")
BACKENDS = {"cu": "cuda", "rocm": "rocm", "xpu": "xpu", "cann": "cann"}
"""The backends that a label gives with a version, by their prefix there."""
PREFIXES = {backend: prefix for prefix, backend in BACKENDS.items()}
PLAIN_BACKENDS = ("cpu", "metal", "neuron", "tpu")
PROCESSORS, SYSTEMS = ("x86_64", "aarch64"), ("linux", "darwin", "windows")
ARCHITECTURE = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_:+-")


class LabelError(ValueError):
    """A text is no label; the message says what is wrong."""


class Properties(NamedTuple):
    """What a variant is for. Versions are (major, minor)."""

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


def from_json(value: Any) -> Properties:
    """Returns the properties that `to_json` gave. Raises LabelError."""
    try:
        texts = {name: value[name] for name in ("framework", "backend", "processor", "system", "cxx")}
        versions = [_version(value[name]) for name in ("framework_version", "backend_version")]
        arch = tuple(value["arch"])
        properties = Properties(
            texts["framework"],
            versions[0],
            texts["backend"],
            versions[1],
            texts["processor"],
            texts["system"],
            texts["cxx"],
            arch,
        )
        is_compiled = texts["framework"] not in WITHOUT_LIBRARY
        backends = {*PLAIN_BACKENDS, *PREFIXES} if is_compiled else {*NOARCH, *PLAIN_BACKENDS, "cann"}
        is_valid = (
            texts["framework"] in FRAMEWORKS
            and texts["backend"] in backends
            and texts["processor"] in (*PROCESSORS, "")
            and texts["system"] in (*SYSTEMS, "")
            and texts["cxx"] in ("cxx11", "cxx98", "")
            and all(isinstance(word, str) and 0 < len(word) <= 64 and ARCHITECTURE.issuperset(word) for word in arch)
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise LabelError("the properties of the variant are incomplete") from error
    if not is_valid:
        raise LabelError("the properties of the variant have values that are not known")
    return properties


def _version(text: str) -> tuple[int, int] | None:
    if text == "":
        return None
    major, dot, minor = text.partition(".")
    if not (dot and text.isascii() and major.isdecimal() and minor.isdecimal() and len(text) <= 13):
        raise ValueError(text)
    return int(major), int(minor)
