"""Reads the requirements and contents of a library from its file: they are recorded, and compared with the claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opforge.accelerator import archs
from opforge.accelerator.target import Target
from opforge.builders.inspection import examine


def of_library(path: str, driver: str = "", target: Target | None = None) -> dict[str, Any]:
    """Returns the floors of a library and the device code in it, JSON-able.

    `target` is what it was built for: a cubin in no container, as in a Triton op, does not say whether it is for sm_90
    or sm_90a.

    `floors`: glibc, glibcxx, torch and `driver`, the oldest that load it, empty if it needs none; `archs`: the
    architectures of the code in it, PTX as compute_90; `sizes`: the bytes of the code by architecture; `notes`: what
    could not be read.
    """
    report = examine.examine(path)
    sizes: dict[str, int] = {}
    claims = claimed(target) if target else ()
    for image in report["images"]:
        arch = _name(image, claims)
        sizes[arch] = sizes.get(arch, 0) + int(image["size"])
    floors = report.get("floors", {})
    return {
        "floors": {
            "glibc": floors.get("GLIBC", ""),
            "glibcxx": floors.get("GLIBCXX", ""),
            "torch": report.get("shims", {}).get("floor", ""),
            "driver": driver,
        },
        "archs": sorted(sizes),
        "sizes": dict(sorted(sizes.items())),
        "notes": [*report["notes"]],
    }


def _name(image: Mapping[str, Any], claims: Sequence[str]) -> str:
    arch = str(image["arch"])
    if image["kind"] == "PTX":
        return arch.replace("sm_", "compute_")
    named = (claim for claim in claims if image["kind"] == "SASS" and image["bare"] and claim.rstrip("af") == arch)
    return next(named, arch)


def problems(measured: Mapping[str, Any], target: Target) -> list[str]:
    """Returns the architectures of the target that the library's code lacks; one line, or none."""
    if target.device not in ("cuda", "hip") or measured["notes"] or not measured["archs"]:
        return []
    missing = [arch for arch in claimed(target) if arch not in measured["archs"]]
    if not missing:
        return []
    return [
        f"it is for {target}, and holds code for {', '.join(measured['archs'])} alone: {', '.join(missing)} is missing"
    ]


def claimed(target: Target) -> tuple[str, ...]:
    """Returns the architectures that code for a target is for, PTX as compute_90."""
    return archs.resolve_ptx(target.arch) if target.device == "cuda" else target.arch
