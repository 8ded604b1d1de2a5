"""The Triton ops by Triton's interpreter, against references in float64; the optimizers' results are tested with those
of the other devices, in test_ops_fused_optimizers.py. Real launches: tests/device/test_triton.py."""

from __future__ import annotations

import importlib
import os
import sys

import gpu_clock
import pytest
import torch
import triton_interpreter
from torch.utils._python_dispatch import TorchDispatchMode

from opforge.builders.triton import TRITON_BUILDERS
from opforge.errors import KernelLaunchError, OpIncompatibleError
from opforge.ops import FusedAdam, FusedLamb, FusedLion
from opforge.ops import triton as ops
from opforge.ops.triton import chunks, norms, quantizer, references, registry

# numpy, which interprets, warns of what a GPU does without a word: x / 0, an overflow to infinity.
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3}
DTYPES = list(TOLERANCE)


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    """Each op anew, launched by the interpreter."""
    triton_interpreter.start(monkeypatch)
    torch.manual_seed(0)


def builder_of(name: str):
    module, _, attribute = TRITON_BUILDERS[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def close(actual: torch.Tensor, wanted: torch.Tensor, dtype: torch.dtype, times: float = 1.0) -> None:
    allowed = TOLERANCE[dtype] * times
    torch.testing.assert_close(actual.double(), wanted.double(), rtol=allowed, atol=allowed)


def as_doubles(*tensors: torch.Tensor) -> list[torch.Tensor]:
    return [one.detach().double().requires_grad_(one.requires_grad) for one in tensors]


def matrix(rows: int, columns: int, dtype: torch.dtype, gap: int = 0) -> torch.Tensor:
    """A matrix that asks for its gradient; with a gap between its rows if asked for."""
    whole = torch.randn(rows, columns + gap, dtype=torch.float32).to(dtype)
    return whole[:, :columns].detach().requires_grad_()


SHAPES = [
    (3, 96, 0),
    (2, 77, 0),
    (5, 1, 0),
    (1, 16, 16),
    (2, 4000, 0),
    (2, 96, 3),
    (2, 9008, 0),
    (2, 17000, 8),
    (2, 5001, 0),
    (0, 8, 0),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "columns", "gap"), SHAPES)
def test_norms_and_their_gradients_agree_with_the_references(rows, columns, gap, dtype):
    for op, count in ((ops.rms_norm, 1), (ops.layer_norm, 2)):
        reference = getattr(references, op.__name__)
        x = matrix(rows, columns, dtype, gap)
        parameters = [torch.randn(columns).to(dtype).requires_grad_() for _ in range(count)]
        inputs = [x, *parameters]
        doubles = as_doubles(*inputs)
        y, wanted = op(x, *parameters, eps=1e-3), reference(*doubles, 1e-3)
        given = torch.randn(rows, columns).to(dtype)
        close(y, wanted, dtype, times=8)
        y.backward(given)
        wanted.backward(given.double())
        for one, double in zip(inputs, doubles, strict=True):
            close(one.grad, double.grad, dtype, times=30)


@pytest.mark.parametrize("columns", [48, 20000])
def test_norms_take_float32_weights_beside_low_precision(columns):
    x = matrix(2, columns, torch.float16)
    weight, bias = torch.randn(columns, requires_grad=True), torch.randn(columns, requires_grad=True)
    y = ops.layer_norm(x, weight, bias)
    wanted = references.layer_norm(*as_doubles(x, weight, bias), 1e-5)
    close(y, wanted, torch.float16, times=4)
    y.sum().backward()
    assert weight.grad.dtype == torch.float32 and y.dtype == x.grad.dtype == torch.float16


def test_norms_without_weights_and_with_a_mean_far_from_zero():
    x = torch.randn(4, 3, 20000) + 1000.0
    close(
        ops.layer_norm(x), references.layer_norm(x.double(), torch.ones(()), torch.zeros(()), 1e-5), torch.float32, 500
    )
    close(ops.rms_norm(x), references.rms_norm(x.double(), torch.ones(()), 1e-6), torch.float32)


def test_gradients_of_norms_are_the_same_bits_each_time():
    x, weight = matrix(40, 64, torch.float32), torch.randn(64, requires_grad=True)
    found = []
    for _ in range(2):
        weight.grad = None
        ops.rms_norm(x, weight).sum().backward()
        found.append(weight.grad)
    assert torch.equal(*found)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "columns", "gap"), SHAPES)
