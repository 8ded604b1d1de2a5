"""What `opforge.load` and `load_inline` read off sources: their ABI, their device, and the text around inline ones."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from opforge.errors import BuilderError, SettingError

from .spec import abi as abis
from .spec.machine import torch_built_for

TORCH_HEADERS = tuple(
    f"torch/{name}.h" for name in ("all", "extension", "library", "python", "script", "torch", "types")
)
USES_TORCH = (*TORCH_HEADERS, "ATen/", "pybind11", "PYBIND11_MODULE", "<c10/", '"c10/', "TORCH_LIBRARY")
USES_STABLE = ("torch/csrc/stable/", "STABLE_TORCH_LIBRARY")
SUFFIX_DEVICES = {".cu": "cuda", ".hip": "hip", ".sycl": "xpu", ".cl": "opencl"}
"""The device of a source, if its name says it. A `.cu` is HIP's too if the installed torch is built for HIP."""
CUDA_HEADERS = "#include <torch/types.h>\n#include <cuda.h>\n#include <cuda_runtime.h>\n"
SYCL_HEADERS = "#include <torch/types.h>\n#include <sycl/sycl.hpp>\n"
"""What torch's load_inline puts before the sources for a device."""


def read_sources(paths: Sequence[str]) -> str:
    """Returns the text of all sources."""
    text = ""
    for path in paths:
        with open(path, encoding="utf-8", errors="replace") as file:
            text += file.read()
    return text


def detect_abi(text: str) -> str:
    """Returns the ABI that sources are written for, by what they include."""
    if _uses_torch(text):
        return abis.TORCH
    if any(mark in text for mark in USES_STABLE):
        return abis.STABLE
    # torch is not named: plain functions, if they are exported as such; otherwise one of their headers may include it.
    return abis.PLAIN if 'extern "C"' in text else abis.TORCH


def detect_inline_abi(text: str) -> str:
    """Returns the ABI of sources that are given as text: torch's header is put before all but stable ones."""
    is_stable = any(mark in text for mark in USES_STABLE) and not _uses_torch(text)
    return abis.STABLE if is_stable else abis.TORCH


def _uses_torch(text: str) -> bool:
    """Returns whether a source is written for ATen, c10 or pybind. A compiled pattern would cost more than a hit."""
    text = text.replace("STABLE_TORCH_LIBRARY", "")
    return any(mark in text for mark in USES_TORCH)


def detect_device(op: str, paths: Sequence[str], with_cuda: bool, with_sycl: bool) -> str:
    """Returns the device that sources are for: the CPU, unless a suffix or an argument names another one.

    Raises BuilderError if they are for several.
    """
    devices = {device for path in paths if (device := SUFFIX_DEVICES.get(os.path.splitext(path)[1]))}
    devices |= {"cuda"} if with_cuda and "hip" not in devices else set()
    devices |= {"xpu"} if with_sycl else set()
    if len(devices) > 1:
        raise BuilderError(op, f"its sources are for {' and '.join(sorted(devices))}", "Declare one op for each device")
    if devices == {"cuda"} and torch_built_for("hip") is not None:
        return "hip"
    return devices.pop() if devices else "cpu"


def join(sources: str | Sequence[str] | None) -> str:
    """Returns sources that are given as text, as one text."""
    return sources if isinstance(sources, str) else "\n".join(sources or ())


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
