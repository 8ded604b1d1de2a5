"""The torch and the Python that are installed here, found without importing torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import cache

from opforge.errors import OpIncompatibleError


def torch_folder() -> str | None:
    """Returns the folder of the installed torch, or None if there is none. Does not import it."""
    loaded = sys.modules.get("torch")
    file = getattr(loaded, "__file__", None)
    if not file:
        import importlib.util

        spec = importlib.util.find_spec("torch")
        file = spec.origin if spec else None
    return os.path.dirname(file) if file else None


def torch_version(folder: str) -> str:
    """Returns the version that torch's own version.py states. Raises OpIncompatibleError if it states none."""
    loaded = sys.modules.get("torch")
    if loaded is not None and hasattr(loaded, "__version__"):
        return str(loaded.__version__)
    version = torch_states(folder, "__version__")
    if version is None:
        raise OpIncompatibleError("torch", folder, [f"{folder}/version.py states no version"])
    return version


def torch_states(folder: str, name: str) -> str | None:
    """Returns what torch's own version.py states as `name`, such as `cuda`; None if that is None or missing."""
    with open(os.path.join(folder, "version.py"), encoding="utf-8") as file:
        for line in file:
            if line.startswith(name):
                value = line.partition("=")[2].strip()
                return None if value == "None" else value.strip("'\"")
    return None


def missing_library_problem(libraries: Sequence[str]) -> str | None:
    """Returns why the installed torch cannot serve a library that needs these of torch's libraries, or None."""
    folder = torch_folder()
    for name in libraries:
        of_torch = folder and name.startswith(("libtorch_", "libc10_"))
        if folder and of_torch and not os.path.exists(os.path.join(folder, "lib", name)):
            return f"it needs torch's {name}, which the installed torch {torch_version(folder)} does not have"
    return None


def python_tag() -> str:
    """Returns the tag of this interpreter's binary interface, such as cpython-311."""
    return sys.implementation.cache_tag + getattr(sys, "abiflags", "")


@cache
def python_include() -> str:
    """Returns the folder of this interpreter's headers. A folder of its path may be a link.

    The usual place on POSIX is tried first: importing sysconfig takes longer than a whole cache hit.
    """
    version = f"python{sys.version_info.major}.{sys.version_info.minor}{getattr(sys, 'abiflags', '')}"
    usual = os.path.join(sys.base_prefix, "include", version)
    if not os.path.exists(os.path.join(usual, "Python.h")):
        import sysconfig

        usual = sysconfig.get_path("include")
    return usual
