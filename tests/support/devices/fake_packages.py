"""Source text of accelerators that other packages add."""

from __future__ import annotations

ACCELERATOR = """
from opforge.accelerator.devices.null import NullAccelerator
class Quick(NullAccelerator):
    name = "{name}"
    interface_version = {version}
    def is_available(self):
        return {available}
    def unavailable_reason(self):
        return "its driver is not loaded"
"""


def accelerator_source(name: str = "quick", version: int = 1, available: str = "True", extra: str = "") -> str:
    """Returns a module with the class `Quick`; `available` is an expression, and `extra` more lines of the class."""
    return ACCELERATOR.format(name=name, version=version, available=available) + extra
