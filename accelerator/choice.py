"""The choice of an accelerator if it is not remembered: the first one that is available."""

from __future__ import annotations

import time
from collections.abc import Callable

from opforge.errors import AcceleratorUnavailableError
from opforge.foundation import remembered_values

from . import entry_points, registry
from .interface.accelerator import Accelerator


def choose(may_be_present: Callable[[str], bool], name: str) -> Accelerator:
    """Returns the first accelerator that is available: those of other packages, then opforge's own, the CPU last.

    Args:
        may_be_present: Returns whether one of opforge's own needs to be tried.
        name: The name under which it is remembered that the CPU was chosen, and no other package adds an accelerator.
    """
    at = time.time_ns()
    paths = [path for folder in entry_points.folders() for path in entry_points.watched(folder)]
    stamps = remembered_values.FlatStamps(paths, remembered_values.stamps_of(paths))
    external = registry.external()
    for point in external:
        accelerator, _, _ = registry.make_if_available(point)
        if accelerator is not None:
            return accelerator
    reason = ""
    for point in registry.built_in():
        if point.name not in registry.ONLY_BY_NAME and may_be_present(point.name):
            accelerator, reason, _ = registry.make_if_available(point)
            if accelerator is not None:
                if accelerator.name == "cpu" and not external:
                    _remember(name, stamps, at)
                return accelerator
    raise AcceleratorUnavailableError("cpu", reason, "opforge")


def _remember(name: str, stamps: remembered_values.FlatStamps, at: int) -> None:
    """Remembers that the CPU was chosen. With another package's accelerator a hit comes here, and imports no writer."""
    from opforge.foundation import remembered_values_writer, settings

    if remembered_values_writer.is_in_use(settings.cache_dir()):
        remembered_values_writer.remember(name, stamps, "cpu", at)
