"""Runs opforge's Triton ops as compiled for sm_90, on the emulated GPU of ptx_device.py, against float64 references.

It is a program of its own (see there). It prints JSON: the error of each check by its name, or "" if the check passed.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from support.ptx import ptx_device, ptx_machine
from support.ptx.programs import run_checks

from opforge.builders.triton import TRITON_BUILDERS
from opforge.ops import triton as ops
from opforge.ops.triton import references
from opforge.ops.triton.optimizers import chunks

BF16, FP32 = torch.bfloat16, torch.float32
TOLERANCE = {FP32: 4e-6, BF16: 1.6e-2}
ROWS = [(9, 77), (2, 1024), (2, 4096), (2, 8192), (2, 16384), (1, 20000), (2, 131088), (0, 16), (4, 1), (3, 0)]
FEWER_ROWS = [(9, 77), (2, 1024), (2, 4096), (1, 20000), (0, 16), (4, 1), (3, 0)]
ONCE = (2, 4096, 0, 0)
"""Rows, columns, gap and offset: a layout whose bytes are counted. Such rows are read once."""
RULE = {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1}
COUNTED = {**RULE, "eps": 1e-6, "step": 3}
NUMBERS: dict[str, dict[str, Any]] = {
    "Adam": COUNTED,
    "Lion": RULE,
    "Lamb": {**COUNTED, "max_coeff": 10.0, "min_coeff": 0.01},
}
MODES = {
    "Adam": {"adamw_mode": True, "bias_correction": True},
    "Lion": {},
    "Lamb": {"scale": 1.0, "eps_inside_sqrt": False, "bias_correction": True},
}
device = ptx_device.present()


def load(name: str, *names: str) -> None:
    """Loads the op of Triton<name>Builder with the kernels whose names contain one of `names`."""
    module, _, attribute = TRITON_BUILDERS[f"Triton{name}Builder"].partition(":")
    ptx_device.load(getattr(importlib.import_module(module), attribute), names)


def close(actual: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype, times: float = 1.0) -> None:
    allowed = TOLERANCE[dtype] * times
    torch.testing.assert_close(actual.double(), expected.double(), rtol=allowed, atol=allowed)


def fresh(*shape: int, gap: int = 0, offset: int = 0, dtype: torch.dtype = BF16) -> torch.Tensor:
    """Returns random values that require a gradient, with gaps between rows, or some elements into a storage."""
    values = torch.randn(*shape[:-1], shape[-1] + gap).to(dtype)[..., : shape[-1]]
    if offset:
        values = torch.empty(values.numel() + offset, dtype=dtype)[offset:].view(shape).copy_(values)
    return values.detach().requires_grad_()


def rows_of(name: str, reference: Any, others: Callable[[int, int], list[torch.Tensor]], *numbers: Any) -> None:
    """Checks a function of rows, forward and backward, for every kind of row; of one kind the bytes it moves too."""
    function = getattr(ops, name)
    layouts = [(*shape, 0, 0) for shape in ROWS] + [(5, 1024, 16, 0), (5, 1024, 3, 0), (5, 1024, 0, 1)]
    for count, columns, gap, offset in layouts:
        inputs = [fresh(count, columns, gap=gap, offset=offset), *others(count, columns)]
        dy = fresh(count, columns, gap=gap, offset=offset).detach()
        y = function(*inputs, *numbers)
        device.check(launched=y.numel() > 0)
        first = len(device.traffic)
        matrices = [tensor for tensor in inputs if tensor.dim() == 2]
        if (count, columns, gap, offset) == ONCE:
            device.check_traffic(name, *matrices, y)
        gradients = torch.autograd.grad(y, inputs, dy)
        device.check(launched=y.numel() > 0)
        if (count, columns, gap, offset) == ONCE:
            results = gradients[: len(matrices)]
            device.check_traffic(f"{name} backward", *matrices, y, dy, *results, since=first)
        again = torch.autograd.grad(function(*inputs, *numbers), inputs, dy)
        assert all(map(torch.equal, gradients, again)), "not the same bits"
        if y.numel():
            doubles = [tensor.detach().double().requires_grad_() for tensor in inputs]
            expected = reference(*doubles, *numbers)
            close(y, expected, BF16, 4)
            for gradient, exact in zip(gradients, torch.autograd.grad(expected, doubles, dy.double()), strict=True):
                close(gradient, exact, BF16, 40)


def column(_count: int, columns: int) -> torch.Tensor:
    return fresh(columns)


def check_softmax() -> None:
    load("Softmax", "bf16")
    rows_of("softmax", references.softmax, lambda *shape: [])


def check_layer_norm() -> None:
    load("LayerNorm", "bf16_bf16")
    rows_of("layer_norm", references.layer_norm, lambda *shape: [column(*shape), column(*shape)], 1e-3)


def check_rms_norm() -> None:
    load("RMSNorm", "bf16_bf16")
    rows_of("rms_norm", references.rms_norm, lambda *shape: [column(*shape)], 1e-3)


def check_gelu() -> None:
    load("Gelu", "bf16")
    for form in ("none", "tanh"):
        rows_of("gelu", references.gelu, lambda *shape: [], form)


def check_swiglu() -> None:
    load("Swiglu", "bf16")
    rows_of("swiglu", references.swiglu, lambda *shape: [fresh(*shape)])


def check_quantizer() -> None:
    load(
        "Quantizer",
        "symmetric_8_bf16",
        "asymmetric_4_bf16",
        "extremes_bf16",
        "e_symmetric_8_fp32_a",
        "e_asymmetric_4_fp32_a",
    )
    for bits, symmetric in ((8, True), (4, False)):
        for size, count, offset in GROUPS:
            x = fresh(size * count, offset=offset).detach()
            x[size : 2 * size] = 0
            codes, scales, offsets = ops.quantize(x, size, bits, symmetric)
            back = ops.dequantize(codes, scales, offsets, bits, BF16)
            exact = ops.dequantize(codes, scales, offsets, bits)
            device.check()
            expected, exact_scales, exact_offsets = references.quantize(x.double(), size, bits, symmetric)
            pairs = codes.view(torch.uint8).int()
            unpacked = torch.stack([pairs & 15, pairs >> 4], 1) if bits == 4 else codes.int()
            unpacked = unpacked.view(-1, size)
            # Halfway between two codes, float32 may round to the other side than float64.
            difference = (unpacked - expected).abs()
            assert difference.max() <= 1 and (difference > 0).sum() <= max(2, unpacked.numel() // 200)
            close(scales, exact_scales, FP32)
            close(offsets, exact_offsets, FP32)
            values = references.dequantize(unpacked.double(), exact_scales, exact_offsets)
            close(back.view(-1, size), values, BF16)
            close(exact.view(-1, size), values, FP32)


def check_quantizer_of_special_values() -> None:
    """Checks groups with NaN and the like: a GPU's own max drops NaN, which Triton's interpreter does not show."""
    kernels = ("quantize_{}_bf16_128", "quantize_long_{}_bf16_aligned", "encode_{}_bf16_aligned")
    names = [kernel.format(form) for form in ("symmetric_8", "asymmetric_4") for kernel in kernels]
    load("Quantizer", "extremes_bf16_aligned", *names)
    special = [float("nan"), float("inf"), float("-inf"), -0.0, 1e-39]
    for bits, symmetric in ((8, True), (4, False)):
        for size in (128, 20000):
            x = fresh(size * (len(special) + 1)).detach()
            for group, value in enumerate(special):
                x[group * size + size // 3] = value
            _codes, scales, offsets = ops.quantize(x, size, bits, symmetric)
            device.check()
            expected = references.quantize(x.float(), size, bits, symmetric)
            torch.testing.assert_close(scales, expected[1], equal_nan=True)
            torch.testing.assert_close(offsets, expected[2], equal_nan=True)
            assert scales[0].isnan() and scales[3:].isfinite().all()


SPECIAL = [float("nan"), float("inf"), float("-inf"), -0.0, 1e-39, 3e38]
"""The last two are a denormal, and a number whose square overflows."""
ALLOWED = 3e-2


def special_rows(name: str, reference: Any, columns: int, others: int, *numbers: Any) -> None:
    """Checks a function and its gradients of rows with a special value each, beside float32: equal, or both NaN.

    Where float32 overflows in between, ours may have the limit instead of NaN. No row changes another.
    """
    rows = len(SPECIAL) + 1
    inputs = [fresh(rows, columns), *(fresh(columns) for _ in range(others))]
    if name == "swiglu":
        inputs[1:] = [fresh(rows, columns)]
    with torch.no_grad():
        inputs[0][: rows - 1, columns // 3] = torch.tensor(SPECIAL).to(BF16)
    y, dy = getattr(ops, name)(*inputs, *numbers), fresh(rows, columns).detach()
    device.check()
    doubles = [tensor.detach().float().requires_grad_() for tensor in inputs]
    expected = reference(*doubles, *numbers)
    gradients = torch.autograd.grad(y, inputs, dy)
    device.check()
    exact = torch.autograd.grad(expected, doubles, dy.float())
    for result, limit in zip((y, *gradients), (expected, *exact), strict=True):
        limit = limit.to(BF16)
        agrees = torch.isclose(result, limit, rtol=ALLOWED, atol=ALLOWED, equal_nan=True)
        if result.dim() > 1:
            agrees[rows - 2] |= limit[rows - 2].isnan() & result[rows - 2].isfinite()
        assert agrees.all(), (
            name,
            columns,
            agrees.logical_not().nonzero()[:4],
            result[~agrees][:4],
            limit[~agrees][:4],
        )
    zeros = [tensor[3][tensor[3] == 0] for tensor in (y.detach(), expected.detach())]
    assert name == "softmax" or torch.equal(*(tensor.float().signbit() for tensor in zeros)), "the sign of a zero"


def check_special_softmax() -> None:
    """Checks the function of rows that has a maximum: a GPU's own drops NaN."""
    load("Softmax", "bf16")
    special_rows("softmax", references.softmax, 96, 0)


