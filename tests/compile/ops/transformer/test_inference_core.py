"""The core ops of inference beyond their contract: other levels of the CPU, NaN, large and infinite values, errors."""

import platform
import struct

import pytest
import torch
from support import cases
from torch.nn import functional

from opforge.builders.cpu.transformer.inference_core import InferenceCoreBuilder
from opforge.ops.cases import cases_of
from opforge.testing import comparison
from opforge.testing.ops import FEWEST_UNITS

pytestmark = [pytest.mark.compile, pytest.mark.usefixtures("builds_are_shared")]
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
EPS = 1e-5


def draw(*shape, dtype=torch.float32, seed=0):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 2).to(dtype)


ANOTHER_LEVEL = pytest.mark.long("builds the op for one level of the CPU more, in 25 s")
OTHER_LEVELS = [pytest.param(level, marks=ANOTHER_LEVEL) for level in ("x86-64", "x86-64-v3")]


@pytest.fixture(scope="module")
def op():
    return InferenceCoreBuilder().load()


@pytest.fixture(scope="module", params=["", *OTHER_LEVELS])
def each_op(request):
    """The op for each level of the CPU."""
    if request.param and platform.machine() != "x86_64":
        pytest.skip(f"{request.param} is not this machine's architecture")
    builder = InferenceCoreBuilder(target=f"cpu:{request.param}" if request.param else None)
    compatible = builder.is_compatible()
    if not compatible:
        pytest.skip(f"this CPU does not run {request.param}: {compatible}")
    return builder.load()


def assert_no_worse(out, exact, torchs, what=""):
    """Asserts that the largest error is at most twice that of torch in the same dtype, or half a unit of the result."""
    if not out.numel():
        return
    error, others = ((tensor.double() - exact).abs().max() for tensor in (out, torchs))
    half_a_unit = exact.abs().max() * torch.finfo(out.dtype).eps / 2
    assert error <= max(2 * others, half_a_unit), f"{what}: {error} is more than twice {others}"


def torchs_norms(values, residual, gamma, beta):
    """Returns torch's layer norm, the sum, the sum's layer norm, the RMS norm, and the sum's RMS norm."""
    size, total = values.shape[-1:], values + residual
    layer = [functional.layer_norm(x, size, gamma, beta, EPS) for x in (values, total)]
    return (layer[0], total, layer[1], *(functional.rms_norm(x, size, gamma, EPS) for x in (values, total)))


@pytest.mark.parametrize("each_op", OTHER_LEVELS, indirect=True)
def test_the_cases_hold_on_other_levels(each_op):
    """The contract tries them on this CPU's own level alone."""
    cases.check_results(InferenceCoreBuilder, each_op)
    for case in [case for case in cases_of(InferenceCoreBuilder) if case.reference and "norm" in case.name]:
        for shape in case.shapes:
            arguments = comparison.make_arguments(case, case.bound(each_op), shape, "float32", "cpu")
            error = comparison.error(case, case.bound(each_op), arguments)
            assert error.ours <= max(FEWEST_UNITS, case.accuracy * error.eager), (case.name, shape, error)


