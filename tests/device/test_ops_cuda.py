"""The fused ops on a GPU: the results of the CPU's kernels, graphs, streams, devices, more than 2^31 elements."""

from __future__ import annotations

import importlib
import os

import pytest

torch = pytest.importorskip("torch")

from opforge.builders import cpu, cuda  # noqa: E402
from opforge.builders.toolchains import nvcc  # noqa: E402
from opforge.errors import ToolchainNotFoundError  # noqa: E402

ADAM = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.1, "step": 3}
ADAM = {**ADAM, "adamw_mode": True, "bias_correction": True}
LAMB = {**ADAM, "max_coeff": 10.0, "min_coeff": 0.01, "eps_inside_sqrt": False, "scale": 1.0}
LAMB.pop("adamw_mode")
LION = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SIZES = (0, 1, 7, 255, 257, 2047, 2048, 2049, 16_384, 1_000_003)


@pytest.fixture(scope="module", autouse=True)
def needs_a_gpu():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU and a torch built for it: torch.cuda.is_available() is False")
    if not os.environ.get("OPFORGE_CACHE_LAYERS"):
        try:
            nvcc.find()
        except ToolchainNotFoundError as error:
            pytest.skip(f"needs built ops in OPFORGE_CACHE_LAYERS, or nvcc: {error}")


def load(package, name):
    module, _, attribute = package.BUILDERS[name].partition(":")
    builder = getattr(importlib.import_module(module), attribute)
    major, minor = torch.cuda.get_device_capability()
    return builder(target=f"cuda:sm_{major}{minor}" if package is cuda else None).load()


@pytest.fixture(scope="module")
def pairs(needs_a_gpu):
    """Op's name -> (the GPU's op, the CPU's op)."""
    names = ("FusedAdam", "FusedLion", "FusedLamb", "Quantizer", "FPQuantizer")
    return {name: tuple(load(package, f"{name}Builder") for package in (cuda, cpu)) for name in names}


def step(op, name, many, copies=(), noop=0, **more):
    device = many[0][0].device
    flag = torch.full((1,), noop, dtype=torch.int32, device=device)  # torch.tensor would wait for the stream
    lists = [[tensors[i] for tensors in many] for i in range(len(many[0]))]
    if name == "FusedAdam":
        op.fused_adam_(flag, *lists, list(copies), **{**ADAM, **more})
    elif name == "FusedLion":
        op.fused_lion_(flag, *(lists[:3]), list(copies), **{**LION, **more})
    else:
        ratios = torch.ones(len(many), device=device)
        op.fused_lamb_(flag, *lists, list(copies), ratios=ratios, **{**LAMB, **more})


def inputs(name, size, dtypes, seed=0):
    torch.manual_seed(seed)
    values = [torch.randn(size), torch.randn(size), 0.3 * torch.randn(size), 0.1 * torch.rand(size) + 1e-3]
    kinds = (dtypes[0], dtypes[1], dtypes[2], dtypes[2])
    count = 3 if name == "FusedLion" else 4
    return [value.to(kind) for value, kind in zip(values[:count], kinds, strict=False)]


@pytest.mark.parametrize("name", ["FusedAdam", "FusedLion", "FusedLamb"])
@pytest.mark.parametrize("dtypes", [(a, b, c) for a in DTYPES for b in DTYPES for c in DTYPES])
def test_the_gpus_results_agree_with_the_cpus(pairs, name, dtypes):
    here = [inputs(name, size, dtypes, seed=i) for i, size in enumerate(SIZES)]
    if name == "FusedLion":
        for _param, grad, first in here:  # near zero, a direction's sign depends on rounding
            near_zero = (0.9 * first.double() + 0.1 * grad.double()).abs() < 1e-6
            first[near_zero], grad[near_zero] = 1.0, 1.0
    there = [[tensor.cuda() for tensor in tensors] for tensors in here]
    shifted = [
        [torch.empty(t.numel() + 1, dtype=t.dtype, device="cuda")[1:].copy_(t) for t in tensors] for tensors in here
    ]
    step(pairs[name][1], name, here)
    step(pairs[name][0], name, there)
    step(pairs[name][0], name, shifted)
    for tensors, others, third in zip(here, there, shifted, strict=True):
        for tensor, other, unaligned in zip(tensors, others, third, strict=True):
            eps = 2 * torch.finfo(tensor.dtype).eps if name == "FusedLamb" else torch.finfo(tensor.dtype).eps
            torch.testing.assert_close(
                other.cpu(), tensor, rtol=max(eps, 1e-5 if name == "FusedLamb" else 1e-6), atol=1e-6
            )
            torch.testing.assert_close(unaligned.cpu(), other.cpu(), rtol=max(eps, 1e-5), atol=1e-6)