def check_special_rows() -> None:
    """Rows that are read once, for all functions of rows."""
    special_functions(96, "_bf16_1024", "bf16_bf16_1024", "bf16_")


def check_special_long_rows() -> None:
    """Rows that are read twice, and those at odd addresses."""
    for columns, form in ((17008, "long"), (77, "any")):
        special_functions(columns, f"bf16_{form}", f"bf16_bf16_{form}", "bf16_")


def special_functions(columns: int, rows: str, norms: str, flat: str) -> None:
    load("Softmax", rows)
    special_rows("softmax", references.softmax, columns, 0)
    load("LayerNorm", norms)
    special_rows("layer_norm", references.layer_norm, columns, 2, 1e-3)
    equal, weight, bias = (torch.rand(3, 1) * 1e5).to(BF16).expand(-1, columns), fresh(columns), fresh(columns)
    assert torch.equal(ops.layer_norm(equal.contiguous(), weight, bias), bias.expand(3, -1)), "not the bias"
    load("RMSNorm", norms)
    special_rows("rms_norm", references.rms_norm, columns, 1, 1e-3)
    tiny = (torch.randn(2, columns) * 1e-20).to(BF16)
    exact = tiny.double() / tiny.double().square().mean(1, keepdim=True).sqrt()
    close(ops.rms_norm(tiny, torch.ones(columns, dtype=BF16), 0.0), exact, BF16)
    device.check()
    load("Gelu", flat)
    for form in ("none", "tanh"):
        special_rows("gelu", references.gelu, columns, 0, form)
    load("Swiglu", flat)
    special_rows("swiglu", references.swiglu, columns, 0)
    gate, up = torch.full((2, columns), -3e38, dtype=BF16).requires_grad_(), fresh(2, columns)
    gradients = torch.autograd.grad(ops.swiglu(gate, up), (gate, up), torch.full_like(up, 9.0))
    device.check()
    assert not any(gradient.any() for gradient in gradients), "inf * 0"


