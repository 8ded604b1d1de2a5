"""Variants: the machines a build is for, as typed properties, and the label of its folder.

    torch-stable-abi210-cu130-x86_64-linux    torch 2.10 or newer, CUDA 13.0
    torch213-cxx11-cpu-x86_64-linux           torch 2.13 alone
    tvm-ffi01-cpu-aarch64-linux
    torch-cuda, torch-universal               Python without a library
    source-cuda, source-universal             Python with the sources of a library, which opforge builds

The grammar is the hub's. A label is a rendering: where it can be read in two ways (`cu1210`), the properties in the
metadata decide. After a dot ours names what the hub's grammar cannot: the CPU level or the device's architectures, as
in `torch-stable-abi210-cpu-x86_64-linux.x86-64-v3`. The hub's loader ignores such folders.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from opforge.errors import OpforgeError

from .properties import (
    BACKENDS,
    NOARCH,
    PLAIN_BACKENDS,
    PREFIXES,
    PYTHON,
    SOURCE,
    STABLE,
    TORCH,
    TVM,
    LabelError,
    Properties,
    from_json,
)

MAJOR_DIGITS = {"cuda": 2, "rocm": 1, "xpu": 4, "cann": 1}
"""How many digits the major number of each backend's version has today."""
NUMBER = r"(0|[1-9]\d{0,2})"
FRAMEWORK = re.compile(
    rf"torch-stable-abi([1-9]){NUMBER}|torch([1-9]){NUMBER}(?:-(cxx11|cxx98))?|tvm-ffi(0|[1-9]\d??){NUMBER}", re.ASCII
)
LABEL = re.compile(
    r"(?P<framework>.+?)-(?P<backend>cpu|metal|neuron|tpu|(?:cu|rocm|xpu|cann)\d{2,8})"
    r"-(?P<processor>x86_64|aarch64)-(?P<system>linux|darwin|windows)(?:\.(?P<arch>[a-z0-9_+-]{1,200}))?",
    re.ASCII,
)
MAX_LABEL = 300


def parse(label: str) -> Properties:
    """Returns the properties of a label, in its most probable reading. Raises LabelError."""
    return readings(label)[0]


def readings(label: str) -> list[Properties]:
    """Returns every reading of a label, the most probable first. Raises LabelError if there is none.

    A version is written without its dot. So `cu1210` is 12.10 or 121.0: the reading whose major number is as long as
    that backend's major numbers are today comes first.
    """
    if not isinstance(label, str) or len(label) > MAX_LABEL or not label.isascii():
        raise LabelError(f"{ascii(label)[:100]} is not the label of a variant")
    if label.startswith("torch-") and label[6:] in NOARCH:
        return [Properties(PYTHON, None, "cann" if label == "torch-npu" else label[6:])]
    if label.startswith("source-") and label[7:] in NOARCH:
        return [Properties(SOURCE, None, label[7:])]
    match = LABEL.fullmatch(label)
    if match is None:
        raise LabelError(_label_problem(label))
    framework, version, cxx = _framework(match["framework"], label)
    backend, versions = _backend(match["backend"], label)
    arch = tuple(match["arch"].split("+")) if match["arch"] else ()
    if not all(arch) and arch:
        raise LabelError(f"{label!r} has an architecture without a name")
    return [
        Properties(framework, version, backend, number, match["processor"], match["system"], cxx, arch)
        for number in versions
    ]


def _label_problem(label: str) -> str:
    if label.startswith("torch-") and label.count("-") == 1:
        return f"{label!r} is for {label[6:]!r}, and not for one of {', '.join(NOARCH)}"
    return f"{label!r} is not FRAMEWORK-BACKEND-PROCESSOR-SYSTEM, such as torch-stable-abi210-cu130-x86_64-linux"


def _framework(text: str, label: str) -> tuple[str, tuple[int, int], str]:
    match = FRAMEWORK.fullmatch(text)
    if match is None:
        expected = "torch-stable-abi210, torch213, torch213-cxx11 or tvm-ffi01"
        raise LabelError(f"{label!r} begins with {text!r}, and not with a framework such as {expected}")
    stable_major, stable_minor, major, minor, cxx, tvm_major, tvm_minor = match.groups()
    if stable_major:
        return STABLE, (int(stable_major), int(stable_minor)), ""
    if major:
        return TORCH, (int(major), int(minor)), cxx or ""
    return TVM, (int(tvm_major), int(tvm_minor)), ""


def _backend(text: str, label: str) -> tuple[str, list[tuple[int, int] | None]]:
    if text in PLAIN_BACKENDS:
        return text, [None]
    name = text.rstrip("0123456789")
    backend, digits = BACKENDS[name], text[len(name) :]
    usual = MAJOR_DIGITS[backend]
    cuts = sorted(range(1, len(digits)), key=lambda cut: (cut != usual, len(digits) - cut))
    # A minor number has no leading zero, and no more than two digits.
    versions: list[tuple[int, int] | None] = [
        (int(digits[:cut]), int(digits[cut:]))
        for cut in cuts
        if digits[0] != "0" and str(int(digits[cut:])) == digits[cut:] and len(digits) - cut <= 2 and cut >= usual
    ]
    if not versions:
        raise LabelError(f"{label!r} holds {text!r}, expected a version of {backend}")
    return backend, versions


def label_of(properties: Properties) -> str:
    """Returns the label of a variant. A feature of an architecture (`gfx90a:xnack-`) is written with `_`."""
    if properties.framework == PYTHON:
        return f"torch-{'npu' if properties.backend == 'cann' else properties.backend}"
    if properties.framework == SOURCE:
        return f"source-{properties.backend}"
    version = "".join(map(str, properties.framework_version or ()))
    cxx = f"-{properties.cxx}" if properties.cxx else ""
    prefix = PREFIXES.get(properties.backend, properties.backend)
    backend = prefix + "".join(map(str, properties.backend_version or ()))
    arch = "." + "+".join(word.replace(":", "_") for word in properties.arch) if properties.arch else ""
    return f"{properties.framework}{version}{cxx}-{backend}-{properties.processor}-{properties.system}{arch}"


def check_label(label: str, properties: Properties) -> None:
    """Raises LabelError if a label is not that of a variant with these properties."""
    if label_of(properties) != label and properties not in readings(label):
        raise LabelError(
            f"the label is {label!r}, and the properties in its metadata are those of {label_of(properties)!r}"
        )


def stated(label: str, opforge: Mapping[str, Any], backend: str, where: str) -> Properties:
    """Returns a variant's properties: those that opforge wrote into its metadata, else those of its label.

    `backend` is the type that the metadata gives, which the properties must not contradict. Raises KernelFormatError.
    """
    try:
        properties = from_json(opforge["properties"]) if "properties" in opforge else parse(label)
        check_label(label, properties)
        if properties.backend not in (backend, "universal"):
            raise LabelError(f"the label {label!r} is for {properties.backend}, and its metadata is for {backend}")
    except LabelError as error:
        raise _error(where, str(error)) from error
    return properties


def _error(where: str, problem: str) -> OpforgeError:
    from opforge.errors import KernelFormatError  # not on the path of a load

    return KernelFormatError(where, problem, "a folder that opforge pack or kernel-builder has written")