@pytest.mark.parametrize("name", ["FusedAdam", "FusedLion", "FusedLamb"])
def test_a_thousand_tensors_are_updated_with_copies_unless_the_flag_is_set(pairs, name):
    here = [inputs(name, 1 + i % 300, (torch.float32,) * 3, seed=i) for i in range(1000)]
    there = [[tensor.cuda() for tensor in tensors] for tensors in here]
    kept = [tensors[0].clone() for tensors in there]
    copies = [torch.empty_like(tensors[0], dtype=torch.bfloat16) for tensors in there]
    step(pairs[name][0], name, there, copies, noop=1)
    assert all(torch.equal(tensors[0], before) for tensors, before in zip(there, kept, strict=True))
    step(pairs[name][0], name, there, copies)
    step(pairs[name][1], name, here)
    for tensors, others, copy in zip(here, there, copies, strict=True):
        torch.testing.assert_close(others[0].cpu(), tensors[0], rtol=1e-5, atol=1e-6)
        assert torch.equal(copy, others[0].bfloat16())


def test_lambs_norms_repeat_bit_for_bit(pairs):
    results = []
    for _ in range(3):
        there = [[tensor.cuda() for tensor in inputs("FusedLamb", 3_000_001, (torch.float32,) * 3)]]
        step(pairs["FusedLamb"][0], "FusedLamb", there)
        results.append(there[0][0])
    assert all(torch.equal(results[0], other) for other in results[1:])


def test_a_captured_step_follows_changes_of_rate_and_count(pairs):
    op = pairs["FusedAdam"][0]
    there = [[tensor.cuda() for tensor in inputs("FusedAdam", 5000, (torch.float32,) * 3)]]
    here = [[tensor.cpu().clone() for tensor in there[0]]]
    rate, count = torch.tensor(1e-2, device="cuda"), torch.tensor(0.0, device="cuda")
    flag = torch.zeros(1, dtype=torch.int32, device="cuda")
    lists = [[tensor] for tensor in there[0]]

    def run():
        count.add_(1)
        op.fused_adam_(flag, *lists, [], **{**ADAM, "step": 0}, lr_tensor=rate, step_tensor=count)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        saved = [tensor.clone() for tensor in there[0]]
        run()
        for tensor, old in zip(there[0], saved, strict=True):
            tensor.copy_(old)
        count.zero_()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    for number, lr in enumerate((1e-2, 1e-3, 5e-3), start=1):
        rate.fill_(lr)
        graph.replay()
        step(pairs["FusedAdam"][1], "FusedAdam", here, lr=lr, step=number)
    torch.testing.assert_close(there[0][0].cpu(), here[0][0], rtol=1e-5, atol=1e-6)


def test_work_goes_to_the_current_stream(pairs):
    there = [[tensor.cuda() for tensor in inputs("FusedAdam", 100, (torch.float32,) * 3)]]
    kept = there[0][0].clone()
    # A kernel's first launch loads its code, which may wait for all work of the device.
    step(pairs["FusedAdam"][0], "FusedAdam", [[tensor.clone() for tensor in there[0]]])
    assert torch.equal(there[0][0], kept)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(1_000_000_000)
        step(pairs["FusedAdam"][0], "FusedAdam", there)
    assert not stream.query()
    assert torch.equal(there[0][0], kept)  # read on another stream, while the stream still sleeps
    stream.synchronize()
    assert not torch.equal(there[0][0], kept)


def test_tensors_on_another_device_are_updated_and_mixed_devices_rejected(pairs):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA GPUs")
    there = [[tensor.to("cuda:1") for tensor in inputs("FusedAdam", 100, (torch.float32,) * 3)]]
    kept = there[0][0].clone()
    step(pairs["FusedAdam"][0], "FusedAdam", there)
    assert torch.cuda.current_device() == 0 and not torch.equal(there[0][0], kept)
    there[0][1] = there[0][1].to("cuda:0")
    with pytest.raises(RuntimeError, match=r"grads\[0\] is on cuda:0, expected cuda:1, where noop_flag is"):
        step(pairs["FusedAdam"][0], "FusedAdam", there)
    there[0][1] = there[0][1].to("cuda:1")
    with pytest.raises(RuntimeError, match="lr_tensor is on cuda:0, expected cuda:1, where noop_flag is"):
        step(pairs["FusedAdam"][0], "FusedAdam", there, lr_tensor=torch.tensor(0.1, device="cuda:0"))
    op = pairs["Quantizer"][0]
    codes, params = op.quantize(torch.ones(4, 16, device="cuda:0"), 4, 8, op.Symmetric)
    with pytest.raises(RuntimeError, match="params is on cuda:1, expected cuda:0, where out is"):
        op.dequantize(codes, params.to("cuda:1"), 4, 8, op.Symmetric)