def check_special_gradients() -> None:
    """Checks the optimizers: what is NaN, infinite or a denormal changes only itself."""
    chunks.SMALLEST_CHUNK = 2048
    for name in ("Adam", "Lion", "Lamb"):
        load(name, "fp32_fp32_fp32", "fp32_fp32_none", "trust")
        count = 2 + (name != "Lion")
        for column in range(count + 1):
            if name == "Lamb" and column == 0:
                continue  # a parameter of NaN makes the norm NaN, and so the whole tensor
            lists = [[torch.rand(99)] for _ in range(count + 1)]
            values = torch.tensor(SPECIAL)
            # As torch's lerp: an average of inf becomes NaN.
            lists[column][0][: len(SPECIAL)] = values.nan_to_num(posinf=1.0, neginf=1.0) if column == 2 else values
            numbers = {**NUMBERS[name], **MODES[name]} | ({"ratios": torch.ones(1)} if name == "Lamb" else {})
            floats = [[tensor.clone() for tensor in tensors] for tensors in lists]
            getattr(ops, f"fused_{name.lower()}_")(torch.zeros(1, dtype=torch.int32), *lists, [], **numbers)
            device.check()
            expected = getattr(references, name.lower())(*(tensors[0] for tensors in floats), **NUMBERS[name])
            for (tensor,), exact in zip((lists[0], *lists[2:]), expected, strict=False):  # LAMB's has the ratio too
                own = tensor if name != "Lamb" else tensor[len(SPECIAL) :]
                exact = exact if name != "Lamb" else exact[len(SPECIAL) :]
                torch.testing.assert_close(own, exact.float(), rtol=1e-5, atol=1e-6, equal_nan=True)


GROUPS = [(2, 32, 0), (16, 40, 0), (100, 5, 0), (128, 33, 0), (128, 3, 1), (1024, 5, 0), (8192, 2, 0), (16384, 3, 0)]
GROUPS += [(8000, 6, 1), (20000, 2, 0), (24576, 6, 0), (70000, 2, 1), (131072, 2, 0)]


def check_adam() -> None:
    optimizer("Adam")


def check_lion() -> None:
    optimizer("Lion")


def check_lamb() -> None:
    optimizer("Lamb")


