"""DeepSpeed's names for modules of accelerators. The folder is part of the path of `opforge.accelerator`.

So `from deepspeed.accelerator.cuda_accelerator import CUDA_Accelerator` needs another package's name and no more.
"""
