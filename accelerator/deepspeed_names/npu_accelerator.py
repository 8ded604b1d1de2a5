"""DeepSpeed's name for the accelerator `npu`."""

from opforge.accelerator.devices.npu import NPUAccelerator as NPU_Accelerator

__all__ = ["NPU_Accelerator"]
