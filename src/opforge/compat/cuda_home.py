"""CUDA's folder for setup scripts that are built on the facade, where torch has no CUDA itself.

`CUDAExtension` asks torch.utils.cpp_extension for it, and a torch without CUDA does not look. The facade needs nothing
of torch's own CUDA, so that such a torch, which is much smaller, can build an extension for both.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType

from opforge.foundation import settings
from opforge.foundation.after_import import call_after_import

from .setuptools_hook import FACADE

EXTENSION = "torch.utils.cpp_extension"


def give_after_import() -> None:
    """Arranges that torch's module for extensions knows the toolkit that a variable names, once it is imported."""
    if EXTENSION in sys.modules:
        _give(sys.modules[EXTENSION])
    else:
        call_after_import((EXTENSION,), _give)


def _give(module: ModuleType) -> None:
    if settings.cpp_extension() != FACADE or getattr(module, "CUDA_HOME", None):
        return
    from opforge.builders.toolchains.nvcc import HOMES

    for variable, program in HOMES.items():
        folder = os.environ.get(variable)
        if folder and os.path.isfile(os.path.join(folder, program)):
            module.__dict__["CUDA_HOME"] = folder
            return
