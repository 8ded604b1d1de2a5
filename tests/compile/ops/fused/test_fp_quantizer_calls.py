"""The floating-point quantizer's functions: DeepSpeed's, `FPQuantizer`, and the text of their errors."""

import numpy
import pytest
import torch
from support.quantizing.fp_codes import FORMATS, scale_of

from opforge.builders.cpu.fp_quantizer import FPQuantizerBuilder
from opforge.ops import FPQuantizer

pytestmark = [pytest.mark.compile, pytest.mark.usefixtures("builds_are_shared")]


@pytest.fixture(scope="module")
def op():
    return FPQuantizerBuilder().load()


def values(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def test_a_seed_or_a_generator_decides_the_random_numbers():
    tensor, quantizer = values(2, 64), FPQuantizer(64, 4)
    first, second = (quantizer.quantize(tensor, stochastic=True, seed=seed) for seed in (3, 3))
    assert torch.equal(first, second)
    largest = quantizer.quantize(tensor, stochastic=True, seed=2**64 - 1)  # as torch.initial_seed() may return it
    assert torch.equal(largest, quantizer.quantize(tensor, stochastic=True, seed=-1))
    draws = [quantizer.quantize(tensor, stochastic=True, generator=torch.Generator().manual_seed(s)) for s in (1, 1, 2)]
    assert torch.equal(draws[0], draws[1]) and not torch.equal(draws[0], draws[2])
    torch.manual_seed(5)
    before = quantizer.quantize(tensor, stochastic=True)
    assert not torch.equal(before, quantizer.quantize(tensor, stochastic=True))
    torch.manual_seed(5)
    assert torch.equal(before, quantizer.quantize(tensor, stochastic=True))


@pytest.mark.parametrize("form", FORMATS, ids=str)
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_selected_blocks_are_those_of_the_whole_tensor(op, form, index_dtype):
    tensor = values(6, 3, 24, dtype=torch.bfloat16)
    quantizer = FPQuantizer(24, form.bits, form.mantissa)
    rows = quantizer.quantize(tensor)
    whole = quantizer.dequantize(rows, tensor.shape, torch.bfloat16)
    for indexes in ([5, 0, 5, 2], [3], []):
        selected = torch.tensor(indexes, dtype=index_dtype)
        out = quantizer.selective_dequantize(rows, selected, tensor.shape, torch.bfloat16)
        assert torch.equal(out, whole[indexes])


def test_deepspeeds_functions_take_its_arguments(op):
    """DeepSpeed passes a mantissa of 4 and an exponent of 7 bits for 12 bits; its codes have 7 and 4."""
    tensor = values(4, 1, 32, dtype=torch.bfloat16)
    for form, (mantissa, exponent) in zip(FORMATS, [(3, 4), (2, 5), (4, 7), (2, 3), (1, 2)], strict=True):
        rows = torch.ones(4, 32 * form.bits // 8 + 4, dtype=torch.uint8)
        assert op.quantize(rows, tensor, 32, 0, form.bits, mantissa) is rows
        assert torch.equal(rows, FPQuantizer(32, form.bits, form.mantissa).quantize(tensor))
        out, selected = torch.empty_like(tensor), torch.empty(2, 1, 32, dtype=torch.bfloat16)
        op.dequantize(out, rows, 32, mantissa, exponent)
        assert torch.equal(out, FPQuantizer(32, form.bits, form.mantissa).dequantize(rows, tensor.shape, out.dtype))
        op.selective_dequantize(selected, rows, torch.tensor([3, 1], dtype=torch.int32), 32, mantissa, exponent)
        assert torch.equal(selected, out[[3, 1]])
        scale, _ = scale_of(tensor.float().view(4, 32).numpy(), form)
        for given_rows in (rows, rows[:, -4:].contiguous()):
            assert numpy.array_equal(op.get_scales(given_rows, 4).numpy(), scale)


def test_scales_are_a_view_where_they_are_aligned():
    aligned, odd = FPQuantizer(8), FPQuantizer(6)
    rows = aligned.quantize(values(2, 8))
    aligned.get_scales(rows).mul_(2)
    assert aligned.get_scales(rows).data_ptr() == rows.data_ptr() + 8
    rows = odd.quantize(values(2, 6))
    assert torch.equal(odd.get_scales(rows), rows[:, 6:].contiguous().view(torch.float32))


@pytest.mark.parametrize("groups", [1, 2])
def test_scales_of_any_size_of_group(groups):
    quantizer = FPQuantizer(group_size=33)
    values = torch.full((groups, 33), 480.0)
    assert torch.equal(quantizer.get_scales(quantizer.quantize(values)), torch.ones(groups, 1))


def test_strided_and_empty_tensors():
    quantizer, tensor = FPQuantizer(8), values(8, 16)
    assert torch.equal(quantizer.quantize(tensor.t()), quantizer.quantize(tensor.t().contiguous()))
    rows = quantizer.quantize(torch.empty(0, 8))
    assert rows.shape == (0, 12) and quantizer.dequantize(rows).shape == (0, 8)
    assert quantizer.get_scales(rows).shape == (0, 1)


ROWS = torch.zeros(2, 12, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda q: q(8, 5).quantize(torch.ones(16)), "q_bits is 5, expected 12, 8, 6 or 4"),
        (lambda q: q(8, 8, 4).quantize(torch.ones(16)), "q_mantissa_bits is 4, expected 3 or 2 for 8 bits"),
        (
            lambda q: q(7).quantize(torch.ones(16)),
            "group_size is 7, expected a number that divides the 16 elements: pad the tensor, or use another size",
        ),
        (
            lambda q: q(0).quantize(torch.ones(16)),
            "group_size is 0, expected a number that divides the 16 elements: pad the tensor, or use another size",
        ),
        (
            lambda q: q(2, 6).quantize(torch.ones(16)),
            "group_size is 2, expected a multiple of 4: the codes of a group, of 6 bits each, are whole bytes",
        ),
        (
            lambda q: q(3, 12).quantize(torch.ones(9)),
            "group_size is 3, expected a multiple of 2: the codes of a group, of 12 bits each, are whole bytes",
        ),
        (
            lambda q: q(8).quantize(torch.ones(16).double()),
            "input is float64, expected float32, bfloat16 or float16: convert it with .to(torch.float32)",
        ),
        (
            lambda q: q(8).dequantize(ROWS[:, :-1], (2, 8)),
            "rows has 22 elements, expected 24: rows of 12 bytes, the codes of a group of 8 and its scale",
        ),
        (lambda q: q(8).dequantize(ROWS.float(), (2, 8)), "rows is float32, expected int8 or uint8"),
        (
            lambda q: q(8).selective_dequantize(ROWS, torch.tensor([0, 2]), (2, 8)),
            "indexes[1] is 2, expected a number from 0 to less than 2, the blocks in rows",
        ),
        (
            lambda q: q(8).selective_dequantize(ROWS, torch.tensor([-1]), (2, 8)),
            "indexes[0] is -1, expected a number from 0 to less than 2, the blocks in rows",
        ),
        (
            lambda q: q(8).selective_dequantize(ROWS, torch.tensor([1.0]), (2, 8)),
            "indexes is float32, expected int32 or int64",
        ),
        (
            lambda q: q(8).selective_dequantize(ROWS, torch.tensor([0, 1]), (2, 4)),
            "out has 1 groups of 8, expected a multiple of the 2 indexes: a block has whole groups",
        ),
        (
            lambda q: q(8).selective_dequantize(ROWS, torch.tensor([0]), (2, 24)),
            "rows has 24 elements, expected a multiple of 36: blocks of 3 rows of 12 bytes, the codes of a group "
            "of 8 and its scale",
        ),
    ],
)
def test_wrong_arguments_are_rejected(call, message):
    def changed(group_size, q_bits=8, q_mantissa_bits=3):
        quantizer = FPQuantizer()  # its constructor would refuse them too
        quantizer.group_size, quantizer.q_bits, quantizer.q_mantissa_bits = group_size, q_bits, q_mantissa_bits
        return quantizer

    with pytest.raises(RuntimeError) as caught:
        call(changed)
    assert str(caught.value) == message


def test_opcheck_and_torch_compile_accept_the_ops(op):
    quantizer, tensor = FPQuantizer(16, 6), values(4, 64)
    rows, indexes = quantizer.quantize(tensor), torch.tensor([2, 0])
    utils = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    for function, arguments in (
        (op.fp_quantize_, (rows.clone(), tensor, 16, 6)),
        (op.fp_dequantize_, (torch.empty(4, 64), rows, 16, 6)),
        (op.fp_selective_dequantize_, (torch.empty(2, 64), rows, indexes, 16, 6)),
    ):
        torch.library.opcheck(function, arguments, test_utils=utils)

    def there_and_back(x):
        rows = quantizer.quantize(x * 2)
        return quantizer.dequantize(rows, x.shape) + quantizer.selective_dequantize(rows, indexes, x.shape).sum()

    compiled = torch.compile(there_and_back, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(tensor), there_and_back(tensor))
