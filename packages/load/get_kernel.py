"""`get_kernel`: a package by its name and version, from a checkout or from what is installed."""

from __future__ import annotations

import os
import sys
from types import ModuleType

from . import memory

_answers: dict[tuple[object, ...], ModuleType] = {}
"""What `get_kernel` returned, by its arguments, the caller's package and the variables that it reads."""
VARIABLES = ("OPFORGE_KERNELS", "OPFORGE_KERNEL_PATH")


def reset() -> None:
    """Forgets what was returned: the next call looks again. What is imported stays imported."""
    _answers.clear()


def get_kernel(
    name: str, version: str | int | None = None, variant: str | None = None, *, install: bool | None = None
) -> ModuleType:
    """Returns the Python module of a kernel package, with its ops loaded.

    Args:
        name: ORG/NAME, such as "acme/relu".
        version: The interface, such as 2; an exact version, "2.3"; or a range, ">=2.1,<3". By default what the lock
            file of the calling package says, else the newest that is installed.
        variant: The label of a variant, in place of the one that fits best.
        install: Whether to download the package if it is not installed; by default OPFORGE_INSTALL. Without it the
            network is never used.

    The same release gives the same module, in every thread. Two versions can be loaded side by side: each has its own
    module, and its own namespace in torch.ops. On a machine with devices of several architectures the variant is
    that of torch's current device: another device may have another module.

    Raises KernelNotFoundError, KernelIncompatibleError with the reason of each variant, KernelLoadError,
    KernelFormatError for a name or a version that is none.
    """
    caller = sys._getframe(1).f_globals.get("__package__") or ""
    environment = os.environ
    key = (name, version, variant, caller, *[environment.get(variable) for variable in VARIABLES])
    module = _answers.get(key)
    if module is None:
        try:
            module = _look_up(key, name, version, variant, install, caller)
        except BaseException as error:
            from opforge import tracebacks

            tracebacks.shorten(error)
            raise
    return module


def _look_up(
    key: tuple[object, ...],
    name: str,
    version: str | int | None,
    variant: str | None,
    install: bool | None,
    caller: str,
) -> ModuleType:
    remembered = memory.name_of(name, version, variant, caller)
    module = memory.recall(remembered) if remembered else None
    if module is not None:
        _answers[key] = module
        return module
    from . import search  # not for what is remembered
    from .variants import Attempt

    before = memory.stamps(name) if remembered else []
    attempt = Attempt()
    module = search.load(name, version, variant, install, caller, attempt)
    if not attempt.is_per_device:
        _answers[key] = module
    root, choice = attempt.root, attempt.choice
    if remembered and root and choice and choice.installed and not attempt.needs_more:
        memory.remember(remembered, before, *root, choice.folder, choice.module, choice.installed.receipt)
    return module
