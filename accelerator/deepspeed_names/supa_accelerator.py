"""DeepSpeed's name for the accelerator `supa`."""

from opforge.accelerator.devices.supa import SUPAAccelerator as SUPA_Accelerator

__all__ = ["SUPA_Accelerator"]
