"""The Triton ops by Triton's interpreter, against references in float64: float32 and float16, which it gets right.

bfloat16, which the interpreter gets wrong, and real launches are tested on a GPU: tests/device/test_triton.py.
"""

from __future__ import annotations

import importlib
import os
import sys

import gpu_clock
import pytest
import torch

INTERPRET = "TRITON_INTERPRET"
if "triton" not in sys.modules:  # Triton decides when it is imported; other tests may use it compiled after this
    os.environ[INTERPRET] = "1"
    try:
        pytest.importorskip("triton", reason="pip install triton")
        importlib.import_module("triton.language")
    finally:
        del os.environ[INTERPRET]

from opforge.builders.triton import TRITON_BUILDERS  # noqa: E402
from opforge.errors import KernelLaunchError, OpIncompatibleError  # noqa: E402
from opforge.ops import triton as ops  # noqa: E402
from opforge.ops.triton import chunks, norms, quantizer, references, registry  # noqa: E402

# numpy, which interprets, warns of what a GPU does without a word: x / 0, an overflow to infinity.
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3}
DTYPES = list(TOLERANCE)


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    """Each op anew, launched by the interpreter."""
    import triton.language.standard

    if not type(triton.language.standard.zeros).__name__.startswith("Interpreted"):
        pytest.skip(
            "triton was imported before this file, not to be interpreted; run this file in a process of its own"
        )
    monkeypatch.setenv(INTERPRET, "1")
    monkeypatch.setattr(registry, "_bound", {})
    torch.manual_seed(0)


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
            "group_size is 3, expected an even number from 1 to 8192",
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
        (lambda: lists("multi_adam", torch.zeros(4), step=0), ValueError, "step is 0, expected 1 or more"),
        (lambda: lists("multi_lion", torch.zeros(4, 4)[:, :2]), ValueError, "has gaps between its values"),
        (lambda: lists("multi_lamb", torch.zeros(4, dtype=torch.float64), step=1), TypeError, "expected torch.float"),
    ],
)
def test_what_cannot_be_computed_is_refused(call, error, said):
    with pytest.raises(error) as caught:
        call()
    assert said in str(caught.value)


# -- optimizers --------------------------------------------------------------------------------------------------------

STATES = {"multi_adam": 2, "multi_lamb": 2, "multi_lion": 1}
RULES = {
    "multi_adam": {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "eps": 1e-6, "weight_decay": 0.1},
    "multi_lamb": {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "eps": 1e-6, "weight_decay": 0.1},
    "multi_lion": {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1},
}


def lists(name: str, param: torch.Tensor, **numbers: float) -> None:
    states = [[torch.zeros_like(param)] for _ in range(STATES[name])]
    getattr(ops, name)([param], [torch.zeros_like(param)], *states, **numbers)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", STATES)
def test_optimizers_agree_with_their_references_over_many_tensors(name, dtype):
    sizes = [1, 0, 5, 1024, 3000, chunks.CHUNK + 17]
    params = [torch.randn(size).to(dtype) for size in sizes]
    params[4] = params[4].view(3, 1000).t()  # another memory order is no gap
    states = [[torch.zeros_like(one, dtype=torch.float32) for one in params] for _ in range(STATES[name])]
    wanted = [[one.double() for one in each] for each in (params, *states)]
    for step in (1, 2, 3):
        grads = [torch.randn_like(one) for one in params]
        numbers = {**RULES[name], **({} if name == "multi_lion" else {"step": step})}
        getattr(ops, name)(params, grads, *states, **numbers, grad_scale=-0.5)
        rule = getattr(references, name.removeprefix("multi_"))
        for i, grad in enumerate(grads):
            results = rule(wanted[0][i], grad.double() * -0.5, *(each[i] for each in wanted[1:]), **numbers)
            for each, result in zip(wanted, results, strict=True):
                each[i] = result
            wanted[0][i] = wanted[0][i].to(dtype).double()
    for found, expected in zip((params, *states), wanted, strict=True):
        for one, double in zip(found, expected, strict=True):
            close(one, double, one.dtype, times=4)


