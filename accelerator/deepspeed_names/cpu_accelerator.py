"""DeepSpeed's name for the accelerator `cpu`."""

from opforge.accelerator.devices.cpu import CPUAccelerator as CPU_Accelerator

__all__ = ["CPU_Accelerator"]
