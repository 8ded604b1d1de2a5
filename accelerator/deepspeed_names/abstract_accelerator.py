"""DeepSpeed's name for the interface of accelerators."""

from opforge.accelerator.interface.accelerator import Accelerator as DeepSpeedAccelerator

__all__ = ["DeepSpeedAccelerator"]
