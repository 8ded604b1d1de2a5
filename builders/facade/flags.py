"""What a compiler is given for a source that includes torch's C++ API, so that it meets the facade instead."""

import os
from pathlib import Path

# Found before torch's own headers: files of torch's names, which all include the facade.
INCLUDE = Path(__file__).parent / "include"

# The folders of torch's include tree that the facade itself is written on. Nothing else of torch is found, so that a
# header that the facade does not have is one clear error, and not three hundred of names that are defined twice.
OF_TORCH = ("torch/csrc/stable", "torch/csrc/inductor/aoti_torch", "torch/headeronly")

# The oldest torch that a library of the facade runs on. Hexadecimal by byte: 2.10.
TARGET = "0x020a000000000000"


def missing(torch_include: str) -> str:
    """Returns the first of the folders of torch's headers that is not there; empty if all are."""
    folders = [os.path.join(torch_include, *name.split("/")) for name in OF_TORCH]
    return next((folder for folder in folders if not os.path.isdir(folder)), "")


def link_torch_headers(folder: Path, torch_include: Path) -> None:
    """Makes links in `folder` to the folders of torch's headers that the facade needs.

    Args:
        folder: Where the links are made. It holds nothing else.
        torch_include: torch's include folder.

    Raises:
        FileNotFoundError: torch's headers are not there.
    """
    for name in OF_TORCH:
        target = torch_include / name
        if not target.is_dir():
            raise FileNotFoundError(f"{target} is not there: torch's headers of version 2.10 or newer are needed")
        link = folder / name
        link.parent.mkdir(parents=True, exist_ok=True)
        if not (link.is_symlink() and os.readlink(link) == str(target)):
            link.unlink(missing_ok=True)
            link.symlink_to(target)


# A source that includes Python.h itself gets Python's stable API alone: a library of the facade serves every Python.
PYTHON_API = "0x030b0000"


def compile_flags(name: str, torch_headers: Path, python_include: Path) -> list[str]:
    """Returns the flags of a C++ compiler for a source of the extension `name`.

    Args:
        name: The extension's name, as a Python module.
        torch_headers: The folder of links that `link_torch_headers` made.
        python_include: The folder of Python.h, for sources that include it.
    """
    return [
        "-std=c++17",
        "-fPIC",
        "-fvisibility=hidden",
        "-fvisibility-inlines-hidden",
        f"-DTORCH_TARGET_VERSION={TARGET}",
        f"-DTORCH_EXTENSION_NAME={name}",
        "-DTORCH_API_INCLUDE_EXTENSION_H",
        "-DOPFORGE_FACADE=1",
        f"-I{INCLUDE}",
        "-isystem",
        str(torch_headers),
        f"-DPy_LIMITED_API={PYTHON_API}",
        "-isystem",
        str(python_include),
    ]
