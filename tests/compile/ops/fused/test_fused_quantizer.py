"""The group quantizer beyond its contract: the GPU's own source run on the host, random numbers, sums, errors."""

import pytest
import torch
from support import cases
from support.gpu import gpu_on_host

from opforge.builders.cpu.quantizer import QuantizerBuilder
from opforge.builders.cuda.quantizer import QuantizerBuilder as CudaQuantizerBuilder
from opforge.ops import reference

pytestmark = [pytest.mark.compile, pytest.mark.usefixtures("builds_are_shared")]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
FORMATS = [(bits, symmetric) for bits in (8, 4) for symmetric in (True, False)]


@pytest.fixture(scope="module", params=["host", "gpu"])
def op(request, tmp_path_factory):
    if request.param == "host":
        return QuantizerBuilder().load()
    return gpu_on_host.on_host(CudaQuantizerBuilder, tmp_path_factory.mktemp("quantizer"))().load()


def kind(op, symmetric):
    return op.Symmetric if symmetric else op.Asymmetric


def unpacked(codes, bits):
    """Returns the codes as integers; of two in a byte, the first is in the upper half."""
    if bits == 8:
        return codes.double()
    pairs = codes.to(torch.int32)
    low = pairs & 0xF
    return torch.stack((pairs >> 4, torch.where(low > 7, low - 16, low)), dim=-1).flatten(-2).double()


