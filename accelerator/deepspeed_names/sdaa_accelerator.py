"""DeepSpeed's name for the accelerator `sdaa`."""

from opforge.accelerator.devices.sdaa import SDAAAccelerator as SDAA_Accelerator

__all__ = ["SDAA_Accelerator"]
