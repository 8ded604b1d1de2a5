"""The floating-point quantizer against exact arithmetic: its codes, bytes, rounding, and the text of its errors."""

import itertools

import numpy
import pytest
import torch
from support.quantizing.fp_codes import FORMATS, exact_codes, number, scale_of, stream, unpacked_codes

from opforge.builders.cpu.fp_quantizer import FPQuantizerBuilder

pytestmark = [pytest.mark.compile, pytest.mark.usefixtures("builds_are_shared")]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
POISON = 0xA5


ANOTHER_LEVEL = pytest.mark.long("builds the op for one level of the CPU more")


@pytest.fixture(scope="module")
def op():
    return FPQuantizerBuilder().load()


@pytest.fixture(
    scope="module",
    params=["native", *(pytest.param(level, marks=ANOTHER_LEVEL) for level in ("x86-64", "x86-64-v3"))],
)
def each_op(request, op):
    """The op for this CPU's level, and for lower ones."""
    if request.param == "native":
        return op
    builder = FPQuantizerBuilder(f"cpu:{request.param}")
    if not builder.is_compatible():
        pytest.skip(f"needs a CPU of the level {request.param}")
    return builder.load()


def values(groups, size, dtype, seed=0):
    """Returns values of many magnitudes, with zeros of both signs and ties among them."""
    random = torch.Generator().manual_seed(seed)
    tensor = torch.randn(groups, size, generator=random) * 2.0 ** torch.randint(
        -14, 3, (groups, size), generator=random
    )
    tensor[:, 1::9] = -0.0
    tensor[:, ::7] = torch.randint(-32, 33, tensor[:, ::7].shape, generator=random) / 16
    return tensor.to(dtype)


