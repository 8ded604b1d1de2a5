"""The properties of a variant, from its built library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opforge.accelerator.target import Target
from opforge.builders.declaration.abi import ON_STABLE, PLAIN
from opforge.builders.declaration.targets import LEVELS
from opforge.errors import PackError
from opforge.foundation.versions import version_of
from opforge.packages.choose.environment import TOOLKITS
from opforge.packages.form.properties import STABLE as STABLE_VARIANT
from opforge.packages.form.properties import TORCH as TORCH_VARIANT
from opforge.packages.form.properties import TVM as TVM_VARIANT
from opforge.packages.form.properties import Properties

BACKENDS = {"cpu": "cpu", "cuda": "cuda", "hip": "rocm", "xpu": "xpu"}
"""Device of a target -> backend of a variant."""
DEVICES = {backend: device for device, backend in BACKENDS.items()}
TVM_LIBRARY = "libtvm_ffi.so"


def of_record(
    name: str, record: Mapping[str, Any], by_architecture: bool = False, tvm_ffi: str = "", toolkit: str = ""
) -> Properties:
    """Returns the properties of a library with this record. Raises PackError if no variant can hold it.

    `by_architecture` makes the device's architectures a part of them: then another variant may have others. `tvm_ffi`
    is the version whose functions the library has, in place of ops of torch; `toolkit` that of CUDA or ROCm which the
    record does not state. A library of plain functions is labelled as one on the stable ABI: the Python that calls it
    works with every torch from the oldest on.
    """
    target = Target.parse(record["target"])
    backend = BACKENDS.get(target.device)
    if backend is None:
        advice = f"Packages are for {', '.join(BACKENDS)}."
        raise PackError(name, [f"its target is {target}, and no package can be for {target.device}"], advice)
    if tvm_ffi:
        framework, number, cxx = TVM_VARIANT, tvm_ffi, ""
    elif record["abi"] in (*ON_STABLE, PLAIN):
        framework, number, cxx = STABLE_VARIANT, record["torch_target"], ""
    else:
        framework, number, cxx = TORCH_VARIANT, record["requires"]["torch"], "cxx11"
    arch: tuple[str, ...] = target.arch if by_architecture else ()
    if target.device == "cpu":
        # The base level needs no name: every processor of the kind has it.
        arch = tuple(level for level in target.arch if level in LEVELS[1:])
    return Properties(
        framework=framework,
        framework_version=_pair(number),
        backend=backend,
        backend_version=_backend_version(target.device, record["requires"]) or (_pair(toolkit) if toolkit else None),
        processor=record["machine"],
        system="linux",
        cxx=cxx,
        arch=arch,
    )


def _backend_version(device: str, requires: Mapping[str, str]) -> tuple[int, int] | None:
    text = requires.get(TOOLKITS.get(device, ""))
    return _pair(text) if text else None


def toolkit_problem(backend: str, requires: Mapping[str, str], versions: tuple[str, str]) -> str:
    """Returns why a library may not be built with the toolkit that it requires, or an empty text.

    `versions` are the oldest and the newest that may be used; an empty text is no limit.
    """
    oldest, newest = versions
    used = requires.get(TOOLKITS.get(DEVICES.get(backend, ""), ""), "")
    if not used or not (oldest or newest):
        return ""
    is_inside = (not oldest or _pair(used) >= _pair(oldest)) and (not newest or _pair(used) <= _pair(newest))
    text = f"{oldest} or newer" if not newest else f"{oldest} to {newest}" if oldest else f"{newest} or older"
    return "" if is_inside else f"it is for {backend} {text}, and the toolkit here is {used}"


def _pair(text: str) -> tuple[int, int]:
    numbers = (*version_of(text), 0, 0)
    return numbers[0], numbers[1]


def capabilities(device: str, arch: tuple[str, ...]) -> tuple[str, ...]:
    """Returns architectures as the hub's metadata has them: `9.0a`, `9.0+PTX`, `gfx942`."""
    if device != "cuda":
        return () if device == "cpu" else arch
    from opforge.accelerator.archs import newest_portable, numbers

    newest = newest_portable(arch)
    with_ptx = {numbers(word) for word in arch if word.startswith("compute_")}
    if newest and "ptx" in arch:
        with_ptx.add(numbers(newest))
    # An architecture with its code and PTX is one text: 9.0+PTX.
    kinds = dict.fromkeys(numbers(word) for word in arch if word != "ptx")
    return tuple(
        f"{major}.{minor}{letter}" + ("+PTX" if (major, minor, letter) in with_ptx else "")
        for major, minor, letter in sorted(kinds)
    )