def test_softmax_and_its_gradient_agree_with_the_reference(rows, columns, gap, dtype):
    x = matrix(rows, columns, dtype, gap)
    (double,) = as_doubles(x)
    y, wanted = ops.softmax(x), references.softmax(double)
    close(y, wanted, dtype)
    given = torch.randn(rows, columns).to(dtype)
    y.backward(given)
    wanted.backward(given.double())
    close(x.grad, double.grad, dtype, times=4)


@pytest.mark.parametrize("columns", [64, 20000])
def test_softmax_of_extreme_rows_is_as_torch_says(columns):
    x = torch.randn(5, columns)
    x[0] = float("-inf")
    x[1, 3] = float("inf")
    x[2, 5] = float("nan")
    x[3, 1:] = float("-inf")
    x[4] = 1e30
    torch.testing.assert_close(ops.softmax(x), torch.softmax(x, -1), equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("count", [0, 1, 1023, 1024, 5000])
def test_gelu_and_its_gradient_agree_with_the_reference(count, approximate, dtype):
    x = (torch.randn(count) * 4).to(dtype).requires_grad_()
    (double,) = as_doubles(x)
    y, wanted = ops.gelu(x, approximate), references.gelu(double, approximate)
    close(y, wanted, dtype)
    y.sum().backward()
    wanted.sum().backward()
    close(x.grad, double.grad, dtype)


def test_gelu_of_extreme_values():
    x = torch.tensor([-1e30, -100.0, -0.0, 0.0, 100.0, 1e30, float("inf"), float("nan")], requires_grad=True)
    for approximate in ("none", "tanh"):
        y = ops.gelu(x, approximate)
        assert y[:6].tolist() == [0.0, 0.0, 0.0, 0.0, 100.0, x[5].item()] and y[6].isinf() and y[7].isnan()
        (gradient,) = torch.autograd.grad(y[1:6].sum(), x)
        assert gradient[1].item() == 0.0 and gradient[4].item() == 1.0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "columns", "gap"), SHAPES)
def test_swiglu_and_its_gradients_agree_with_the_reference(rows, columns, gap, dtype):
    gate, up = matrix(rows, columns, dtype, gap), matrix(rows, columns, dtype, gap)
    doubles = as_doubles(gate, up)
    y, wanted = ops.swiglu(gate, up), references.swiglu(*doubles)
    close(y, wanted, dtype)
    y.sum().backward()
    wanted.sum().backward()
    for one, double in zip((gate, up), doubles, strict=True):
        close(one.grad, double.grad, dtype)


