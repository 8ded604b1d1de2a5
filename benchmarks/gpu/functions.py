"""The functions of `opforge.ops.triton` that work by rows, each beside torch's and Liger's, and the bytes they move."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from opforge.ops.cases.traffic import TRAFFIC

from .contenders import AbsentError

EPS = 1e-5
LENGTHS = (1024, 4096, 16_384, 131_072)
"""Numbers of columns: some fit into one block of a kernel, others are read block by block."""


def liger_layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Calls Liger's kernel, without the module around it."""
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction

    y: Tensor = LigerLayerNormFunction.apply(x, weight, bias, EPS)
    return y


def liger_rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """Calls Liger's kernel. Not in place: the same gradient is passed to every call."""
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    y: Tensor = LigerRMSNormFunction.apply(x, weight, EPS, 0.0, "llama", False)
    return y


def liger_softmax(x: Tensor) -> Tensor:
    """Calls Liger's kernel, without the module around it."""
    from liger_kernel.ops.softmax import LigerSoftmaxFunction

    y: Tensor = LigerSoftmaxFunction.apply(x)
    return y


def liger_gelu(x: Tensor) -> Tensor:
    """Raises AbsentError."""
    raise AbsentError("Liger has no GELU but that which multiplies (GEGLU)")


def liger_swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Calls Liger's kernel. Its backward writes into its inputs, which no other contender uses."""
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction

    y: Tensor = LigerSiLUMulFunction.apply(gate, up)
    return y


@dataclass(frozen=True)
class Function:
    """One function of ours and of the rivals."""

    name: str
    matrices: int
    """How many inputs are matrices. They come first."""
    parameters: int
    """How many inputs have the length of one row."""
    torchs: Callable[..., Tensor]
    liger: Callable[..., Tensor]
    options: dict[str, float] = field(default_factory=dict)
    """Keyword arguments of ours, for the same result as the rivals'."""
    lengths: tuple[int, ...] = LENGTHS

    def bytes_moved(self, way: str, elements: int, dtype: torch.dtype) -> float:
        """Returns the bytes that one call must move, forward or backward, with `elements` in each matrix."""
        return TRAFFIC[self.name if way == "forward" else f"{self.name} {way}"].amount(elements, dtype.itemsize)


def _torch_rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, weight.shape, weight, EPS)


def _torch_layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, weight.shape, weight, bias, EPS)


def _torch_softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def _torch_gelu(x: Tensor) -> Tensor:
    return F.gelu(x)


def _torch_swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


FEW_LENGTHS = (4096, 131_072)
"""For functions of single values, where the length of a row should not matter."""
FUNCTIONS = (
    Function("layer_norm", 1, 2, _torch_layer_norm, liger_layer_norm, {"eps": EPS}),
    Function("rms_norm", 1, 1, _torch_rms_norm, liger_rms_norm, {"eps": EPS}),
    Function("softmax", 1, 0, _torch_softmax, liger_softmax),
    Function("gelu", 1, 0, _torch_gelu, liger_gelu, lengths=FEW_LENGTHS),
    Function("swiglu", 2, 0, _torch_swiglu, liger_swiglu, lengths=FEW_LENGTHS),
)


# -- quantisation ------------------------------------------------------------------------------------------------------


def torch_quantize(x: Tensor, group: int, bits: int) -> tuple[Tensor, Tensor]:
    """Quantizes by our symmetric rule with torch's operators.

    Returns:
        The codes, int8 and flat, two in a byte for 4 bits; and the scales, one for each group.
    """
    values = x.reshape(-1, group).float()
    most = 2 ** (bits - 1) - 1
    scales = values.abs().amax(1) / most
    divisors = torch.where(scales > 0, scales, 1.0)
    codes = (values / divisors[:, None]).round().clamp(-most, most).to(torch.int8).view(-1)
    if bits == 4:
        codes = (codes[0::2] & 15) | (codes[1::2] << 4)
    return codes, scales


def torch_dequantize(codes: Tensor, scales: Tensor, bits: int, dtype: torch.dtype) -> Tensor:
    """Returns the values of `torch_quantize`'s codes, flat."""
    codes = codes.view(-1)
    if bits == 4:
        codes = torch.stack([(codes << 4) >> 4, codes >> 4], 1).view(-1)
    return (codes.view(scales.numel(), -1) * scales[:, None]).to(dtype).view(-1)
