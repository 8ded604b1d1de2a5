"""Layers that call opforge's ops, in the hub's form, and the layers that each can replace: see `opforge.models`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from opforge.builders.triton.activations import TritonGeluBuilder, TritonSwigluBuilder
from opforge.builders.triton.norms import TritonLayerNormBuilder, TritonRMSNormBuilder
from opforge.builders.triton.softmax import TritonSoftmaxBuilder
from opforge.ops import triton as ops
from opforge.ops.host_op import host_op
from opforge.ops.triton.registry import kernels_of

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_host_op = partial(host_op, "InferenceCoreBuilder")


class RMSNorm(nn.Module):
    """On a GPU, of torch's layer or of the hub's `RMSNorm`."""

    can_torch_compile = True

    def forward(self: Any, x: Tensor) -> Tensor:
        return ops.rms_norm(x, self.weight, _eps(self))


class LayerNorm(nn.Module):
    """On a GPU."""

    can_torch_compile = True

    def forward(self: Any, x: Tensor) -> Tensor:
        return ops.layer_norm(x, self.weight, self.bias, self.eps)


class Softmax(nn.Module):
    """On a GPU, over the last dimension."""

    can_torch_compile = True

    def forward(self: Any, x: Tensor) -> Tensor:
        return ops.softmax(x)


class GELU(nn.Module):
    """On a GPU, in the form that the module states."""

    can_torch_compile = True

    def forward(self: Any, x: Tensor) -> Tensor:
        return ops.gelu(x, self.approximate)


class GeluTanh(nn.Module):
    """On a GPU, in the form with tanh."""

    can_torch_compile = True

    def forward(self: Any, x: Tensor) -> Tensor:
        return ops.gelu(x, "tanh")


class SiluAndMul(nn.Module):
    """On a GPU: SwiGLU of the halves of the last dimension, the gates first."""

    can_torch_compile = True

    def forward(self: Any, x: Tensor) -> Tensor:
        gate, up = x.chunk(2, -1)
        return ops.swiglu(gate, up)


class HostRMSNorm(nn.Module):
    """On the CPU, without gradients."""

    has_backward = False

    def forward(self: Any, x: Tensor) -> Tensor:
        rows, weight = _alike(x, self.weight)
        y = torch.empty_like(rows)
        _host_op().rms_norm(y, rows, weight, _eps(self))
        return y.to(x.dtype)


class HostLayerNorm(nn.Module):
    """On the CPU, without gradients."""

    has_backward = False

    def forward(self: Any, x: Tensor) -> Tensor:
        rows, weight, bias = _alike(x, self.weight, self.bias)
        y = torch.empty_like(rows)
        _host_op().layer_norm(y, rows, weight, bias, self.eps)
        return y.to(x.dtype)


class Form(NamedTuple):
    """A layer, the layers that it replaces, and the loader of its op."""

    kind: type[nn.Module]
    torchs: type[nn.Module] | None
    problem: Callable[[Any], str]
    """Returns why a module cannot be served although it is such a layer."""
    load: Callable[[], object]


def _alike(x: Tensor, *parameters: Tensor) -> list[Tensor]:
    """Returns contiguous tensors of one dtype, as the host's op takes them: under autocast x has another one."""
    mixed = x.dtype in DTYPES and any(parameter.dtype != x.dtype for parameter in parameters)
    return [(tensor.float() if mixed else tensor).contiguous() for tensor in (x, *parameters)]


def _eps(module: Any) -> float:
    """Returns epsilon, which is added to the mean of squares: without one, torch's layer has that of its arithmetic."""
    eps = getattr(module, "variance_epsilon", None)
    eps = getattr(module, "eps", None) if eps is None else eps
    return torch.finfo(torch.float32).eps if eps is None else float(eps)


def _norm_problem(module: Any) -> str:
    shape = getattr(module, "normalized_shape", (0,))
    if len(shape) != 1:
        return f"it normalizes over {len(shape)} dimensions, and the op over the last one"
    weight = getattr(module, "weight", None)
    return f"its weight is {weight.dtype}" if weight is not None and weight.dtype not in DTYPES else ""


def _host_norm_problem(module: Any) -> str:
    names = ("weight", "bias") if isinstance(module, nn.LayerNorm) else ("weight",)
    missing = [name for name in names if getattr(module, name, None) is None]
    return f"it has no {missing[0]}" if missing else _norm_problem(module)


def _none(_module: Any) -> str:
    return ""


FORMS = {
    "cuda": {
        "RMSNorm": Form(RMSNorm, nn.RMSNorm, _norm_problem, partial(kernels_of, TritonRMSNormBuilder)),
        "LayerNorm": Form(LayerNorm, nn.LayerNorm, _norm_problem, partial(kernels_of, TritonLayerNormBuilder)),
        "Softmax": Form(
            Softmax,
            nn.Softmax,
            lambda module: "" if module.dim == -1 else f"its dim is {module.dim}, and the op's is -1",
            partial(kernels_of, TritonSoftmaxBuilder),
        ),
        "GELU": Form(GELU, nn.GELU, _none, partial(kernels_of, TritonGeluBuilder)),
        "GeluTanh": Form(GeluTanh, None, _none, partial(kernels_of, TritonGeluBuilder)),
        "SiluAndMul": Form(SiluAndMul, None, _none, partial(kernels_of, TritonSwigluBuilder)),
    },
    "cpu": {
        "RMSNorm": Form(HostRMSNorm, nn.RMSNorm, _host_norm_problem, _host_op),
        "LayerNorm": Form(HostLayerNorm, nn.LayerNorm, _host_norm_problem, _host_op),
    },
}
"""By device and by the layer's name."""
