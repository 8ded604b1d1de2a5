"""DeepSpeed's name for the choice of the accelerator."""

from opforge.accelerator.select import get_accelerator, set_accelerator

__all__ = ["get_accelerator", "set_accelerator"]
