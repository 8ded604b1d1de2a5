"""Compiler flags that make a source which includes torch's C++ API use the facade instead.

This is the one place: a builder's plan (declaration/abi.py), the front end and tests take it from here.
"""

import os
from pathlib import Path

from opforge.fast_path.library import OLDEST_TORCH

# Found before torch's own headers: files of torch's names, which all include the facade.
INCLUDE = Path(__file__).parent / "include"

# The folders of torch's include tree that the facade itself is written on. Of torch only these and OF_VECTORS are
# found, so that a header that the facade does not have is one clear error, and not three hundred of names that are
# defined twice.
OF_TORCH = ("torch/csrc/stable", "torch/csrc/inductor/aoti_torch", "torch/headeronly")

# at::vec, which is in torch's headers alone, and what these include that the facade does not have.
OF_VECTORS = (
    "ATen/cpu/vec",
    "ATen/jiterator_macros.h",
    "ATen/native/Math.h",
    "ATen/native/cpu/zmath.h",
    "ATen/native/quantized/AffineQuantizerBase.h",
    "c10/util/BFloat16-math.h",
    "c10/util/Load.h",
    "c10/util/copysign.h",
    "sleef.h",
)

# The oldest torch that a library of the facade runs on, as torch's headers take it: a byte each.
TARGET = "0x{:02x}{:02x}000000000000".format(*map(int, OLDEST_TORCH.split(".")))

# A source that includes Python.h itself gets Python's stable API alone: a library of the facade serves every Python.
PYTHON_API = "0x030b0000"
# The Python of that API, as a wheel's metadata states it.
OLDEST_PYTHON = "3.11"

# The facade's headers need no newer C++. A project may ask for one.
STANDARD = "c++17"
# Two libraries of the facade in one process share no symbol, nor what std makes of their classes.
HIDDEN = ("-fvisibility=hidden", "-fvisibility-inlines-hidden")

# What torch's own builder gives nvcc for every source: CUDA's operators of its half would be ambiguous with at::Half's.
OF_NVCC = (
    "-D__CUDA_NO_HALF_OPERATORS__",
    "-D__CUDA_NO_HALF_CONVERSIONS__",
    "-D__CUDA_NO_BFLOAT16_CONVERSIONS__",
    "-D__CUDA_NO_HALF2_OPERATORS__",
    "--expt-relaxed-constexpr",
)

# The macros of the oldest torch and Python. A setup.py on torch's stable ABI has its own values, which are other ones.
OF_OLDEST = ("TORCH_TARGET_VERSION", "Py_LIMITED_API")


def defines(name: str) -> tuple[tuple[str, str], ...]:
    """Returns the macros of a source of the extension `name`, with their values."""
    return (
        ("TORCH_TARGET_VERSION", TARGET),
        ("TORCH_EXTENSION_NAME", name),
        ("TORCH_API_INCLUDE_EXTENSION_H", ""),
        ("OPFORGE_FACADE", "1"),
        ("Py_LIMITED_API", PYTHON_API),
    )


def missing(torch_include: str) -> str:
    """Returns the first of the folders of torch's headers that is not there; empty if all are."""
    folders = [os.path.join(torch_include, *name.split("/")) for name in OF_TORCH]
    return next((folder for folder in folders if not os.path.isdir(folder)), "")


def link_torch_headers(folder: Path, torch_include: Path) -> None:
    """Makes links in `folder` to those of torch's headers that the facade needs.

    Args:
        folder: Where the links are made. It holds nothing else.
        torch_include: torch's include folder.

    Raises:
        FileNotFoundError: torch's headers are not there.
    """
    for name in (*OF_TORCH, *OF_VECTORS):
        target = torch_include / name
        if name in OF_VECTORS and not target.exists():
            continue
        if not target.exists():
            raise FileNotFoundError(f"{target} is not there: torch's headers of version 2.10 or newer are needed")
        link = folder / name
        link.parent.mkdir(parents=True, exist_ok=True)
        if not (link.is_symlink() and os.readlink(link) == str(target)):
            link.unlink(missing_ok=True)
            link.symlink_to(target)


def compile_flags(name: str, torch_headers: Path, python_include: Path, standard: str = STANDARD) -> list[str]:
    """Returns the flags of a C++ compiler for a source of the extension `name`.

    Args:
        name: The extension's name, as a Python module.
        torch_headers: The folder of links that `link_torch_headers` made.
        python_include: The folder of Python.h, for sources that include it.
        standard: The standard of C++.
    """
    return ["-fPIC", *HIDDEN, *_shared_flags(name, torch_headers, python_include, standard)]


def nvcc_flags(name: str, torch_headers: Path, python_include: Path, standard: str = STANDARD) -> list[str]:
    """Returns the flags of nvcc for a source in CUDA. The arguments are those of `compile_flags`."""
    of_host = [f"-Xcompiler={flag}" for flag in ("-fPIC", *HIDDEN)]
    return [*of_host, *OF_NVCC, *_shared_flags(name, torch_headers, python_include, standard)]


def _shared_flags(name: str, torch_headers: Path, python_include: Path, standard: str) -> list[str]:
    return [
        f"-std={standard}",
        *(f"-D{macro}={value}" if value else f"-D{macro}" for macro, value in defines(name)),
        f"-I{INCLUDE}",
        *(part for folder in (torch_headers, python_include) for part in ("-isystem", str(folder))),
    ]
