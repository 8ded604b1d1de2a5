"""DeepSpeed's name for the accelerator `hpu`."""

from opforge.accelerator.devices.hpu import HPUAccelerator as HPU_Accelerator

__all__ = ["HPU_Accelerator"]
