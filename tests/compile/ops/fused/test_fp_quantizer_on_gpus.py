"""The floating-point quantizer of GPUs: its source, run on the host, writes the bits of the host's op."""

import itertools
import shutil
from functools import partial

import pytest
import torch
from support.gpu import gpu_on_host
from support.quantizing.fp_codes import FORMATS

from opforge.builders.cpu.fp_quantizer import FPQuantizerBuilder
from opforge.builders.cuda.fp_quantizer import FPQuantizerBuilder as CudaFPQuantizerBuilder
from opforge.ops.cases.traffic import quantized

pytestmark = [pytest.mark.compile, pytest.mark.usefixtures("builds_are_shared")]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
STOCHASTIC = {"stochastic": True, "seed": 11, "offset": 2**33 + 5}
POISON = 0xA5
CLANG = shutil.which("clang++")
MOST = 1.05
"""The most bytes that a kernel may move, as a share of the least possible."""


@pytest.fixture(scope="module")
def host():
    return FPQuantizerBuilder().load()


@pytest.fixture(scope="module")
def gpu_builder(tmp_path_factory):
    """The GPU's source for the host; with clang it counts what the kernels read and write."""
    builder = gpu_on_host.on_host(CudaFPQuantizerBuilder, tmp_path_factory.mktemp("fp_quantizer"))
    with pytest.MonkeyPatch.context() as patch:
        if CLANG:
            patch.setenv("CXX", CLANG)
            gpu_on_host.count_accesses(builder)
        yield builder()


@pytest.fixture(scope="module")
def gpu(gpu_builder):
    return gpu_builder.load()


def values(count, dtype):
    """Returns values of many magnitudes, with negative zeros among them."""
    random = torch.Generator().manual_seed(0)
    tensor = torch.randn(count, generator=random) * 2.0 ** torch.randint(-14, 3, (count,), generator=random)
    tensor[::9] = -0.0
    return tensor.to(dtype)


def assert_same_bits(host, gpu, form, tensor, size, start=0, **options):
    """Asserts that both ops write the same, and nothing past it. From `start` 1 on no address is aligned."""
    groups, row = tensor.numel() // size, size * form.bits // 8 + 4
    results = []
    for op in (host, gpu):
        rows = torch.full((groups * row + 9,), POISON, dtype=torch.uint8)
        op.fp_quantize_(rows[start : start + groups * row], tensor, size, form.bits, form.mantissa, **options)
        out = torch.full((groups * size + 9,), 7.0, dtype=tensor.dtype)
        op.fp_dequantize_(
            out[start : start + groups * size], rows[start : start + groups * row], size, form.bits, form.mantissa
        )
        results.append((rows, out.nan_to_num(77.0)))
    assert torch.equal(results[0][0], results[1][0]) and torch.equal(results[0][1], results[1][1])
    assert bool((results[1][0][start + groups * row :] == POISON).all()) and bool((results[1][1][:start] == 7).all())


@pytest.mark.parametrize("form", FORMATS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_and_values_are_those_of_the_hosts_op(host, gpu, form, dtype):
    for (groups, size), options in itertools.product(
        [(1, 4), (7, 12), (3, 36), (3, 64), (2, 260), (3, 512), (1, 1028)], ({}, STOCHASTIC)
    ):
        memory = values(groups * size + 1, dtype)
        if groups > 2:
            memory[:size], memory[2 * size] = -0.0, float("nan")
        for start in (0, 1):
            assert_same_bits(host, gpu, form, memory[start : start + groups * size], size, start, **options)


@pytest.mark.skipif(not CLANG, reason="needs clang++, which calls a function at each access: apt install clang")
@pytest.mark.parametrize("form", FORMATS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_each_byte_is_moved_once(gpu_builder, gpu, form, dtype):
    counted = gpu_on_host.AccessCounter(gpu_builder.build().library)
    tensor = values(64 * 512, dtype)
    rows = torch.empty(64, 512 * form.bits // 8 + 4, dtype=torch.uint8)
    least = quantized(tensor.numel(), tensor.itemsize, form.bits, 512)
    for call in (gpu.fp_quantize_, gpu.fp_dequantize_):
        out, source = (rows, tensor) if call is gpu.fp_quantize_ else (torch.empty_like(tensor), rows)
        arguments = (out, source, 512, form.bits, form.mantissa)
        moved = counted.bytes_of(partial(call, *arguments), out, source)
        assert least <= moved <= MOST * least


def test_a_group_may_be_larger_than_a_cluster_of_blocks(host, gpu):
    """Eight blocks hold 65,536 values of 32 bits; the rest is read again."""
    assert_same_bits(host, gpu, FORMATS[0], values(70_000, torch.float32), 70_000)


@pytest.mark.parametrize("form", FORMATS, ids=str)
@pytest.mark.parametrize("size", [12, 32])
def test_selected_blocks_are_those_of_the_hosts_op(host, gpu, form, size):
    rows = torch.empty(6, size * form.bits // 8 + 4, dtype=torch.uint8)
    host.fp_quantize_(rows, values(6 * size, torch.bfloat16), size, form.bits, form.mantissa)
    for dtype, indexes in itertools.product((torch.int32, torch.int64), ([2, 0, 2, 1], [1])):
        outs = [torch.empty(len(indexes), 2, size, dtype=torch.bfloat16) for _ in range(2)]
        for op, out in zip((host, gpu), outs, strict=True):
            op.fp_selective_dequantize_(out, rows, torch.tensor(indexes, dtype=dtype), size, form.bits, form.mantissa)
        assert torch.equal(*outs)


def test_deepspeeds_functions_are_bound(host, gpu):
    tensor = values(64, torch.bfloat16).view(2, 1, 32)
    rows = gpu.quantize(torch.empty(2, 36, dtype=torch.uint8), tensor, 32, 0, 8, 3)
    out, part = torch.empty_like(tensor), torch.empty(1, 1, 32, dtype=torch.bfloat16)
    gpu.dequantize(out, rows, 32, 3, 4)
    gpu.selective_dequantize(part, rows, torch.tensor([1], dtype=torch.int32), 32, 3, 4)
    assert torch.equal(part[0], out[1]) and torch.equal(gpu.get_scales(rows, 2), host.get_scales(rows, 2))
