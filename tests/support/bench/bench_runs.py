"""Runs of `opforge bench` with samples that a test chooses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

MACHINE = {
    "cpu": "Processor A",
    "cores": 2,
    "memory": 16 << 30,
    "system": "Linux 6.1 x86_64",
    "python": "3.11",
    "torch": "2.13",
    "opforge": "0.1.0",
    "compiler": "g++",
    "device": "",
    "threads": 2,
}


def result(
    op: str = "CPUAdam", ours: Sequence[float] = (1.0, 1.1, 1.2), copy: Sequence[float] = (2.0, 2.2, 2.4), **fields: Any
) -> Any:
    """Returns a result whose baseline is a copy."""
    from opforge.bench.results import Result

    size = fields.pop("size", 1 << 20)
    declared = {"case": "step", "size_unit": "elements", "dtype": "float32", "device": "cpu", "unit": "GB/s", **fields}
    samples = {"opforge": list(ours), "copy": list(copy)}
    return Result(op=op, size=size, amount=28.0 * size, baseline=["copy"], samples=samples, **declared)


def run(*results: Any, **machine: Any) -> Any:
    """Returns a run of these results, on a machine with these facts."""
    from opforge.bench.results import Run

    return Run({**MACHINE, **machine}, "cpu", False, list(results), {}, [0.5, 0.4, 0.3], [0.6, 0.5, 0.4], 12.0)


def write(path: Any, value: Any) -> str:
    """Writes a run's file. Returns its path."""
    import json

    path.write_text(json.dumps(value.to_json()), encoding="utf-8")
    return str(path)