def values(shape, dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    return (torch.randn(shape) * 3 + 1).to(dtype)


def test_the_cases_hold_for_the_gpus_source_too(op):
    """The contract tries them with the CPU's kernels alone."""
    cases.check_results(QuantizerBuilder, op)


def test_groups_without_a_value_have_params_of_zero(op, monkeypatch):
    monkeypatch.setattr(torch, "empty", lambda *shape, **options: torch.full(*shape, 77, **options))
    codes, params = op.quantize(torch.zeros(0, 8), 4, 8, op.Asymmetric)
    assert codes.shape == (0, 8) and params.tolist() == [[0.0, 0.0]] * 4


@pytest.mark.parametrize("elements", [40_000, 140_000])
def test_a_group_may_be_as_large_as_a_cluster_of_blocks_and_larger(op, elements):
    """Eight blocks hold 131,072 values of 32 bits; the rest is read again. The extremes are in the first part."""
    tensor = torch.linspace(4, -4, elements).view(1, -1)
    expected, scale, offset = reference.quantize(tensor.double(), 8, False)
    codes, params = op.quantize(tensor, 1, 8, op.Asymmetric)
    torch.testing.assert_close(params.double(), torch.cat([scale, offset], 1), rtol=1e-6, atol=1e-6)
    off = (codes.double() - expected).abs()
    near_half = (((tensor.double() - offset) / scale) % 1 - 0.5).abs() < 1e-4
    assert bool(((off == 0) | ((off == 1) & near_half)).all())


@pytest.mark.parametrize(("bits", "symmetric"), FORMATS)
def test_dequantize_returns_values_in_three_dtypes(op, bits, symmetric):
    groups, elements = 5, 16
    codes, params = op.quantize(values((groups, elements)), groups, bits, kind(op, symmetric))
    offset = 0.0 if symmetric else params[:, 1:].double()
    expected = unpacked(codes, bits).reshape(groups, elements) * params[:, :1].double() + offset
    for call, dtype in (
        (op.dequantize, torch.float16),
        (op.dequantize_fp32, torch.float32),
        (op.dequantize_bf16, torch.bfloat16),
    ):
        out = call(codes, params, groups, bits, kind(op, symmetric))
        assert out.dtype == dtype and out.shape == (groups, elements)
        torch.testing.assert_close(out.double(), expected, rtol=torch.finfo(dtype).eps, atol=2e-6)


@pytest.mark.parametrize(("bits", "symmetric"), FORMATS)
def test_results_do_not_depend_on_alignment(op, bits, symmetric):
    tensor = values((64, 32), torch.bfloat16)
    shifted = torch.empty(64 * 32 + 1, dtype=torch.bfloat16)[1:].view(64, 32).copy_(tensor)
    results = [op.quantize(x, 64, bits, kind(op, symmetric)) for x in (tensor, shifted)]
    assert torch.equal(results[0][0], results[1][0]) and torch.equal(results[0][1], results[1][1])
    codes = torch.empty(results[0][0].numel() + 1, dtype=torch.int8)[1:].view_as(results[0][0]).copy_(results[0][0])
    expected = op.dequantize(*results[0], 64, bits, kind(op, symmetric))
    assert torch.equal(op.dequantize(codes, results[0][1], 64, bits, kind(op, symmetric)), expected)


def test_nothing_is_written_past_the_end(op):
    for groups, elements in ((3, 30), (5, 16), (1, 2)):
        tensor = values((groups, elements))
        for bits in (8, 4):
            size = tensor.numel() * bits // 8
            codes, params = torch.full((size + 32,), 77, dtype=torch.int8), torch.full((groups + 8,), 77.0)
            op.quantize_(codes[:size], params[:groups], tensor, groups, bits, True)
            assert bool((codes[size:] == 77).all()) and bool((params[groups:] == 77).all())
            out = torch.full((tensor.numel() + 32,), 77.0)
            op.dequantize_(out[: tensor.numel()], codes[:size], params[:groups], groups, bits, True)
            assert bool((out[tensor.numel() :] == 77).all()) and not bool((out[: tensor.numel()] == 77).any())


@pytest.mark.parametrize(("bits", "symmetric"), FORMATS)
@pytest.mark.parametrize("elements", [10, 64])
def test_stochastic_rounding_is_unbiased_and_repeats(op, bits, symmetric, elements):
    row = values((1, elements))
    tensor = row.repeat(2000, 1)
    arguments = (2000, bits, kind(op, symmetric))
    codes, _ = op.quantize(tensor, *arguments, stochastic=True, seed=7, offset=1)
    again, _ = op.quantize(tensor, *arguments, stochastic=True, seed=7, offset=1)
    other, _ = op.quantize(tensor, *arguments, stochastic=True, seed=7, offset=2)
    third, _ = op.quantize(tensor, *arguments, stochastic=True, seed=8, offset=1)
    assert torch.equal(codes, again) and not torch.equal(codes, other) and not torch.equal(codes, third)
    scale, offset = reference.group_params(row.double(), bits, symmetric)
    quotient = ((row.double() - offset) / scale).clamp(-(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - 1)
    draws = unpacked(codes, bits).reshape(2000, elements)
    assert bool(((draws - quotient).abs() < 1 + 1e-4).all())
    # The mean of 2000 draws is within five of its standard deviations, which are at most 0.5 / sqrt(2000).
    assert bool(((draws.mean(0) - quotient[0]).abs() < 5 * 0.5 / 2000**0.5).all())


def test_the_random_numbers_are_those_of_philox(op):
    """The known result of Philox4x32-7 for a counter and a key of zeros: each word is two numbers of 16 bits."""
    words = (0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48)
    numbers = [word >> shift & 0xFFFF for word in words for shift in (0, 16)]
    tensor = torch.tensor([[0.5] * 8 + [128.0] + [0.0] * 7])
    for dtype in DTYPES:
        codes, _ = op.quantize(tensor.to(dtype), 1, 8, op.Symmetric, stochastic=True)
        assert codes[0, :8].tolist() == [int(0.5 + number * 2.0**-16) for number in numbers]


def test_groups_that_are_constant_infinite_nan_tiny_or_large(op):
    def back(group, bits=8, symmetric=True):
        codes, params = op.quantize(group, 1, bits, kind(op, symmetric))
        return op.dequantize_fp32(codes, params, 1, bits, kind(op, symmetric)), params

    for bits, symmetric in FORMATS:
        for constant in (0.0, -2.5):
            out, _ = back(torch.full((1, 16), constant), bits, symmetric)
            expected = torch.full((1, 16), constant)
            torch.testing.assert_close(out, expected, rtol=1.001 / 2 ** (bits - 1) if symmetric else 0, atol=0)
        for bad in (float("inf"), float("-inf"), float("nan")):
            group = values((1, 16))
            group[0, 5] = bad
            out, params = back(group, bits, symmetric)
            assert (
                params.view(torch.int32)[0].tolist() == [0x7FC00000 if bad != bad else 0x7F800000, 0][: params.shape[1]]
            )
            assert not bool(out.isfinite().any())
        tiny, _ = back(torch.full((1, 16), 1e-40), bits, symmetric)
        assert bool((tiny.abs() < 1e-36).all())
        large = torch.tensor([[3e38, -3e38] * 8])
        out, _ = back(large, bits, symmetric)
        torch.testing.assert_close(out, large, rtol=1.001 / 2 ** (bits - 1), atol=0)


@pytest.mark.parametrize(("bits", "symmetric"), FORMATS)
@pytest.mark.parametrize(("pipeline", "nodes", "devices"), [(1, 2, 4), (2, 2, 4), (3, 1, 2), (1, 3, 1), (2, 3, 2)])
def test_swizzled_groups_are_in_the_order_of_sending(op, bits, symmetric, pipeline, nodes, devices):
    groups = 2 * pipeline * nodes * devices
    tensor = values((groups, 24), torch.float16)
    codes, params = op.quantize(tensor, groups, bits, kind(op, symmetric))
    moved, moved_params = op.swizzle_quant(tensor, groups, bits, kind(op, symmetric), pipeline, nodes, devices)
    assert moved.dim() == 1
    for sent, rows in ((moved.view(groups, -1), codes), (moved_params, params)):
        partitions = rows.reshape(nodes, devices, pipeline, -1, *rows.shape[1:])
        assert torch.equal(sent, partitions.movedim(2, 0).transpose(1, 2).reshape(rows.shape))


def test_the_swizzle_of_two_nodes_of_four_devices(op):
    tensor = torch.arange(1, 9, dtype=torch.float32).reshape(8, 1).repeat(1, 8)
    _, params = op.swizzle_quant(tensor, 8, 8, op.Symmetric, 1, 2, 4)
    assert (params.flatten() * 128 - 1).int().tolist() == [0, 4, 1, 5, 2, 6, 3, 7]


@pytest.mark.parametrize(("bits", "symmetric"), FORMATS)
@pytest.mark.parametrize(
    ("ways", "in_groups", "out_groups", "elements"),
    [(2, 4, 4, 64), (4, 8, 2, 128), (3, 2, 4, 40), (2, 3, 1, 60_000), (1, 1, 1, 2), (3, 35, 2, 140), (8, 6, 5, 1980)],
)
def test_a_reduction_sums_and_quantizes_again(op, bits, symmetric, ways, in_groups, out_groups, elements):
    """`in_groups` and `elements` count those of one tensor."""
    tensor = values((ways, in_groups, elements // in_groups))
    codes, params = op.quantize(tensor.view(ways, -1), ways * in_groups, bits, kind(op, symmetric))
    parts = op.dequantize_fp32(codes, params, ways * in_groups, bits, kind(op, symmetric)).double()
    total = parts.view(ways, -1).sum(0).view(out_groups, -1)
    expected, scale, offset = reference.quantize(total, bits, symmetric)
    out, out_params = op.quantized_reduction(
        codes.flatten(), params, ways * in_groups, out_groups, bits, kind(op, symmetric), ways
    )
    assert out.shape == (codes.numel() // ways,)
    torch.testing.assert_close(out_params[:, :1].double(), scale, rtol=1e-5, atol=1e-7)
    off = (unpacked(out, bits).view_as(expected) - expected).abs()
    near_half = ((((total - offset) / scale) % 1) - 0.5).abs() < 1e-3
    assert bool(((off == 0) | ((off == 1) & near_half)).all())
    # The sum is that of the tensors in their order, rounded after each.
    rounded = torch.zeros(elements)
    for part in parts.float().view(ways, -1):
        rounded += part
    same, same_params = op.quantize(rounded.view(out_groups, -1), out_groups, bits, kind(op, symmetric))
    assert torch.equal(out, same.flatten()) and torch.equal(out_params, same_params)


def test_deepspeeds_experimental_functions_read_unsigned_codes(op):
    codes = torch.tensor([[0x1F, 0x80]], dtype=torch.uint8)
    scale, minimum = torch.tensor([2.0]).half(), torch.tensor([-1.0]).half()
    out = op.dequantize_int4_to_half_experimental(codes, scale, minimum, 1, 4)
    assert out.dtype == torch.float16 and out.tolist() == [[-0.5, 6.5, 3.0, -1.0]]
    out = op.dequantize_int8_to_half_experimental(codes, scale, minimum, 1, 2)
    assert out.tolist() == [[14.5, 63.0]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda op, x: op.quantize(x, 3, 8, 0), "groups is 3, expected a number that divides the 32 elements"),
        (lambda op, x: op.quantize(x, 0, 8, 0), "groups is 0, expected a number that divides the 32 elements"),
        (lambda op, x: op.quantize(x, -1, 8, 0), "groups is -1, expected a number that divides the 32 elements"),
        (lambda op, x: op.quantize(x, 4, 6, 0), "num_bits is 6, expected 8 or 4"),
        (lambda op, x: op.dequantize(x.to(torch.int8), torch.ones(4), 4, 0, 0), "num_bits is 0, expected 8 or 4"),
        (
            lambda op, x: op.quantized_reduction(x.to(torch.int8), torch.ones(4), 4, 2, 8, 0, 0),
            "devices_per_node is 0, expected a number that divides in_groups, 4, and the 32 elements",
        ),
        (
            lambda op, x: op.quantize(x, 32, 4, 0),
            "a group has 1 elements, expected an even number: two 4-bit codes share a byte",
        ),
        (
            lambda op, x: op.quantize(x.double(), 4, 8, 0),
            "input_vals is float64, expected float32, bfloat16 or float16: convert it with .to(torch.float32)",
        ),
        (
            lambda op, x: op.swizzle_quant(x, 4, 8, 0, 1, 3, 1),
            "groups is 4, expected a multiple of pipeline_size 1 * nodes 3 * devices_per_node 1",
        ),
        (
            lambda op, x: op.swizzle_quant(x, 4, 8, 0, 1 << 32, 1 << 32, 1),
            "groups is 4, expected a multiple of pipeline_size 4294967296 * nodes 4294967296 * devices_per_node 1",
        ),
        (
            lambda op, x: op.dequantize(x.to(torch.int8), torch.ones(3), 4, 8, 0),
            "params has 3 elements, expected 4: a scale for each group, with an offset where it is asymmetric",
        ),
        (
            lambda op, x: op.quantize_(torch.empty(31, dtype=torch.int8), torch.empty(4), x, 4, 8, True),
            "out has 31 elements, expected 32: one byte for each code of 8 bits, or for two of 4 bits",
        ),
        (
            lambda op, x: op.quantize_(torch.empty(32), torch.empty(4), x, 4, 8, True),
            "out is float32, expected int8 or uint8",
        ),
        (
            lambda op, x: op.quantized_reduction(x.to(torch.int8), torch.ones(4), 4, 2, 8, 0, 3),
            "devices_per_node is 3, expected a number that divides in_groups, 4, and the 32 elements",
        ),
    ],
)
def test_wrong_arguments_are_rejected(op, call, message):
    with pytest.raises(RuntimeError) as caught:
        call(op, values((4, 8)))
    assert str(caught.value) == message


def test_an_empty_tensor_has_no_codes(op):
    codes, params = op.quantize(torch.empty(4, 0), 4, 8, op.Symmetric)
    assert codes.shape == (4, 0) and params.shape == (4, 1)


def test_torch_compile_accepts_deepspeeds_functions():
    """The contract has torch check the ops below them."""
    op = QuantizerBuilder().load()
    tensor = values((4, 64))

    def there_and_back(x):
        codes, params = op.quantize(x * 2, 4, 4, op.Symmetric)
        return op.dequantize_fp32(codes, params, 4, 4, op.Symmetric) + 1

    compiled = torch.compile(there_and_back, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(tensor), there_and_back(tensor))