@pytest.mark.parametrize("dtype", DTYPES[:2])
@pytest.mark.parametrize("largest", [1e15, 1e19, 1e30, 1e38])
def test_norms_of_rows_whose_squares_are_larger_than_a_float(each_op, dtype, largest):
    """Of rows of such values, and of a row with one of them; torch's norms are 0 or NaN there."""
    for columns in (1, 15, 33, 1025):
        rows = draw(3, columns).clamp(-1.5, 1.5)
        rows[0] *= largest
        rows[1, columns // 2] = rows[2, 0] = largest
        rows, residual = rows.to(dtype), draw(3, columns, seed=1).to(dtype)
        gamma, beta = (draw(columns, seed=seed).to(dtype) for seed in (2, 3))
        norms = [(torch.empty_like(rows), torch.empty_like(rows)) for _ in range(3)]
        each_op.layer_norm(norms[0][0], rows, gamma, beta, EPS)
        each_op.rms_norm(norms[0][1], rows, gamma, EPS)
        each_op.pre_layer_norm(*norms[1], rows, residual, gamma, beta, EPS)
        each_op.rms_pre_norm(*norms[2][::-1], rows, residual, gamma, EPS)
        exact = torchs_norms(*(tensor.double() for tensor in (rows, residual, gamma, beta)))
        for out, norm in zip((norms[0][0], norms[1][1], norms[0][1], norms[2][1]), (exact[0], *exact[2:]), strict=True):
            error = (out.double() - norm).abs().max() / norm.abs().max()
            assert error < (1e-5 if dtype == torch.float32 else 1e-2), (columns, error)


@pytest.mark.parametrize("columns", [15, 100, 1000])
def test_a_layer_norm_of_equal_values_is_beta_whatever_they_are(each_op, columns):
    """A mean that is one rounding off would give the whole of gamma."""
    values = [(1 + number / 64) * largest for largest in (1, 1e3, 1e5, 1e15, 1e19, 1e37) for number in range(64)]
    rows = torch.tensor(values)[:, None].expand(-1, columns).contiguous()
    gamma, beta = draw(columns), draw(columns, seed=1)
    out = torch.empty_like(rows)
    each_op.layer_norm(out, rows, gamma, beta, EPS)
    assert torch.equal(out, beta.expand_as(rows))


@pytest.mark.parametrize("dtype", DTYPES)
def test_outputs_may_be_the_inputs_memory(op, dtype):
    values, residual, gamma = draw(3, 1025, dtype=dtype), draw(3, 1025, dtype=dtype, seed=1), draw(1025, dtype=dtype)
    expected = [torch.empty_like(values) for _ in range(2)]
    op.rms_pre_norm(*expected, values, residual, gamma, EPS)
    op.rms_pre_norm(values, residual, values, residual, gamma, EPS)
    assert torch.equal(values, expected[0]) and torch.equal(residual, expected[1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_are_torchs_bit_for_bit(each_op, dtype):
    """All values of 16 bits, with infinities, subnormal numbers and NaN among them."""
    values = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(dtype).view(64, 1024)
    residual = values.flatten()[torch.randperm(1 << 16, generator=torch.Generator().manual_seed(0))].view(64, 1024)
    total, out, gamma = torch.empty_like(values), torch.empty_like(values), torch.ones(1024, dtype=dtype)
    each_op.rms_pre_norm(out, total, values, residual, gamma, EPS)
    expected = values + residual
    assert torch.equal(total.isnan(), expected.isnan())
    assert torch.equal(total.nan_to_num(7.0, 8.0, 9.0), expected.nan_to_num(7.0, 8.0, 9.0))


NANS = torch.tensor([*range(0x7F81, 0x8000), *range(-0x7F, 0)], dtype=torch.int16).view(torch.bfloat16)
"""All bit patterns of NaN, each sign."""
NAN_ALL_ONES = struct.unpack("f", b"\xff" * 4)[0]


@pytest.mark.parametrize("place", ["values", "residual", "gamma", "beta", "eps"])
def test_every_nan_of_bfloat16_stays_one(each_op, place):
    """A NaN whose lower bits are set would become a number when it is rounded to bfloat16."""
    size = len(NANS)
    rows = {"values": draw(size, size), "residual": draw(size, size), "gamma": draw(size), "beta": draw(size)}
    rows = {name: row.bfloat16() for name, row in rows.items()}
    if place in ("gamma", "beta"):
        rows[place] = NANS
    elif place != "eps":
        rows[place][range(size), range(size)] = NANS  # one in each row, in each lane
    values, residual, gamma, beta = rows.values()
    eps = NAN_ALL_ONES if place == "eps" else EPS
    outs = [torch.zeros_like(values) for _ in range(7)]
    each_op.layer_norm(outs[0], values, gamma, beta, eps)
    each_op.pre_layer_norm(outs[1], outs[2], values, residual, gamma, beta, eps)
    each_op.post_layer_norm(outs[3], values, residual, gamma, beta, eps)
    each_op.rms_norm(outs[4], values, gamma, eps)
    each_op.rms_pre_norm(outs[5], outs[6], values, residual, gamma, eps)
    total = (values + residual).isnan()
    assert torch.equal(outs[1].isnan(), total) and torch.equal(outs[6].isnan(), total)
    of_values, of_sums, centred = place != "residual", True, place != "beta"
    nan_norms = {0: of_values, 2: of_sums, 3: of_sums, 4: of_values and centred, 5: centred}
    for number, expected in nan_norms.items():
        assert outs[number].isnan().all() if expected else not outs[number].isnan().any(), number


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("start", "columns"), [(0, 1024), (0, 1025), (1, 1024)])
def test_large_results_are_those_of_their_rows(each_op, dtype, start, columns):
    """Results of 4 MiB are written past the caches, unless a row does not begin at a multiple of 64 bytes."""
    op, rows = each_op, 2100
    values, residual, total, out = (
        draw(start + rows * columns, dtype=dtype, seed=seed)[start:].view(rows, columns) for seed in range(4)
    )
    gamma, beta = draw(columns, dtype=dtype), draw(columns, dtype=dtype, seed=1)
    op.pre_layer_norm(total, out, values, residual, gamma, beta, EPS)
    expected, single = torch.empty_like(out[:3]), torch.empty_like(out[:3])
    for first in (0, rows // 2, rows - 3):
        part = slice(first, first + 3)
        op.pre_layer_norm(single, expected, values[part].clone(), residual[part].clone(), gamma, beta, EPS)
        assert torch.equal(out[part], expected) and torch.equal(total[part], single)
    op.rms_norm(out, out, gamma, EPS)
    op.rms_norm(expected, expected, gamma, EPS)
    assert torch.equal(out[-3:], expected)


def gelu(x):
    return functional.gelu(x, approximate="tanh")


ACTIVATIONS = {0: gelu, 1: functional.relu, 2: functional.silu, 6: lambda x: x}
GATES = (3, 4, 5)


@pytest.mark.parametrize("number", [*ACTIVATIONS, *GATES])
def test_no_bias_gives_what_a_bias_of_zeros_gives(op, number):
    for dtype in DTYPES:
        rows = draw(3, 34, dtype=dtype)
        results = []
        for bias in (None, torch.zeros(34, dtype=dtype)):
            if number in GATES:
                results.append(rows.new_empty(3, 17))
                op.gated_activation(results[-1], rows, bias, number)
            else:
                results.append(rows.clone())
                op.bias_activation(results[-1], bias, number)
        assert torch.equal(*results)


@pytest.mark.parametrize("number", ACTIVATIONS)
def test_activations_of_all_magnitudes(op, number):
    values = torch.cat([torch.linspace(-120, 120, 100_001), torch.tensor([torch.inf, -0.0, 0.0, 1e-38, -1e-30])])
    exact, torchs = ACTIVATIONS[number](values.double()), ACTIVATIONS[number](values)
    out = values.view(1, -1).clone()
    op.bias_activation(out, None, number)
    finite = exact.isfinite()
    assert_no_worse(out[0][finite], exact[finite], torchs[finite])
    assert torch.equal(out[0][~finite], torchs[~finite])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(0, 8), (1, 1), (2, 15, 17), (1, 33, 64)])
@pytest.mark.parametrize("transposed", [True, False])
def test_products(op, dtype, shape, transposed):
    op.create_handle()
    values, weights = draw(*shape, dtype=dtype), draw(5, shape[-1], dtype=dtype, seed=1)
    weights = weights.t().contiguous().t() if transposed else weights
    out = values.new_empty(*shape[:-1], 5)
    op.blas_linear(out, values, weights)
    torch.testing.assert_close(out, functional.linear(values, weights))
    if values.dim() == 3:
        out, right = values.new_empty(*shape[:-1], 7), draw(shape[0], shape[-1], 7, dtype=dtype, seed=2)
        op.blas_4d_matmul(out, right, values)
        torch.testing.assert_close(out, values @ right)


ROW = torch.ones(4)
ERRORS = [
    (lambda op: op.bias_activation(torch.ones(2, 4), None, 3), r"act_type is 3, expected 0 \(GELU\), 1 \(ReLU\), 2"),
    (lambda op: op.bias_activation(torch.ones(2, 4), torch.ones(3), 0), r"bias has shape \[3\], expected \[4\]: one"),
    (lambda op: op.bias_activation(torch.ones(4, 2).t(), None, 0), "activation is not contiguous: pass .contig"),
    (lambda op: op.bias_activation(torch.ones(2, 4).double(), None, 0), "activation is float64, expected float32, bf"),
    (
        lambda op: op.gated_activation(torch.ones(2, 4), torch.ones(2, 8), None, 0),
        r"activation_type is 0, expected 3 \(",
    ),
    (
        lambda op: op.gated_activation(torch.ones(2, 3), torch.ones(2, 8), None, 3),
        r"output has shape \[2, 3\] and input",
    ),
    (
        lambda op: op.rms_norm(torch.ones(2, 4), torch.ones(2, 4), ROW.half(), EPS),
        "gamma and norm_input differ in dtyp",
    ),
    (
        lambda op: op.rms_norm(torch.ones(3, 4), torch.ones(2, 4), ROW, EPS),
        r"the output has shape \[3, 4\], expected \[",
    ),
    (
        lambda op: op.pre_layer_norm(torch.ones(2, 4), torch.ones(2, 4), torch.ones(2, 4), ROW, ROW, ROW, EPS),
        r"the residual has shape \[4\], expected \[2, 4\], that of input",
    ),
    (
        lambda op: op.blas_linear(torch.ones(2, 4), torch.ones(2, 3), torch.tensor(1.0)),
        r"weights has shape \(\) and hidden_states \(2, 3\), expected \[out_features, in_features\]",
    ),
    (
        lambda op: op.blas_linear(torch.ones(2, 4), torch.ones(2, 3), torch.ones(4, 2)),
        r"weights has shape \(4, 2\) and ",
    ),
    (
        lambda op: op.blas_linear(torch.ones(2, 5), torch.ones(2, 3), torch.ones(4, 3)),
        r"the output has shape \(2, 5\) an",
    ),
    (
        lambda op: op.blas_linear(torch.ones(2, 4), torch.ones(2, 3), torch.ones(4, 3).half()),
        "the output is torch.float32 on cpu and an input torch.float16 on cpu, expected one dtype and device",
    ),
    (
        lambda op: op.blas_4d_matmul(torch.ones(1, 2, 2), torch.ones(1, 3, 2), torch.ones(1, 2, 2)),
        r"A has shape \(1, 2, ",
    ),
]


@pytest.mark.parametrize(("call", "message"), ERRORS)
def test_errors_state_what_was_expected(op, call, message):
    with pytest.raises((RuntimeError, ValueError), match=message):
        call(op)


def test_the_quantized_product_of_deepspeed_is_not_here(op):
    assert not hasattr(op, "cuda_wf6af16_linear")