def test_swiglu_takes_the_halves_of_one_tensor():
    whole = torch.randn(2, 3, 128, requires_grad=True)
    gate, up = whole.chunk(2, -1)
    close(ops.swiglu(gate, up), references.swiglu(gate.double(), up.double()), torch.float32)
    close(ops.swiglu(gate.transpose(0, 2), up.transpose(0, 2)).transpose(0, 2), ops.swiglu(gate, up), torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize(("groups", "size"), [(0, 64), (1, 2), (70, 64), (5, 1024), (2, 3000), (2, 3008)])
def test_quantisation_agrees_with_the_reference_and_comes_back(groups, size, bits, symmetric, dtype):
    check_quantisation(groups, size, bits, symmetric, dtype)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize(("groups", "size"), [(2, 8208), (1, 66002)])
def test_a_group_longer_than_any_block_is_quantised_in_two_passes(groups, size, bits, symmetric):
    check_quantisation(groups, size, bits, symmetric, torch.float16)


def check_quantisation(groups, size, bits, symmetric, dtype):
    x = torch.randn(groups, size).to(dtype)
    codes, scales, offsets = ops.quantize(x, size, bits, symmetric)
    wanted, wanted_scales, wanted_offsets = references.quantize(x.float(), size, bits, symmetric)
    torch.testing.assert_close(scales, wanted_scales)
    torch.testing.assert_close(offsets, wanted_offsets)
    back = ops.dequantize(codes, scales, offsets, bits, torch.float32, (groups, size))
    # A code may be off by one where a division rounds the other way.
    off = (back - references.dequantize(wanted, wanted_scales, wanted_offsets)).abs()
    assert (off <= scales[:, None] * 1.001 + 1e-6).all() and (
        (off > scales[:, None] / 2).sum() <= max(1, x.numel() // 1000)
    )
    assert ((back - x.float()).abs() <= scales[:, None] * 0.501 + 1e-6).all()
    assert codes.shape == (x.shape if bits == 8 else (x.numel() // 2,)) and codes.dtype == torch.int8


def test_quantisation_of_a_group_of_one_value_is_exact():
    for symmetric in (True, False):
        x = torch.tensor([[0.0] * 8, [2.5] * 8, [-3.0] * 8])
        codes, scales, offsets = ops.quantize(x, 8, 8, symmetric)
        torch.testing.assert_close(ops.dequantize(codes, scales, offsets), x)


CODES = torch.zeros(8, dtype=torch.int8)


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda: ops.quantize(torch.zeros(8), 8, 5), ValueError, "bits is 5, expected 8 or 4"),
        (
            lambda: ops.dequantize(CODES, torch.ones(1), torch.ones(1, dtype=torch.float64)),
            TypeError,
            "triton_quantizer: offsets is torch.float64, expected torch.float32, as quantize gives it",
        ),
        (
            lambda: quantizer._run_back(CODES, torch.ones(1, device="meta"), torch.ones(0), 8, torch.float32),
            ValueError,
            "triton_quantizer: scales is on meta, expected cpu, where codes is",
        ),
        (
            lambda: ops.quantize(torch.zeros(9), 3, 4),
            ValueError,
            "group_size is 3, expected an even number from 1 to 2147483647",
        ),
        (lambda: ops.quantize(torch.zeros(9), 2), ValueError, "x has 9 values, expected a multiple of group_size, 2"),
        (
            lambda: ops.softmax(torch.zeros(2, dtype=torch.float64)),
            TypeError,
            "torch.float64, expected one of torch.float32",
        ),
        (lambda: ops.softmax(torch.tensor(1.0)), ValueError, "x has no dimension"),
        (lambda: ops.gelu(torch.zeros(2), "exact"), ValueError, "approximate is 'exact', expected 'none' or 'tanh'"),
        (
            lambda: ops.swiglu(torch.zeros(2), torch.zeros(3)),
            ValueError,
            "up has shape torch.Size([3]), expected that of gate",
        ),
        (
            lambda: ops.rms_norm(torch.zeros(2, 4), torch.zeros(3)),
            ValueError,
            "weight has shape (3,) on cpu, expected (4,)",
        ),
        (lambda: ops.rms_norm(torch.tensor(1.0)), ValueError, "expected x to have a dimension that it is as long as"),
        (
            lambda: ops.fused_adam_(GO, *[zeros(4)] * 4, [], **{**ADAM, "step": 0}),
            ValueError,
            "step is 0, expected 1 at the first step: count it before the call",
        ),
        (
            lambda: ops.fused_lion_(GO, *[[torch.zeros(4, 4)[:, :2]]] * 3, [], **LION),
            ValueError,
            "params[0] has gaps between its values: pass .contiguous() tensors",
        ),
        (
            lambda: ops.fused_lion_(GO, zeros(4), zeros(4), zeros(4, 4), [], **LION),
            ValueError,
            "exp_avgs holds 2 tensors, expected 1 as params does",
        ),
        (
            lambda: ops.fused_lion_(GO, *[zeros(4)] * 3, zeros(5), **LION),
            ValueError,
            "copies[0] has shape (5,), strides (1,), on cpu; expected those of params[0]: (4,), (1,), cpu",
        ),
        (
            lambda: ops.fused_lion_(GO.long(), *[zeros(4)] * 3, [], **LION),
            ValueError,
            "noop_flag has 1 elements and is torch.int64 on cpu, expected one of torch.int32 or torch.float32 on cpu",
        ),
        (
            lambda: ops.fused_lion_(GO, *[zeros(4)] * 3, [], lr_tensor=torch.zeros(2), **LION),
            ValueError,
            "lr_tensor has 2 elements and is torch.float32",
        ),
        (
            lambda: ops.fused_lamb_(GO, *[zeros(4)] * 4, [], ratios=torch.ones(2), **LAMB),
            ValueError,
            "ratios has 2 elements and is torch.float32 on cpu, expected a contiguous float32 tensor of 1 on cpu",
        ),
        (
            lambda: ops.fused_lamb_(GO, *[zeros(4, dtype=torch.float64)] * 4, [], ratios=torch.ones(1), **LAMB),
            TypeError,
            "a tensor is torch.float64, expected one of torch.float32, torch.float16, torch.bfloat16",
        ),
    ],
)
def test_what_cannot_be_computed_is_refused(call, error, said):
    with pytest.raises(error) as caught:
        call()
    assert said in str(caught.value)


# -- optimizers --------------------------------------------------------------------------------------------------------


def zeros(*sizes, dtype=torch.float32):
    return [torch.zeros(size, dtype=dtype) for size in sizes]


GO = torch.zeros(1, dtype=torch.int32)
ADAM = {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "eps": 1e-6, "weight_decay": 0.1, "step": 1}
ADAM |= {"adamw_mode": True, "bias_correction": True}
LION = {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1}
LAMB = {**ADAM, "max_coeff": 10.0, "min_coeff": 0.01, "scale": 1.0, "eps_inside_sqrt": False}
del LAMB["adamw_mode"]


def test_a_mix_of_dtypes_takes_its_own_kernel_and_others_share_one():
    dtypes = [torch.float32, torch.bfloat16, torch.bfloat16, torch.float16, torch.bfloat16]
    params = [torch.zeros(64, dtype=dtype) for dtype in dtypes]
    params[4] = torch.zeros(65, dtype=torch.bfloat16)[1:]
    grads = [torch.zeros_like(one) for one in params]
    states = [torch.zeros_like(one, dtype=torch.float32) for one in params]
    states[2] = torch.zeros(64, dtype=torch.float16)
    found = chunks.tables("op", {"params": params, "grads": grads, "exp_avgs": states, "copies": []})
    assert [(*one.dtypes, *one.spans[:, 2].tolist()) for one in found] == [
        ("fp32", "fp32", "fp32", "none", 0),
        ("bf16", "bf16", "fp32", "none", 1),
        ("any", "any", "any", "any", 2, 4),
        ("fp16", "fp16", "fp32", "none", 3),
    ]
    # Two bits a list: bf16, bf16, fp16; bf16, bf16, fp32.
    assert found[2].rows[:, 4].tolist() == [2 + (2 << 2) + (1 << 4), 2 + (2 << 2)]


def test_a_table_is_kept_while_the_addresses_stay():
    tensors = zeros(5000, 0, 3)
    names = ("params", "grads", "exp_avgs", "copies")

    def tables():
        return chunks.tables("op", dict.fromkeys(names, tensors))

    (first,) = tables()
    assert tables()[0] is first and first.dtypes == chunks.ANY
    assert first.rows[:, -2].tolist() == [chunks.LEAST, 5000 - chunks.LEAST, 3]
    assert first.rows[:, -1].tolist() == [0, 0, 2] and first.spans.tolist() == [[0, 2, 0], [2, 3, 2]]
    assert first.rows[:, 0].tolist() == [
        tensors[0].data_ptr(),
        tensors[0].data_ptr() + 4 * chunks.LEAST,
        tensors[2].data_ptr(),
    ]
    tensors[0] = torch.zeros(5000)
    assert tables()[0] is not first
    for _ in range(3 * chunks.KEPT):
        tensors.append(torch.zeros(1))
        tables()
    assert len(chunks._tables) <= chunks.KEPT


def test_chunks_are_as_large_as_leaves_every_multiprocessor_several():
    found = {values: chunks._chunk(values, 132) for values in (1, 10 << 20, 100 << 20, 1 << 30, 1 << 34)}
    assert list(found.values()) == [4096, 4096, 4096, 32768, 65536]
    assert all(values // size >= 8 * 132 for values, size in found.items() if values > 1)
    assert all(size % 1024 == 0 for size in found.values()), "blocks of the kernels"


def test_a_table_that_another_stream_reads_is_noted_there(monkeypatch):
    noted = []
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: noted.append((self.dim(), stream)))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "the second")
    tensors, names = zeros(33), ("params", "grads", "exp_avgs", "copies")
    for number in (1, 1, 2):
        assert noted == []
        monkeypatch.setattr(chunks, "_stream", lambda device, number=number: number)
        (found,) = chunks.tables("op", dict.fromkeys(names, tensors))
    assert noted == [(2, "the second")] * 2 and found.stream == 1, "the rows and the spans"


