"""The mapping that opforge ships: its own ops in the place of torch's layers, and of layers that say what they are."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import opforge
from opforge.builders.base import OpBuilder
from opforge.errors import OpIncompatibleError
from opforge.models import OWN_KERNELS
from opforge.models.own import OwnKernel
from opforge.ops import host_op
from opforge.ops import layers as own_layers

pytestmark = [pytest.mark.compile, pytest.mark.usefixtures("builds_are_shared")]


class LlamaNorm(nn.Module):
    """As transformers has it."""

    kernel_layer_name = "RMSNorm"

    def __init__(self, size=48):
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(torch.rand(size)), 1e-3

    def forward(self, hidden_states):
        return nn.functional.rms_norm(hidden_states, self.weight.shape, self.weight, self.variance_epsilon)


class Named(nn.Module):
    """A layer that only has the name of torch's."""

    def forward(self, x):
        return x


Named.__name__ = Named.__qualname__ = "LayerNorm"


class Gated(nn.Module):
    kernel_layer_name = "SiluAndMul"

    def forward(self, x):
        gate, up = x.chunk(2, -1)
        return nn.functional.silu(gate) * up


class Tanh(nn.Module):
    kernel_layer_name = "GeluTanh"

    def forward(self, x):
        return nn.functional.gelu(x, approximate="tanh")


LAYERS = {
    "RMSNorm": [nn.RMSNorm(48, eps=1e-3), nn.RMSNorm(48), LlamaNorm()],
    "LayerNorm": [nn.LayerNorm(48)],
    "Softmax": [nn.Softmax(-1)],
    "GELU": [nn.GELU(), nn.GELU("tanh")],
    "GeluTanh": [Tanh()],
    "SiluAndMul": [Gated()],
}


def test_the_norms_of_the_host_are_used_for_inference_and_agree():
    model = nn.Sequential(*LAYERS["RMSNorm"], *LAYERS["LayerNorm"]).eval()
    x = torch.randn(3, 96)[:, ::2]
    with torch.inference_mode():
        expected = model(x)
        with opforge.kernels_for(model, OWN_KERNELS):
            torch.testing.assert_close(model(x), expected)
            assert [line.kernel for line in opforge.explain_kernels(model)] == [
                *["opforge:RMSNorm"] * 3,
                "opforge:LayerNorm",
            ]
    with opforge.kernels_for(model, OWN_KERNELS, mode="training"):
        lines = opforge.explain_kernels(model)
        assert all("opforge:RMSNorm: it has no backward" in line.reason for line in lines[:3])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("given", [None, torch.float32])
def test_the_norms_of_the_host_take_small_values_of_16_bits_beside_weights_of_any_dtype(dtype, given):
    model = nn.Sequential(nn.RMSNorm(48), nn.LayerNorm(48)).to(given or dtype)
    x = 1e-3 * torch.randn(3, 48)
    for layer in model:
        layer.weight = nn.Parameter(torch.rand(48, 2, dtype=given or dtype)[:, 0])  # with gaps
        with torch.inference_mode():
            expected = layer(x.to(dtype).float() if given else x.to(dtype)).to(dtype)
            with opforge.kernels_for(model, OWN_KERNELS):
                torch.testing.assert_close(layer(x.to(dtype)), expected)


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (Named(), "neither torch's layer nor one that names its kind by kernel_layer_name"),
        (nn.LayerNorm((4, 4)), "it normalizes over 2 dimensions, and the op over the last one"),
        (nn.LayerNorm(4, bias=False), "it has no bias"),
        (nn.RMSNorm(4, elementwise_affine=False), "it has no weight"),
        (nn.LayerNorm(4, dtype=torch.float64), r"its weight is torch.float64"),
        (nn.GELU(), "it is for cuda, and the layer is on cpu"),
    ],
)
def test_a_layer_that_the_op_cannot_serve_stays_and_says_why(layer, reason):
    model = nn.Sequential(layer)
    with opforge.kernels_for(model, OWN_KERNELS):
        (line,) = opforge.explain_kernels(model)
    assert not line.kernel and reason in line.reason


def test_an_op_that_cannot_be_loaded_leaves_the_layer_as_it_is(monkeypatch):
    def fail(self):
        raise OpIncompatibleError("inference_core_ops", "this machine", ["no compiler"])

    monkeypatch.setattr(host_op, "loaded", {})
    monkeypatch.setattr(OpBuilder, "load", fail)
    model = nn.Sequential(nn.LayerNorm(4))
    with opforge.kernels_for(model, OWN_KERNELS):
        assert "its op cannot be loaded: The op 'inference_core_ops'" in opforge.explain_kernels(model)[0].reason


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(("name", "module"), [(name, module) for name, of in LAYERS.items() for module in of])
def test_the_layers_for_a_gpu_agree_with_those_whose_place_they_take(name, module):
    form = own_layers.FORMS["cuda"][name]
    assert OwnKernel(name, "opforge", device="cuda").unfit(module) == ""
    x = torch.randn(3, 48)
    twice = [x.clone().requires_grad_() for _ in range(2)]
    results = [forward(module, x) for forward, x in zip((form.kind.forward, type(module).forward), twice, strict=True)]
    torch.testing.assert_close(*results)
    for result in results:
        result.square().sum().backward()
    torch.testing.assert_close(twice[0].grad, twice[1].grad, atol=1e-4, rtol=1e-4)


def test_softmax_over_another_dimension_is_not_served():
    assert OwnKernel("Softmax", "opforge", device="cuda").unfit(nn.Softmax(0)) == "its dim is 0, and the op's is -1"
