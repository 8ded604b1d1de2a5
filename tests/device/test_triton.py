"""The Triton ops on a GPU: bfloat16, rows of every size, graphs, and a first launch that compiles nothing."""

from __future__ import annotations

import os

import fakes
import pytest
import torch
import triton_parts

from opforge.ops import triton as ops
from opforge.ops.triton import references

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use"),
    triton_parts.needs_triton,
]

TOLERANCE = {torch.float32: 4e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
DTYPES = list(TOLERANCE)
COLUMNS = [1, 77, 512, 4096, 8192, 16384, 20000, 131072, 131073]


def close(actual, wanted, dtype, times=1.0):
    allowed = TOLERANCE[dtype] * times
    torch.testing.assert_close(actual.double(), wanted.double(), rtol=allowed, atol=allowed)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", COLUMNS)
def test_rows_of_every_size_agree_with_the_references(columns, dtype):
    torch.manual_seed(0)
    x = torch.randn(37, columns, device="cuda").to(dtype).requires_grad_()
    weight = torch.randn(columns, device="cuda").to(dtype).requires_grad_()
    bias = torch.randn(columns, device="cuda").to(dtype).requires_grad_()
    given = torch.randn(37, columns, device="cuda").to(dtype)
    for op, reference, inputs in (
        (ops.layer_norm, references.layer_norm, (x, weight, bias)),
        (ops.rms_norm, references.rms_norm, (x, weight)),
        (ops.softmax, references.softmax, (x,)),
        (ops.gelu, references.gelu, (x,)),
        (ops.swiglu, references.swiglu, (x, given.clone().requires_grad_())),
    ):
        doubles = [one.detach().double().requires_grad_() for one in inputs]
        eps = (1e-3,) if "norm" in op.__name__ else ()
        y, wanted = op(*inputs, *eps), reference(*doubles, *eps)
        close(y, wanted, dtype, times=4)
        gradients = torch.autograd.grad(y, inputs, given)
        for one, double in zip(gradients, torch.autograd.grad(wanted, doubles, given.double()), strict=True):
            close(one, double, dtype, times=40)
        again = torch.autograd.grad(op(*inputs, *eps), inputs, given)
        assert all(torch.equal(one, other) for one, other in zip(gradients, again, strict=True)), "the same bits"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["multi_adam", "multi_lion", "multi_lamb"])
def test_optimizers_agree_with_their_references(name, dtype):
    torch.manual_seed(0)
    params = [torch.randn(size, device="cuda").to(dtype) for size in (1, 0, 5, 3000, 200_003)]
    states = [[torch.zeros_like(one, dtype=torch.float32) for one in params] for _ in range(1 + (name != "multi_lion"))]
    numbers = {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1}
    numbers |= {} if name == "multi_lion" else {"step": 1, "eps": 1e-6}
    grads = [torch.randn_like(one) for one in params]
    wanted = [
        getattr(references, name[6:])(param.double(), grad.double(), *(each[i].double() for each in states), **numbers)
        for i, (param, grad) in enumerate(zip(params, grads, strict=True))
    ]
    getattr(ops, name)(params, grads, *states, **numbers)
    for i, expected in enumerate(wanted):
        for one, double in zip((params[i], *(each[i] for each in states)), expected, strict=True):
            close(one, double, one.dtype, times=4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [8, 4])
def test_quantisation_comes_back_within_half_a_step(bits, symmetric, dtype):
    x = torch.randn(1000, 128, device="cuda").to(dtype)
    for size in (2, 64, 128, 1280, 8000):
        codes, scales, offsets = ops.quantize(x, size, bits, symmetric)
        back = ops.dequantize(codes, scales, offsets, bits).view(-1, size)
        assert ((back - x.float().view(-1, size)).abs() <= scales[:, None] * 0.501 + 1e-6).all()


def test_a_launch_can_be_captured_in_a_graph_and_runs_on_the_current_stream():
    x = torch.randn(64, 1024, device="cuda")
    wanted = torch.softmax(x, -1)
    ops.softmax(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = ops.softmax(x)
    y.zero_()
    graph.replay()
    torch.testing.assert_close(y, wanted)


def test_a_model_over_the_functions_compiles_whole():
    def model(x, weight):
        return ops.softmax(ops.gelu(ops.rms_norm(x, weight))).square().sum()

    x, weight = torch.randn(8, 64, device="cuda"), torch.randn(64, device="cuda")
    torch.testing.assert_close(torch.compile(model, fullgraph=True)(x, weight), model(x, weight))


FIRST = """
import json, os, time
import torch
x = torch.randn(64, 1024, device="cuda")
torch.cuda.synchronize()
from opforge.builders.triton.softmax import TritonSoftmaxBuilder
began = time.perf_counter()
y = TritonSoftmaxBuilder().load().softmax(x)
torch.cuda.synchronize()
torch.testing.assert_close(y, torch.softmax(x, -1))
assert not os.path.exists(os.environ["MARK"])
print(round((time.perf_counter() - began) * 1e3, 2), "ms to the first result")
"""


def test_a_prebuilt_op_runs_without_triton_and_without_a_compiler(tmp_path):
    from opforge.builders.triton.softmax import TritonSoftmaxBuilder
    from opforge.cache import layer

    builder = TritonSoftmaxBuilder()
    layer.add(str(tmp_path / "layer"), builder.obtain(), builder.describe().key)
    path, mark = triton_parts.forbidden_compilers(tmp_path)
    env = {"PATH": path, "MARK": mark, "OPFORGE_CACHE_LAYERS": str(tmp_path / "layer")}
    env |= {"OPFORGE_CACHE_DIR": str(tmp_path / "own"), "OPFORGE_PREBUILT": "require"}
    print(fakes.python(triton_parts.WITHOUT_TRITON + FIRST, env=env))
    assert not os.path.exists(mark)
