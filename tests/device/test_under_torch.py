"""The ops in torch on a GPU: opcheck, torch.compile, threads, and optimizers captured in a graph."""

from __future__ import annotations

import threading

import pytest
import torch
from support.gpu import triton_parts

from opforge.ops import FusedAdam, FusedLamb, FusedLion
from opforge.ops import triton as ops

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use"),
]
CHECKS = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
LION = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1}
ADAM = {**LION, "eps": 1e-6, "step": 1, "adamw_mode": True, "bias_correction": True}
LAMB = {**LION, "eps": 1e-6, "step": 1, "bias_correction": True, "scale": 1.0, "eps_inside_sqrt": False}
LAMB |= {"max_coeff": 10.0, "min_coeff": 0.01}


def zero_flag() -> torch.Tensor:
    """Returns a noop flag that does not stop the update."""
    return torch.zeros(1, dtype=torch.int32, device="cuda")


def lists(count: int = 4) -> list[list[torch.Tensor]]:
    return [[torch.rand(33, device="cuda"), torch.rand(4, 8, device="cuda")] for _ in range(count)]


def calls_of_cuda(cuda_op):
    quantizer, ratios = cuda_op("QuantizerBuilder"), torch.ones(2, device="cuda")
    codes, params = quantizer.quantize(torch.randn(4, 64, device="cuda"), 8, 8, quantizer.Asymmetric)
    x, out = torch.randn(4, 64, device="cuda"), torch.empty(4, 64, device="cuda")
    yield cuda_op("FusedAdamBuilder").fused_adam_, (zero_flag(), *lists(), []), ADAM
    yield cuda_op("FusedLionBuilder").fused_lion_, (zero_flag(), *lists(3), []), LION
    yield cuda_op("FusedLambBuilder").fused_lamb_, (zero_flag(), *lists(), []), {"ratios": ratios, **LAMB}
    yield quantizer.quantize_, (codes, params, x, 8, 8, False), {}
    yield quantizer.dequantize_, (out, codes, params, 8, 8, False), {}


def test_opcheck_accepts_the_cuda_ops(cuda_op):
    for op, arguments, numbers in calls_of_cuda(cuda_op):
        torch.library.opcheck(op, arguments, numbers, test_utils=CHECKS)


@triton_parts.needs_triton
def test_opcheck_accepts_the_triton_ops():
    x = torch.randn(4, 64, device="cuda", requires_grad=True)
    weight = torch.randn(64, device="cuda", requires_grad=True)
    ops.rms_norm(x, weight), ops.layer_norm(x), ops.softmax(x), ops.gelu(x), ops.swiglu(x, x)
    ops.fused_adam_, ops.fused_lion_, ops.fused_lamb_  # accessing them registers them
    codes, library = ops.quantize(x.detach(), 8), torch.ops.opforge_triton
    for op, arguments, numbers in (
        (library.rms_norm, (x, weight, 1e-5), {}),
        (library.layer_norm, (x, weight, weight, 1e-5), {}),
        (library.softmax, (x,), {}),
        (library.gelu, (x, "tanh"), {}),
        (library.swiglu, (x, x), {}),
        (library.quantize, (x.detach(), 8, 4, False), {}),
        (library.dequantize, (*codes, 8, torch.float16), {}),
        (library.fused_adam_, (zero_flag(), *lists(), []), ADAM),
        (library.fused_lion_, (zero_flag(), *lists(3), []), LION),
        (library.fused_lamb_, (zero_flag(), *lists(), []), {"ratios": torch.ones(2, device="cuda"), **LAMB}),
    ):
        torch.library.opcheck(op.default, arguments, numbers, test_utils=CHECKS)


def test_torch_compile_traces_a_step_of_the_cuda_op_without_a_break(cuda_op):
    adam = cuda_op("FusedAdamBuilder")

    def train(flag, params, grads, first, second):
        adam.fused_adam_(flag, [params], [grads * 2], [first], [second], [], **ADAM)
        return params.sum()

    plain = [zero_flag(), *(torch.rand(1000, device="cuda") for _ in range(4))]
    traced = [tensor.clone() for tensor in plain]
    torch.testing.assert_close(torch.compile(train, fullgraph=True)(*traced), train(*plain))
    assert all(torch.equal(tensor, other) for tensor, other in zip(plain, traced, strict=True))


def parameters() -> list[torch.nn.Parameter]:
    torch.manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(shape, device="cuda")) for shape in (5, 1000, (30, 70))]
    for param in params:
        param.grad = torch.randn_like(param)
    return params


@pytest.mark.parametrize("capturable", [False, True])
def test_the_optimizer_follows_torchs(cuda_op, capturable):
    params, others = parameters(), parameters()
    ours = FusedAdam(params, lr=1e-2, weight_decay=0.1, capturable=capturable)
    theirs = torch.optim.AdamW(others, lr=1e-2, weight_decay=0.1)
    for _ in range(5):
        ours.step(), theirs.step()
    for tensor, other in zip(params, others, strict=True):
        torch.testing.assert_close(tensor, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [FusedAdam, FusedLion, FusedLamb])
def test_a_captured_optimizer_continues_to_count(cuda_op, kind):
    params, others = parameters(), parameters()
    ours, plain = (kind(some, lr=1e-2, capturable=True) for some in (params, others))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        ours.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ours.step()
    for _ in range(3):
        graph.replay()
    for _ in range(4):
        plain.step()
    for tensor, other in zip(params, others, strict=True):
        torch.testing.assert_close(tensor, other, rtol=1e-5, atol=1e-6)


def test_a_captured_step_respects_the_flag(cuda_op):
    adam, flag, many = cuda_op("FusedAdamBuilder"), zero_flag(), lists()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        adam.fused_adam_(flag, *many, [], **ADAM)
    before = [[tensor.clone() for tensor in some] for some in many]
    flag.fill_(1)
    graph.replay()
    assert all(
        torch.equal(a, b) for some, old in zip(many, before, strict=True) for a, b in zip(some, old, strict=True)
    )
    flag.zero_()
    graph.replay()
    assert not torch.equal(many[0][0], before[0][0])


@triton_parts.needs_triton
def test_a_thread_without_a_context_can_launch(cuda_op):
    x, results = torch.randn(64, 4096, device="cuda", requires_grad=True), []
    many, adam = lists(), cuda_op("FusedAdamBuilder")
    kept = many[0][0].clone()
    torch.cuda.synchronize()

    def work():
        y = ops.softmax(x)
        results.append((y.detach(), torch.autograd.grad(y.square().sum(), x)[0]))
        adam.fused_adam_(zero_flag(), *many, [], **ADAM)
        torch.cuda.synchronize()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    (y, slope), expected = results[0], torch.softmax(x, -1)
    torch.testing.assert_close(y, expected.detach())
    torch.testing.assert_close(slope, torch.autograd.grad(expected.square().sum(), x)[0], rtol=1e-4, atol=1e-6)
    assert not torch.equal(many[0][0], kept)
