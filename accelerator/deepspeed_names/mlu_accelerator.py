"""DeepSpeed's name for the accelerator `mlu`."""

from opforge.accelerator.devices.mlu import MLUAccelerator as MLU_Accelerator

__all__ = ["MLU_Accelerator"]