def test_adam_without_decoupled_decay_or_bias_correction():
    param, grad = torch.randn(100), torch.randn(100)
    numbers = {**RULES["multi_adam"], "step": 3, "adamw_mode": False, "bias_correction": False}
    wanted, *_states = references.adam(*as_doubles(param, grad), torch.zeros(100), torch.zeros(100), **numbers)
    ops.multi_adam([param], [grad], [torch.zeros(100)], [torch.zeros(100)], **numbers)
    close(param, wanted, torch.float32)


def test_a_tensor_that_begins_anywhere_is_updated_too():
    whole = torch.randn(101)
    param, before = whole[1:], whole.clone()
    ops.multi_lion([param], [torch.ones(100)], [torch.zeros(100)], lr=0.1)
    close(param, before[1:] - 0.1, torch.float32)
    assert whole[0] == before[0]


def test_a_table_is_kept_while_the_addresses_stay():
    tensors = [torch.zeros(70000), torch.zeros(3)]
    first = chunks.table([tensors])
    assert chunks.table([tensors]) is first
    assert first.rows[:, 1].tolist() == [chunks.CHUNK, 70000 - chunks.CHUNK, 3] and first.spans.tolist() == [
        [0, 2],
        [2, 3],
    ]
    assert chunks.table([[torch.zeros(70000), tensors[1]]]) is not first
    narrow = chunks.table([[tensors[0].view(torch.float16)[:70000], tensors[1].view(torch.float16)[:3]]])
    assert narrow.rows[1, 0] - narrow.rows[0, 0] == 2 * chunks.CHUNK, "the same addresses and sizes, of another dtype"
    for _ in range(3 * chunks.KEPT):
        tensors.append(torch.zeros(1))
        chunks.table([tensors])
    assert len(chunks._tables) <= chunks.KEPT


# -- torch -------------------------------------------------------------------------------------------------------------


def test_the_functions_are_ops_that_torch_can_trace():
    x = torch.randn(4, 32, requires_grad=True)
    weight, bias = torch.randn(32, requires_grad=True), torch.randn(32, requires_grad=True)
    library = torch.ops.opforge_triton
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
    moments = [[torch.zeros(32)], [torch.zeros(32)]]
    numbers = {"lr": 1.0, "beta1": 0.9, "beta2": 0.9, "weight_decay": 0.0, "grad_scale": 1.0}
    lion = ([weight.detach()], [bias.detach()], moments[0])
    torch.library.opcheck(library.multi_lion.default, lion, numbers, test_utils=checks)
    adam = {**numbers, "step": 1, "eps": 1e-8, "bias_correction": True}
    lists = ([weight.detach()], [bias.detach()], *moments)
    torch.library.opcheck(library.multi_lamb.default, lists, adam, test_utils=checks)
    torch.library.opcheck(library.multi_adam.default, lists, {**adam, "adamw_mode": True}, test_utils=checks)


def test_a_model_over_the_functions_compiles_whole():
    def model(x, weight):
        return ops.softmax(ops.gelu(ops.rms_norm(x, weight))).square().sum()

    x, weight = torch.randn(3, 32, requires_grad=True), torch.randn(32, requires_grad=True)
    model(x, weight).backward()
    eager, x.grad, weight.grad = (x.grad, weight.grad), None, None
    torch.compile(model, fullgraph=True, backend="aot_eager")(x, weight).backward()
    for one, wanted in zip((x.grad, weight.grad), eager, strict=True):
        torch.testing.assert_close(one, wanted)


def test_every_builder_offers_its_functions(monkeypatch):
    offered = set()
    for place in TRITON_BUILDERS.values():
        module, _, name = place.partition(":")
        op = getattr(importlib.import_module(module), name)().load()
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
    monkeypatch.delenv(INTERPRET)
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
