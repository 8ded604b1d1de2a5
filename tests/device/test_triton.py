"""The Triton ops on a GPU: bfloat16, rows of every size, graphs, and a first launch without a compiler."""

from __future__ import annotations

import os

import pytest
import torch
from support import child_processes
from support.gpu import triton_parts
from support.store.fake_store import ME

from opforge.builders.declaration.description import description_key
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


def close(actual, expected, dtype, times=1.0):
    allowed = TOLERANCE[dtype] * times
    torch.testing.assert_close(actual.double(), expected.double(), rtol=allowed, atol=allowed)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", COLUMNS)
def test_rows_of_every_size_agree_with_the_references(columns, dtype):
    torch.manual_seed(0)
    x = torch.randn(37, columns, device="cuda").to(dtype).requires_grad_()
    weight = torch.randn(columns, device="cuda").to(dtype).requires_grad_()
    bias = torch.randn(columns, device="cuda").to(dtype).requires_grad_()
    dy = torch.randn(37, columns, device="cuda").to(dtype)
    for op, reference, inputs in (
        (ops.layer_norm, references.layer_norm, (x, weight, bias)),
        (ops.rms_norm, references.rms_norm, (x, weight)),
        (ops.softmax, references.softmax, (x,)),
        (ops.gelu, references.gelu, (x,)),
        (ops.swiglu, references.swiglu, (x, dy.clone().requires_grad_())),
    ):
        doubles = [tensor.detach().double().requires_grad_() for tensor in inputs]
        eps = (1e-3,) if "norm" in op.__name__ else ()
        y, expected = op(*inputs, *eps), reference(*doubles, *eps)
        close(y, expected, dtype, times=4)
        gradients = torch.autograd.grad(y, inputs, dy)
        for gradient, double in zip(gradients, torch.autograd.grad(expected, doubles, dy.double()), strict=True):
            close(gradient, double, dtype, times=40)
        again = torch.autograd.grad(op(*inputs, *eps), inputs, dy)
        assert all(torch.equal(tensor, other) for tensor, other in zip(gradients, again, strict=True)), "the same bits"


RULE = {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1}
COUNTED = {**RULE, "eps": 1e-6, "step": 1}
NUMBERS = {"adam": COUNTED, "lion": RULE, "lamb": {**COUNTED, "max_coeff": 10.0, "min_coeff": 0.01}}
MODES = {
    "adam": {"adamw_mode": True, "bias_correction": True},
    "lion": {},
    "lamb": {"scale": 1.0, "eps_inside_sqrt": False, "bias_correction": True},
}


def optimizer_lists(name, param, grad, state):
    torch.manual_seed(0)
    params = [torch.randn(size, device="cuda").to(param) for size in (1, 0, 5, 3000, 200_003)]
    # Not near zero: LAMB reads the moments that it has stored, and float16 stores a very small square as 0.
    grads = [0.1 + torch.rand_like(tensor, dtype=grad) for tensor in params]
    grads = [torch.where(torch.rand_like(tensor) < 0.5, tensor, -tensor) for tensor in grads]
    states = [[torch.zeros_like(tensor, dtype=state) for tensor in params] for _ in range(1 + (name != "lion"))]
    return [params, grads, *states]


def step(name, lists, copies=(), **more):
    if name == "lamb":
        more["ratios"] = torch.ones(len(lists[0]), device="cuda")
    flag = torch.zeros(1, dtype=torch.int32, device="cuda")
    getattr(ops, f"fused_{name}_")(flag, *lists, list(copies), **{**NUMBERS[name], **MODES[name], **more})


@pytest.mark.parametrize(
    ("param", "grad", "state", "copy"),
    [
        (torch.float32, torch.float32, torch.float32, None),
        (torch.bfloat16, torch.bfloat16, torch.bfloat16, None),
        (torch.float32, torch.bfloat16, torch.float32, torch.bfloat16),
        (torch.float16, torch.float32, torch.float16, torch.float32),
    ],
)
@pytest.mark.parametrize("name", NUMBERS)
def test_optimizers_agree_with_their_references(name, param, grad, state, copy):
    lists = optimizer_lists(name, param, grad, state)
    copies = [torch.zeros_like(tensor, dtype=copy) for tensor in lists[0]] if copy else []
    expected = [
        getattr(references, name)(*(tensor.double() for tensor in together), **NUMBERS[name])
        for together in zip(*lists, strict=True)
        if together[0].numel()
    ]
    step(name, lists, copies)
    kept = [[tensor for tensor in tensors if tensor.numel()] for tensors in (lists[0], *lists[2:])]
    for i, results in enumerate(expected):
        for tensors, double in zip(kept, results, strict=False):  # LAMB's reference also returns the ratio
            close(tensors[i], double, tensors[i].dtype, times=4)
    for tensor, other in zip(copies, lists[0], strict=False):  # the wider one is not rounded yet
        narrow = min(tensor.dtype, other.dtype, key=lambda dtype: dtype.itemsize)
        assert torch.equal(tensor.to(narrow), other.to(narrow))


@pytest.mark.parametrize("name", NUMBERS)
def test_a_step_in_a_graph_follows_the_numbers_on_the_device(name):
    lr, count = torch.tensor(0.0, device="cuda"), torch.tensor(1.0, device="cuda")
    on_device = {"lr_tensor": lr, "step_tensor": count}
    lists = optimizer_lists(name, torch.bfloat16, torch.bfloat16, torch.float32)
    step(name, lists, **on_device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(name, lists, **on_device)
    other = [[tensor.clone() for tensor in tensors] for tensors in lists]
    for number in (2, 3):
        lr.fill_(0.01 / number)
        count.fill_(number)
        graph.replay()
        step(name, other, **on_device)
    for tensors, others in zip(lists, other, strict=True):
        assert all(torch.equal(tensor, other_tensor) for tensor, other_tensor in zip(tensors, others, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [8, 4])
def test_dequantized_values_are_within_half_a_step(bits, symmetric, dtype):
    x = torch.randn(1000, 128, device="cuda").to(dtype)
    for size in (2, 64, 128, 1280, 8000, 128_000):
        codes, scales, offsets = ops.quantize(x, size, bits, symmetric)
        back = ops.dequantize(codes, scales, offsets, bits).view(-1, size)
        assert ((back - x.float().view(-1, size)).abs() <= scales[:, None] * 0.501 + 1e-6).all()


def test_a_launch_can_be_captured_in_a_graph_and_runs_on_the_current_stream():
    x = torch.randn(64, 1024, device="cuda")
    expected = torch.softmax(x, -1)
    ops.softmax(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = ops.softmax(x)
    y.zero_()
    graph.replay()
    torch.testing.assert_close(y, expected)


def test_a_model_with_the_functions_compiles_without_a_break():
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
    layer.add(str(tmp_path / "layer"), builder.build(), description_key(builder.spec()), ME)
    path, mark = triton_parts.forbidden_compilers(tmp_path)
    env = {"PATH": path, "MARK": mark, "OPFORGE_CACHE_LAYERS": str(tmp_path / "layer")}
    env |= {"OPFORGE_CACHE_DIR": str(tmp_path / "own"), "OPFORGE_PREBUILT": "require"}
    print(child_processes.run_python(triton_parts.WITHOUT_TRITON + FIRST, env=env))
    assert not os.path.exists(mark)
