"""The Triton ops in torch: registration, tracing, torch.compile, and the functions of each builder's op."""

from __future__ import annotations

import pytest
import torch
from support.gpu.triton_cases import ADAM, GO, INTERPRETED, LAMB, LION, builder_of

from opforge.builders.triton import TRITON_BUILDERS
from opforge.ops import triton as ops

pytestmark = INTERPRETED


def test_the_functions_are_ops_that_torch_can_trace():
    x = torch.randn(4, 32, requires_grad=True)
    weight, bias = torch.randn(32, requires_grad=True), torch.randn(32, requires_grad=True)
    library = torch.ops.opforge_triton
    assert all(callable(getattr(ops, name)) for name in ops.__all__)  # accessing them registers them
    # The next test traces with gradients.
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    for op, arguments in (
        (library.rms_norm, (x, weight, 1e-5)),
        (library.layer_norm, (x, weight, bias, 1e-5)),
        (library.softmax, (x,)),
        (library.gelu, (x, "tanh")),
        (library.swiglu, (x, x)),
    ):
        torch.library.opcheck(op.default, arguments, test_utils=checks)
    torch.library.opcheck(library.quantize.default, (x.detach(), 8, 4, False), test_utils=checks)
    codes = ops.quantize(x.detach(), 8)
    torch.library.opcheck(library.dequantize.default, (*codes, 8, torch.float16), test_utils=checks)
    lists = [[torch.zeros(32, dtype=dtype)] for dtype in (torch.float32, torch.bfloat16, *[torch.float32] * 2)]
    copies, ratios = [torch.zeros(32, dtype=torch.bfloat16)], torch.ones(1)
    numbers = {"lr_tensor": torch.tensor(0.1), "step_tensor": torch.tensor(1.0)}
    torch.library.opcheck(library.fused_adam_.default, (GO, *lists, copies), {**numbers, **ADAM}, test_utils=checks)
    torch.library.opcheck(library.fused_lion_.default, (GO, *lists[:3], copies), LION, test_utils=checks)
    torch.library.opcheck(library.fused_lamb_.default, (GO, *lists, []), {"ratios": ratios, **LAMB}, test_utils=checks)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_model_with_the_functions_compiles_without_a_break(dynamic):
    def model(x, weight):
        return ops.softmax(ops.gelu(ops.rms_norm(x, weight))).square().sum()

    x, weight = torch.randn(3, 32, requires_grad=True), torch.randn(32, requires_grad=True)
    model(x, weight).backward()
    eager, x.grad, weight.grad = (x.grad, weight.grad), None, None
    torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=dynamic)(x, weight).backward()
    for gradient, expected in zip((x.grad, weight.grad), eager, strict=True):
        torch.testing.assert_close(gradient, expected)


def test_every_function_is_offered_by_a_builders_op(monkeypatch):
    offered = set()
    # Those of attention and transformers are in opforge.ops, for any device, and have tests of their own.
    places = ("attention", "ragged", "transformer")
    for name in (name for name, place in TRITON_BUILDERS.items() if not any(part in place for part in places)):
        op = builder_of(name)().load()
        assert op.origin == "jit"
        offered |= {
            function for function in dir(op) if callable(getattr(op, function)) and not function.startswith("_")
        }
    assert offered == set(ops.__all__)
    with pytest.raises(AttributeError, match="the op 'triton_swiglu' has no function 'sofmax'; it has: swiglu"):
        op.sofmax


def test_calls_go_around_the_dispatcher_only_where_it_would_do_nothing_else(monkeypatch):
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils._python_dispatch import TorchDispatchMode

    from opforge.ops.triton import softmaxes

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), options=None):
            seen.append(str(function))
            return function(*arguments, **(options or {}))

    seen, x = [], torch.randn(3, 16)
    expected = x.softmax(-1)
    called = []
    op = softmaxes._softmax
    monkeypatch.setattr(
        softmaxes, "_call", softmaxes.registry.direct(lambda *a: called.append(1) or op(*a), softmaxes._forward)
    )
    torch.testing.assert_close(ops.softmax(x), expected)
    torch.testing.assert_close(ops.softmax(x.clone().requires_grad_().detach()), expected)
    assert not called
    with Seen():
        ops.softmax(x)
    assert "opforge_triton.softmax.default" in seen and len(called) == 1
    ops.softmax(x.clone().requires_grad_()).sum().backward()
    graph = make_fx(ops.softmax)(x)
    assert any("opforge_triton.softmax" in str(node.target) for node in graph.graph.nodes)
    assert ops.softmax(x.to("meta")).is_meta
    negative = torch._neg_view(-x)
    torch.testing.assert_close(ops.softmax(negative), expected)
    assert len(called) == 5
    with torch.no_grad():
        ops.softmax(x.requires_grad_())
    assert len(called) == 5


FUNCTIONS = {
    "softmax": lambda x: ops.softmax(x),
    "rms_norm": lambda x: ops.rms_norm(x, x[0]),
    "layer_norm": lambda x: ops.layer_norm(x, x[0], x[1]),
    "gelu": lambda x: ops.gelu(x, "tanh"),
    "swiglu": lambda x: ops.swiglu(x, x + 1),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_are_the_same_whether_or_not_the_dispatcher_sees_the_calls(name):
    from torch.profiler import ProfilerActivity, profile

    function, x, dy = FUNCTIONS[name], torch.randn(3, 16, requires_grad=True), torch.randn(3, 16)
    y = function(x)
    (dx,) = torch.autograd.grad(y, x, dy)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        other = function(x)
        (gradient,) = torch.autograd.grad(other, x, dy)
    assert torch.equal(other, y) and torch.equal(gradient, dx)
    names = [event.name for event in seen.events()]
    assert f"opforge_triton::{name}" in names and f"opforge_triton::{name}_backward" in names
    assert "GeneratedBackwardFor" not in str(y.grad_fn) and "GeneratedBackwardFor" in str(other.grad_fn)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_second_derivative_is_an_error(name):
    x = torch.randn(3, 16, requires_grad=True)
    (dx,) = torch.autograd.grad(FUNCTIONS[name](x).square().sum(), x, create_graph=True)
    message = rf"opforge_triton.{name}_backward has no gradient: .* use torch's own operations$"
    with pytest.raises(RuntimeError, match=message):
        dx.sum().backward()


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # of torch's own forward derivatives
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_forward_derivative_is_an_error(name):
    x = torch.randn(3, 16)
    with pytest.raises(
        RuntimeError, match=rf"opforge_triton.{name} has no forward derivative \(jvp\): .* backward only"
    ):
        torch.func.jvp(FUNCTIONS[name], (x,), (x,))


def test_codes_are_the_same_whether_or_not_the_dispatcher_sees_the_call():
    from torch.profiler import ProfilerActivity, profile

    x = torch.randn(3, 16)
    plain = ops.quantize(x, 16)
    values = ops.dequantize(*plain)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        for others in (ops.quantize(x, 16), ops.quantize(torch._neg_view(-x), 16), ops.quantize(x.t().clone().t(), 16)):
            assert all(map(torch.equal, others, plain))
            assert torch.equal(ops.dequantize(*others), values)
    names = [event.name for event in seen.events()]
    assert names.count("opforge_triton::quantize") == names.count("opforge_triton::dequantize") == 3
    for bits, shape in ((8, (3, 16)), (4, (24,))):
        codes, scales, offsets = ops.quantize(x.to("meta"), 16, bits, False)
        assert codes.shape == shape and codes.is_meta and scales.shape == offsets.shape == (3,)
