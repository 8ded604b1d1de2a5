"""DeepSpeed's name for the accelerator `xpu`."""

from opforge.accelerator.devices.xpu import XPUAccelerator as XPU_Accelerator

__all__ = ["XPU_Accelerator"]