def optimizer(name: str) -> None:
    load(name, "fp32_bf16_fp32", "fp32_fp32_bf16", "fp32_fp32_fp32", "fp32_fp32_none", "any", "trust")
    chunks.SMALLEST_CHUNK = 2048
    for grad, copy, offset, captured, stopped in (
        (BF16, BF16, 0, False, False),
        (FP32, None, 0, True, False),
        (BF16, BF16, 1, True, False),
        (FP32, None, 1, False, True),
    ):
        sizes = [1, 5, 0, 3000, 4099]
        lists = [[fresh(size, offset=offset, dtype=FP32).detach() for size in sizes]]
        lists += [[fresh(size, offset=offset, dtype=grad).detach() for size in sizes]]
        lists += [[torch.rand(size + offset)[offset:] for size in sizes] for _ in range(1 + (name != "Lion"))]
        copies = [torch.zeros(size + offset, dtype=copy)[offset:] for size in sizes] if copy else []
        before = [[tensor.clone() for tensor in tensors] for tensors in lists]
        expected = list(stepped(name, lists))
        more = {"ratios": torch.ones(len(sizes))} if name == "Lamb" else {}
        numbers = {**NUMBERS[name], **MODES[name], **more}
        if captured:
            numbers |= {"lr": 9.0, "lr_tensor": torch.tensor(0.01), "grad_scale": torch.tensor(4.0)}
            numbers |= {"step_tensor": torch.tensor(3.0)}
            for grad in lists[1]:
                grad.mul_(4)
        flag = torch.full((1,), int(stopped), dtype=torch.int32)
        getattr(ops, f"fused_{name.lower()}_")(flag, *lists, copies, **numbers)
        device.check()
        if stopped:
            assert all(all(map(torch.equal, tensors, old)) for tensors, old in zip(lists, before, strict=True))
            continue
        for tensor, param in zip(copies, lists[0], strict=False):
            assert torch.equal(tensor, param.to(tensor.dtype))
        for tensors, exact in zip((lists[0], *lists[2:]), zip(*expected, strict=True), strict=False):
            for tensor, double in zip(tensors, exact, strict=True):
                close(tensor, double, FP32, 4)


def stepped(name: str, lists: list[list[torch.Tensor]]) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yields the reference's results for each parameter."""
    for tensors in zip(*lists, strict=True):
        doubles = [tensor.double() for tensor in tensors]
        if tensors[0].numel() > 0:
            yield getattr(references, name.lower())(*doubles, **NUMBERS[name])
        else:
            yield doubles[0], *doubles[2:]


def check_that_faults_are_detected() -> None:
    load("Softmax", "forward_bf16_1024")
    device.images.clear()
    x = fresh(2, 1024).detach()
    ops.softmax(x)
    device.check()
    (image,) = device.images
    y = torch.empty_like(x)
    values = [x.data_ptr(), y.data_ptr(), 1024, 1024, 1024, 0, 0]
    tensors = [(tensor.data_ptr(), 2 * tensor.numel()) for tensor in (x, y)]
    good = image.decode()
    run(good, tensors, values)
    for ptx, allocations, parameters, message in (
        (good.replace("bar.sync", "// bar.sync"), tensors, values, "a race: another warp"),
        (good, [tensors[0], (tensors[1][0], 4094)], values, "outside of every tensor: st"),
        (good, tensors, [values[0] + 2, *values[1:]], "unaligned: ld"),
        (good, tensors, [*values[:4], 0, 0, 0], "two threads write different values to the same place"),
        (good.replace("ex2.approx", "ex3.approx"), tensors, values, "an instruction that this machine does not know"),
        (
            good.replace("\tbar.sync", "\t@%p1 bar.sync"),
            tensors,
            [*values[:2], 256, 256, 256, 0, 0],
            "a barrier that only",
        ),
    ):
        try:
            run(ptx, allocations, parameters)
        except ptx_machine.MachineError as error:
            assert message in str(error), error
        else:
            raise AssertionError(f"not detected: {message}")


def run(ptx: str, tensors: list[tuple[int, int]], values: list[int]) -> None:
    ptx_machine.run(ptx_machine.Kernel(ptx), ptx_machine.Memory(tensors), values, (2, 1, 1), 16)


CHECKS = {name.removeprefix("check_"): check for name, check in list(globals().items()) if name.startswith("check_")}


def main(names: Sequence[str] = (), short: bool = False) -> None:
    """Runs these checks, or all; prints the errors and the names of the launched functions.

    With `short`, rows have the lengths of FEWER_ROWS alone: those of thousands take most of the time.
    """
    if short:
        ROWS[:] = FEWER_ROWS
    run_checks(CHECKS, names, launched=device.launches)


if __name__ == "__main__":
    sys.exit(main())
