"""DeepSpeed's name for the accelerator `klxpu`."""

from opforge.accelerator.devices.klxpu import KLXPUAccelerator as KLXPU_Accelerator

__all__ = ["KLXPU_Accelerator"]