class Recording:
    """What a graph is: launches that are kept while it is captured, and run when it is replayed."""

    def __init__(self, kernels):
        self.kernels, self.op, self.launches, self.capturing = kernels, kernels.op, [], False

    def launch(self, *arguments):
        self.launches.append(arguments)
        if not self.capturing:
            self.kernels.launch(*arguments)

    def replay(self):
        for arguments in self.launches:
            self.kernels.launch(*arguments)


class NothingForTheHost(TorchDispatchMode):
    """No tensor is read by the host, moved or copied: what a graph's capture forbids."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        assert function.namespace == "opforge_triton" or function.overloadpacket in ALLOWED, function
        return function(*args, **(kwargs or {}))


ALLOWED = (torch.ops.aten.empty, torch.ops.aten.view, torch.ops.aten.detach)


@pytest.mark.parametrize("name", ["fused_adam_", "fused_lion_", "fused_lamb_"])
def test_a_captured_step_follows_what_lies_on_the_device(name, monkeypatch):
    count = 1 if name == "fused_lion_" else 2
    numbers = {"fused_adam_": ADAM, "fused_lion_": LION, "fused_lamb_": LAMB}[name]
    numbers = {**numbers, "lr": 0.0, **({} if name == "fused_lion_" else {"step": 0})}
    lr, t, scale, flag = torch.tensor(0.0), torch.tensor(1.0), torch.tensor(4.0), torch.zeros(1, dtype=torch.int32)
    on_device = {"lr_tensor": lr, "step_tensor": t, "grad_scale": scale}

    def fresh():
        torch.manual_seed(0)
        params, grads = [torch.randn(3000), torch.randn(5)], [torch.randn(3000), torch.randn(5)]
        return [params, grads, *([torch.zeros_like(one) for one in params] for _ in range(count))]

    def step(lists):
        more = {"ratios": ratios} if name == "fused_lamb_" else {}
        getattr(ops, name)(flag, *lists, [], **on_device, **more, **numbers)

    graphed, eager, ratios = fresh(), fresh(), torch.ones(2)
    step(graphed)  # with a rate of 0 it leaves the parameters; the moments are put back
    for each in graphed[2:]:
        for state in each:
            state.zero_()
    (op,) = registry._bound
    graph = Recording(registry._bound[op])
    monkeypatch.setitem(registry._bound, op, graph)
    monkeypatch.setattr(chunks, "_is_capturing", lambda device: True)
    monkeypatch.setattr(chunks, "_captured", [])
    with pytest.raises(RuntimeError, match="run one step with the same tensors first"):
        step(eager)
    graph.capturing = True
    with NothingForTheHost():
        step(graphed)
    graph.capturing = False
    assert len(chunks._captured) == 1 and len(graph.launches) == (3 if name == "fused_lamb_" else 1)
    monkeypatch.setattr(chunks, "_is_capturing", lambda device: False)
    monkeypatch.setitem(registry._bound, op, graph.kernels)
    for number in (1, 2, 3):
        lr.fill_(0.1 / number)
        t.fill_(number)
        scale.fill_(2.0**number)
        flag.fill_(number == 2)
        for lists in (graphed, eager):
            for one in lists[1]:
                one.mul_(-1.5)
        graph.replay()
        step(eager)
        assert all(
            torch.equal(one, other)
            for ours, theirs in zip(graphed, eager, strict=True)
            for one, other in zip(ours, theirs, strict=True)
        )
    assert not torch.equal(graphed[0][0], fresh()[0][0])


@pytest.mark.parametrize("optimizer", [FusedAdam, FusedLion, FusedLamb])
def test_the_optimizers_step_by_these_ops_as_by_those_of_the_host(optimizer, monkeypatch):
    """bfloat16 parameters with float32 master weights and states, in one pass; and with states in bfloat16."""
    from opforge.ops import fused_optimizer

    host = fused_optimizer.load_op
    mine = {f"Fused{name}Builder": f"Triton{name}Builder" for name in ("Adam", "Lion", "Lamb")}
    for modes in ({"master_weights": True, "capturable": True}, {"fp32_optimizer_states": False}):
        results = []
        for load in (host, lambda builder, device: builder_of(mine[builder])().load()):
            monkeypatch.setattr(fused_optimizer, "load_op", load)
            torch.manual_seed(0)
            params = [torch.nn.Parameter(torch.randn(size).bfloat16()) for size in ((30, 20), (5,))]
            ours = optimizer(params, lr=0.01, weight_decay=0.1, **modes)
            for _ in range(3):
                for param in params:
                    param.grad = torch.randn_like(param)
                ours.step()
            states = [value for state in ours.state.values() for value in state.values() if torch.is_tensor(value)]
            results.append([*params, *states])
        for one, other in zip(*results, strict=True):
            assert one.dtype == other.dtype
            torch.testing.assert_close(one, other)


# -- torch -------------------------------------------------------------------------------------------------------------


def test_the_functions_are_ops_that_torch_can_trace():
    x = torch.randn(4, 32, requires_grad=True)
    weight, bias = torch.randn(32, requires_grad=True), torch.randn(32, requires_grad=True)
    library = torch.ops.opforge_triton
    assert all(callable(getattr(ops, name)) for name in ops.__all__)  # which registers them
    # Tracing with gradients is the next test's.
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


@pytest.mark.filterwarnings("ignore:Input #. requires gradient and is not a double precision:UserWarning")
def test_gradients_are_the_slopes_of_what_is_computed():
    """By small steps, in float32: so that no formula of ours stands on both sides."""
    x, up, weight, bias = (torch.randn(3, 20), torch.randn(3, 20), torch.randn(20), torch.randn(20))
    for function, inputs in (
        (ops.rms_norm, (x, weight)),
        (ops.layer_norm, (x, weight, bias)),
        (ops.softmax, (x,)),
        (ops.gelu, (x,)),
        (lambda one: ops.gelu(one, "tanh"), (x,)),
        (ops.swiglu, (x, up)),
    ):
        inputs = tuple(one.detach().requires_grad_() for one in inputs)
        assert torch.autograd.gradcheck(function, inputs, eps=1e-2, atol=5e-3, rtol=1e-2, fast_mode=True)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_model_over_the_functions_compiles_whole(dynamic):
    def model(x, weight):
        return ops.softmax(ops.gelu(ops.rms_norm(x, weight))).square().sum()

    x, weight = torch.randn(3, 32, requires_grad=True), torch.randn(32, requires_grad=True)
    model(x, weight).backward()
    eager, x.grad, weight.grad = (x.grad, weight.grad), None, None
    torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=dynamic)(x, weight).backward()
    for one, wanted in zip((x.grad, weight.grad), eager, strict=True):
        torch.testing.assert_close(one, wanted)


def test_every_builder_offers_its_functions(monkeypatch):
    offered = set()
    for name in TRITON_BUILDERS:
        op = builder_of(name)().load()
        assert op.origin == "jit"
        offered |= {one for one in dir(op) if callable(getattr(op, one)) and not one.startswith("_")}
    assert offered == set(ops.__all__)
    with pytest.raises(AttributeError, match="the op 'triton_swiglu' has no function 'sofmax'; it has: swiglu"):
        op.sofmax


def test_a_kernel_that_is_not_declared_or_not_aligned_is_not_launched():
    from opforge.builders.triton.norms import TritonRMSNormBuilder

    kernels = TritonRMSNormBuilder().load().kernels
    with pytest.raises(KernelLaunchError, match="the builder declares no such kernel"):
        kernels.launch("forward_fp8", (1, 1, 1), torch.zeros(1))
    whole = torch.zeros(65)
    arguments = [whole[1:], whole[:64], whole[:64], torch.zeros(1), 64, 64, 64, 1e-6]
    with pytest.raises(KernelLaunchError, match="x was declared to be divisible by 16, and is"):
        kernels.launch("forward_fp32_fp32_1024", (1, 1, 1), *arguments)
    assert norms.rms_norm(whole[1:].view(1, 64)).eq(0).all()


def test_without_a_gpu_and_without_the_interpreter_nothing_is_built(monkeypatch):
    monkeypatch.delenv(triton_interpreter.INTERPRET)
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(OpIncompatibleError, match=r"torch can use no GPU here. TRITON_INTERPRET=1 runs the op"):
        ops.softmax(torch.zeros(2))


def test_the_gpu_benchmarks_of_rows_make_their_calls(monkeypatch):
    """With small tensors: nothing is timed, but each contender runs, and gives what ours does."""
    monkeypatch.syspath_prepend(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    from benchmarks.gpu import rows

    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    gpu_clock.small(rows, monkeypatch, 64)
    gpu = gpu_clock.clock()
    figures = list(rows.run(gpu))
    assert len(gpu.results) == 14 and len({(one.task, one.contender) for one in figures}) == len(figures)
    for results in gpu.results:
        assert "torch.compile" in results
        gpu_clock.agree(results)
