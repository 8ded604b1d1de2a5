"""DeepSpeed's name for the accelerator `cuda`."""

from opforge.accelerator.devices.cuda import CUDAAccelerator as CUDA_Accelerator

__all__ = ["CUDA_Accelerator"]
