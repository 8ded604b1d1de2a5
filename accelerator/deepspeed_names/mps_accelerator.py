"""DeepSpeed's name for the accelerator `mps`."""

from opforge.accelerator.devices.mps import MPSAccelerator as MPS_Accelerator

__all__ = ["MPS_Accelerator"]
