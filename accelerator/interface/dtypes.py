"""Data types: which ones the device computes in, and a function for each that makes tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opforge.lazy import cached_property

from .device import Devices

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


class DataTypes(Devices):
    """The dtype part of the interface."""

    def is_bf16_supported(self) -> bool:
        """Returns whether the device computes in bfloat16."""
        is_supported = self._device_function("is_bf16_supported")
        return is_supported is not None and bool(is_supported())

    def is_fp16_supported(self) -> bool:
        """Returns whether the device computes in float16."""
        return True

    def is_fp64_supported(self) -> bool:
        """Returns whether the device computes in float64."""
        return True

    def supported_dtypes(self) -> list[torch.dtype]:
        """Returns the floating-point dtypes that the device computes in, float32 first."""
        module = self._torch
        dtypes: list[torch.dtype] = [module.float32]
        if self.is_fp16_supported():
            dtypes.append(module.float16)
        if self.is_bf16_supported():
            dtypes.append(module.bfloat16)
        if self.is_fp64_supported():
            dtypes.append(module.float64)
        return dtypes

    def _tensor_maker(self, dtype: str) -> Callable[..., torch.Tensor]:
        import functools

        import torch

        return functools.partial(torch.tensor, dtype=getattr(torch, dtype), device=self.torch_device)

    @cached_property
    def BFloat16Tensor(self) -> Callable[..., torch.Tensor]:
        """Makes a bfloat16 tensor on the device from a list of values."""
        return self._tensor_maker("bfloat16")

    @cached_property
    def ByteTensor(self) -> Callable[..., torch.Tensor]:
        """Makes a uint8 tensor on the device from a list of values."""
        return self._tensor_maker("uint8")

    @cached_property
    def DoubleTensor(self) -> Callable[..., torch.Tensor]:
        """Makes a float64 tensor on the device from a list of values."""
        return self._tensor_maker("float64")

    @cached_property
    def FloatTensor(self) -> Callable[..., torch.Tensor]:
        """Makes a float32 tensor on the device from a list of values."""
        return self._tensor_maker("float32")

    @cached_property
    def HalfTensor(self) -> Callable[..., torch.Tensor]:
        """Makes a float16 tensor on the device from a list of values."""
        return self._tensor_maker("float16")

    @cached_property
    def IntTensor(self) -> Callable[..., torch.Tensor]:
        """Makes an int32 tensor on the device from a list of values."""
        return self._tensor_maker("int32")

    @cached_property
    def LongTensor(self) -> Callable[..., torch.Tensor]:
        """Makes an int64 tensor on the device from a list of values."""
        return self._tensor_maker("int64")