def quantized(op, tensor, size, form, **options):
    """Returns rows that were filled with other bytes before."""
    row = size * form.bits // 8 + 4
    out = torch.full((tensor.numel() // size * row + 64,), POISON, dtype=torch.uint8)
    rows = out[: tensor.numel() // size * row].view(-1, row)
    op.fp_quantize_(rows, tensor, size, form.bits, form.mantissa, **options)
    assert bool((out[rows.numel() :] == POISON).all())
    return rows


@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_rows_are_those_of_exact_arithmetic(each_op, form):
    shapes = [(1, 4), (7, 12), (3, 36), (3, 64), (2, 260), (2, 508), (5, 512), (2, 1028), (2, 4100), (1, 40_004)]
    for dtype, (groups, size) in itertools.product(DTYPES, shapes):
        tensor = values(groups, size, dtype)
        rows = quantized(each_op, tensor, size, form)
        scale, inverse = scale_of(tensor.float().numpy(), form)
        codes = exact_codes(tensor.float().numpy() * inverse, form)
        expected = numpy.concatenate([stream(codes, form.bits), scale.view(numpy.uint8)], axis=1)
        assert numpy.array_equal(rows.numpy(), expected)
        exact = torch.from_numpy((number(codes, form) * scale.astype(numpy.float64)).astype(numpy.float32))
        for back in DTYPES:
            out = torch.full((groups * size + 16,), 7.0, dtype=back)
            each_op.fp_dequantize_(out[: groups * size], rows, size, form.bits, form.mantissa)
            assert torch.equal(out[: groups * size].view(groups, size), exact.to(back))
            assert bool((out[groups * size :] == 7).all())


@pytest.mark.parametrize("form", FORMATS, ids=str)
@pytest.mark.parametrize(("dtype", "groups"), [(torch.float32, 2600), (torch.bfloat16, 5200), (torch.float16, 5200)])
@pytest.mark.parametrize("size", [508, 512])
def test_a_large_tensor_is_the_same_as_its_groups(each_op, form, dtype, groups, size):
    """5 MiB of results are written past the caches, by several threads, also at addresses that are not aligned."""
    tensor = values(groups, size, dtype)
    rows = quantized(each_op, tensor, size, form)
    memory = torch.full((tensor.numel() + 65,), 7.0, dtype=dtype)
    for out in (memory[64:-1], memory[65:]):
        each_op.fp_dequantize_(out, rows, size, form.bits, form.mantissa)
        assert bool((memory[:64] == 7).all())
        for group in (0, 1, groups // 2, groups - 1):
            alone = torch.empty(size, dtype=dtype)
            each_op.fp_dequantize_(alone, rows[group].clone(), size, form.bits, form.mantissa)
            assert torch.equal(out.view(-1, size)[group], alone)
    assert memory[64] != 7


@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_values_near_each_limit_between_two_codes(each_op, form):
    """The numbers halfway between two codes, and the floats beside them: a second rounding would move them."""
    codes = numpy.arange(2 ** (form.bits - 1), dtype=numpy.int64)
    numbers = number(codes, form).astype(numpy.float32)
    halfway = ((numbers[:-1].astype(numpy.float64) + numbers[1:]) / 2).astype(numpy.float32)
    near = [halfway, numpy.nextafter(halfway, numpy.float32(0)), numpy.nextafter(halfway, numpy.float32(numpy.inf))]
    tiny = numpy.float32([1e-45, 1e-40, 1.1e-38, 1e-20, 0.0])
    limits = numpy.concatenate([*near, numbers, tiny])
    limits = numpy.concatenate([limits, -limits, numpy.zeros(-2 * len(limits) % 4, numpy.float32)])
    for power in (0, -100, 60):  # the scale is this power of two, so no product is rounded
        tensor = torch.from_numpy(limits * numpy.float32(2.0**power)).view(1, -1)
        rows = quantized(each_op, tensor, tensor.numel(), form)
        _, inverse = scale_of(tensor.numpy(), form)
        expected = stream(exact_codes(tensor.numpy() * inverse, form), form.bits)
        assert numpy.array_equal(rows[:, :-4].numpy(), expected)


@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_every_code_has_its_number_and_comes_back(each_op, form):
    codes = numpy.arange(2**form.bits, dtype=numpy.int64).reshape(1, -1)
    scale = numpy.array([[0.37]], numpy.float32)
    rows = torch.from_numpy(numpy.concatenate([stream(codes, form.bits), scale.view(numpy.uint8)], axis=1))
    out = torch.empty(codes.shape)
    each_op.fp_dequantize_(out, rows, codes.size, form.bits, form.mantissa)
    assert numpy.array_equal(out.numpy(), (number(codes, form) * scale).astype(numpy.float32))
    again = quantized(each_op, out, codes.size, form)
    assert torch.equal(again[:, :-4], rows[:, :-4])


SCALES = (1e-45, 1.2e-38, -0.37, 3e38, -1e37, float("inf"), float("nan"))
"""Scales that this op does not write, but that rows may have."""


@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_every_scale_multiplies_the_numbers(each_op, form):
    codes = numpy.arange(2**form.bits, dtype=numpy.int64).repeat(256 // 2**form.bits or 1).reshape(1, -1)
    for scale in numpy.array(SCALES, numpy.float32):
        rows = numpy.concatenate([stream(codes, form.bits), scale.reshape(1, 1).view(numpy.uint8)], axis=1)
        with numpy.errstate(all="ignore"):
            exact = torch.from_numpy((number(codes, form) * scale.astype(numpy.float64)).astype(numpy.float32))
        for back in DTYPES:
            out = torch.empty(codes.shape, dtype=back)
            each_op.fp_dequantize_(out, torch.from_numpy(rows), codes.size, form.bits, form.mantissa)
            assert torch.equal(out.nan_to_num(7.0, 8.0, 9.0), exact.to(back).nan_to_num(7.0, 8.0, 9.0)), scale


def test_the_largest_numbers_are_those_of_deepspeed():
    assert [form.range for form in FORMATS] == [480, 114688, 510, 28, 6]


def deepspeed_code(scaled, form):
    """Returns DeepSpeed's code of a value above the smallest normal number, by the rule of its kernel."""
    bits = int(numpy.float32(scaled).view(numpy.uint32))
    mantissa = (bits & 0x7FFFFF) + (1 << (22 - form.mantissa))
    exponent = (bits >> 23 & 0xFF) + (mantissa >> 23)
    mantissa = mantissa >> (23 - form.mantissa) & ((1 << form.mantissa) - 1)
    return bits >> 31 << (form.bits - 1) | (exponent - 127 + form.bias) << form.mantissa | mantissa


@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_normal_numbers_have_deepspeeds_codes(op, form):
    tensor = values(1, 512, torch.bfloat16)
    _, inverse = scale_of(tensor.float().numpy(), form)
    codes = unpacked_codes(quantized(op, tensor, 512, form)[:, :-4].numpy(), form.bits)[0]
    scaled = (tensor.float().numpy() * inverse)[0]
    normal = [i for i in range(512) if abs(scaled[i]) >= 2.0 ** (1 - form.bias)]
    assert len(normal) > 50
    assert [int(codes[i]) for i in normal] == [deepspeed_code(scaled[i], form) for i in normal]


@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_zeros_stay_zeros(each_op, form):
    for dtype in DTYPES:
        assert not bool(quantized(each_op, torch.zeros(2, 16, dtype=dtype), 16, form).any())
        out = torch.empty(2, 16)
        each_op.fp_dequantize_(out, quantized(each_op, values(2, 16, dtype), 16, form), 16, form.bits, form.mantissa)
        assert bool((out[:, [1, 10]] == 0).all())


@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_a_group_with_nan_or_inf_comes_back_as_nan_and_others_are_unchanged(each_op, form):
    for dtype, bad, stochastic in itertools.product(DTYPES, ("nan", "inf", "-inf"), (False, True)):
        tensor = values(3, 16, dtype)
        expected = quantized(each_op, tensor, 16, form, stochastic=stochastic)
        tensor[1, 5] = float(bad)
        rows = quantized(each_op, tensor, 16, form, stochastic=stochastic)
        assert rows[1].tolist() == [0] * (16 * form.bits // 8) + [0, 0, 0xC0, 0x7F]
        assert torch.equal(rows[[0, 2]], expected[[0, 2]])
        out = torch.empty(3, 16, dtype=dtype)
        each_op.fp_dequantize_(out, rows, 16, form.bits, form.mantissa)
        assert bool(out[1].isnan().all()) and bool(out[[0, 2]].isfinite().all())


@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_the_largest_and_the_smallest_floats(each_op, form):
    large = torch.tensor([[torch.finfo(torch.float32).max, -torch.finfo(torch.float32).max, 1e38, 0.0]])
    out = torch.empty_like(large)
    each_op.fp_dequantize_(out, quantized(each_op, large, 4, form), 4, form.bits, form.mantissa)
    torch.testing.assert_close(out, large, rtol=2.0 ** -(form.mantissa + 1), atol=0)
    for tiny in (1e-45, 1e-40, 1.2e-38, 1e-34):
        small = torch.tensor([[tiny, -tiny, tiny / 2, 0.0]])
        each_op.fp_dequantize_(out, quantized(each_op, small, 4, form), 4, form.bits, form.mantissa)
        # The scale is a normal number, so the error is at most half the smallest step of such a scale.
        error = max(tiny * 2.0 ** -(form.mantissa + 1), 2.0**-126 * 2.0 ** (-form.bias - form.mantissa))
        assert float((out - small).abs().max()) <= error * 1.001


@pytest.mark.parametrize("form", FORMATS, ids=str)
@pytest.mark.parametrize("size", [12, 516])
def test_stochastic_rounding_is_unbiased_and_repeats(each_op, form, size):
    """Each mean of 4000 draws is within six of its standard deviations of the value."""
    row = values(1, size, torch.float32)
    tensor = row.repeat(4000, 1)
    rows = quantized(each_op, tensor, size, form, stochastic=True, seed=7, offset=1)
    assert torch.equal(rows, quantized(each_op, tensor, size, form, stochastic=True, seed=7, offset=1))
    assert not torch.equal(rows, quantized(each_op, tensor, size, form, stochastic=True, seed=8, offset=1))
    assert not torch.equal(rows, quantized(each_op, tensor, size, form, stochastic=True, seed=7, offset=2))
    _, inverse = scale_of(row.numpy(), form)
    scaled = (row.numpy() * inverse).astype(numpy.float64)[0]
    draws = number(unpacked_codes(rows[:, :-4].numpy(), form.bits), form)
    step = numpy.exp2(numpy.maximum(numpy.floor(numpy.log2(numpy.abs(scaled) + 1e-30)), 1 - form.bias) - form.mantissa)
    assert bool((numpy.abs(draws - scaled) < step * 1.001).all())
    low = numpy.floor(scaled / step)
    chance = scaled / step - low
    deviation = numpy.sqrt(chance * (1 - chance) / 4000)
    assert bool((numpy.abs(draws.mean(0) / step - low - chance) <= 6 * deviation + 2.0**-14).all())


@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_random_numbers_are_the_same_at_every_level(op, each_op, form):
    for dtype, size in itertools.product(DTYPES, (12, 516, 1024)):
        tensor = values(7, size, dtype)
        options = {"stochastic": True, "seed": 11, "offset": 2**33 + 5}
        assert torch.equal(
            quantized(op, tensor, size, form, **options), quantized(each_op, tensor, size, form, **options)
        )


def test_results_do_not_depend_on_the_number_of_threads(op):
    tensor, threads = values(300, 508, torch.float32), torch.get_num_threads()
    try:
        results = []
        for count, stochastic in itertools.product((1, 3), (False, True)):
            torch.set_num_threads(count)
            results.append(quantized(op, tensor, 508, FORMATS[0], stochastic=stochastic))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(results[0], results[2]) and torch.equal(results[1], results[3])