def test_the_error_for_tensors_on_the_cpu_names_them(pairs):
    there = [inputs("FusedAdam", 100, (torch.float32,) * 3)]
    with pytest.raises(RuntimeError, match="noop_flag is on cpu, expected cuda"):
        step(pairs["FusedAdam"][0], "FusedAdam", there)


def test_elements_beyond_two_to_the_31st_are_updated(pairs):
    size = 2**31 + 4097
    if torch.cuda.mem_get_info()[0] < 9 * size:
        pytest.skip(f"needs {9 * size >> 30} GiB of free GPU memory")
    tensors = [torch.ones(size, dtype=torch.bfloat16, device="cuda") for _ in range(3)]
    step(pairs["FusedLion"][0], "FusedLion", [tensors])
    expected = tensors[0][:1].clone()
    assert expected.item() != 1.0
    for begin in (0, 2**31 - 10, size - 4097):
        assert bool((tensors[0][begin : begin + 4097] == expected).all())


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("row", [2, 10, 16, 128, 4098, 40_000, 131_072])
def test_quantization_agrees_with_the_cpus(pairs, bits, symmetric, dtype, row):
    gpu, host = pairs["Quantizer"]
    torch.manual_seed(0)
    values = torch.randn(6, row).to(dtype)
    kind = gpu.Symmetric if symmetric else gpu.Asymmetric
    for options in ({}, {"stochastic": True, "seed": 5, "offset": 9}):
        gpu_result = gpu.quantize(values.cuda(), 6, bits, kind, **options)
        cpu_result = host.quantize(values, 6, bits, kind, **options)
        assert torch.equal(gpu_result[0].cpu(), cpu_result[0]) and torch.equal(gpu_result[1].cpu(), cpu_result[1])
    back = gpu.dequantize_fp32(*gpu_result, 6, bits, kind).cpu()
    assert torch.equal(back, host.dequantize_fp32(*cpu_result, 6, bits, kind))
    if row % 2 == 0:
        gpu_result = gpu.quantized_reduction(gpu_result[0].flatten(), gpu_result[1], 6, 1, bits, kind, 2)
        cpu_result = host.quantized_reduction(cpu_result[0].flatten(), cpu_result[1], 6, 1, bits, kind, 2)
        torch.testing.assert_close(gpu_result[1].cpu(), cpu_result[1], rtol=1e-6, atol=1e-7)
    swizzled = gpu.swizzle_quant(values.cuda(), 6, bits, kind, 1, 3, 2)
    assert torch.equal(swizzled[0].cpu(), host.swizzle_quant(values, 6, bits, kind, 1, 3, 2)[0])


@pytest.mark.parametrize("form", [(12, 7), (8, 3), (8, 2), (6, 2), (4, 1)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("row", [4, 36, 64, 512, 4100, 40_000, 131_072])
def test_floating_point_codes_are_those_of_the_cpu_bit_for_bit(pairs, form, dtype, row):
    gpu, host = pairs["FPQuantizer"]
    torch.manual_seed(0)
    memory = (torch.randn(6 * row + 1) * 2.0 ** torch.randint(-14, 3, (6 * row + 1,))).to(dtype)
    memory[::9], memory[row // 2] = -0.0, float("nan")
    for start, options in ((0, (False,)), (0, (True, 5, 9)), (1, (True, 5, 9))):  # from 1 on, no address is aligned
        values = memory[start : start + 6 * row]
        here = torch.empty(6, row * form[0] // 8 + 4, dtype=torch.uint8)
        there = torch.empty(here.numel() + 1, dtype=torch.uint8, device="cuda")[start : start + here.numel()]
        host.fp_quantize_(here, values, row, *form, *options)
        gpu.fp_quantize_(there, memory.cuda()[start : start + 6 * row], row, *form, *options)
        assert torch.equal(there.view_as(here).cpu(), here)
        out, back = torch.empty(6, row, dtype=dtype), torch.empty(6, row, dtype=dtype, device="cuda")
        host.fp_dequantize_(out, here, row, *form)
        gpu.fp_dequantize_(back, there, row, *form)
        torch.testing.assert_close(back.cpu(), out, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("row", [36, 512])
def test_a_block_whose_index_is_out_of_range_is_nan(pairs, row):
    gpu = pairs["FPQuantizer"][0]
    rows = torch.empty(6, row + 4, dtype=torch.uint8, device="cuda")
    gpu.fp_quantize_(rows, torch.ones(6, row, device="cuda"), row)
    out = torch.empty(4, 2, row, device="cuda")
    gpu.fp_selective_dequantize_(out, rows, torch.tensor([2, 3, -1, 0], device="cuda"), row)
    assert out[1:3].isnan().all() and bool((out[[0, 3]] == 1).all())
