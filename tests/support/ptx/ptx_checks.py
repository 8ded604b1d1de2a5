"""Runs opforge's Triton ops as compiled for sm_90, on tests/support/ptx/ptx_device.py, against references in float64.

A program of its own (see there): prints what each check came to, as JSON, name -> error or "".
"""

from __future__ import annotations

import importlib
import json
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch
from support.ptx import ptx_device, ptx_machine

from opforge.builders.triton import TRITON_BUILDERS
from opforge.ops import triton as ops
from opforge.ops.triton import chunks, references

BF16, FP32 = torch.bfloat16, torch.float32
TOLERANCE = {FP32: 4e-6, BF16: 1.6e-2}
ROWS = [(9, 77), (2, 1024), (2, 4096), (2, 8192), (2, 16384), (1, 20000), (2, 131088), (0, 16), (4, 1), (3, 0)]
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
    """The op of Triton<name>Builder, with the kernels that are named."""
    module, _, attribute = TRITON_BUILDERS[f"Triton{name}Builder"].partition(":")
    ptx_device.load(getattr(importlib.import_module(module), attribute), names)


def close(actual: torch.Tensor, wanted: torch.Tensor, dtype: torch.dtype, times: float = 1.0) -> None:
    allowed = TOLERANCE[dtype] * times
    torch.testing.assert_close(actual.double(), wanted.double(), rtol=allowed, atol=allowed)


def fresh(*shape: int, gap: int = 0, offset: int = 0, dtype: torch.dtype = BF16) -> torch.Tensor:
    """Random values, which need a gradient; with gaps between the rows, or beginning some elements into a storage."""
    values = torch.randn(*shape[:-1], shape[-1] + gap).to(dtype)[..., : shape[-1]]
    if offset:
        values = torch.empty(values.numel() + offset, dtype=dtype)[offset:].view(shape).copy_(values)
    return values.detach().requires_grad_()


def rows_of(function: Any, reference: Any, others: Callable[[int, int], list[torch.Tensor]], *numbers: Any) -> None:
    """A function of rows, forward and backward, for every kind of row."""
    lain = [(*shape, 0, 0) for shape in ROWS] + [(5, 1024, 16, 0), (5, 1024, 3, 0), (5, 1024, 0, 1)]
    for count, columns, gap, offset in lain:
        inputs = [fresh(count, columns, gap=gap, offset=offset), *others(count, columns)]
        given = fresh(count, columns, gap=gap, offset=offset).detach()
        y = function(*inputs, *numbers)
        gradients = torch.autograd.grad(y, inputs, given)
        device.check()
        again = torch.autograd.grad(function(*inputs, *numbers), inputs, given)
        assert all(map(torch.equal, gradients, again)), "not the same bits"
        if y.numel():
            doubles = [one.detach().double().requires_grad_() for one in inputs]
            wanted = reference(*doubles, *numbers)
            close(y, wanted, BF16, 4)
            for one, other in zip(gradients, torch.autograd.grad(wanted, doubles, given.double()), strict=True):
                close(one, other, BF16, 40)


def column(_count: int, columns: int) -> torch.Tensor:
    return fresh(columns)


def check_softmax() -> None:
    load("Softmax", "bf16")
    rows_of(ops.softmax, references.softmax, lambda *shape: [])


def check_layer_norm() -> None:
    load("LayerNorm", "bf16_bf16")
    rows_of(ops.layer_norm, references.layer_norm, lambda *shape: [column(*shape), column(*shape)], 1e-3)


def check_rms_norm() -> None:
    load("RMSNorm", "bf16_bf16")
    rows_of(ops.rms_norm, references.rms_norm, lambda *shape: [column(*shape)], 1e-3)


def check_gelu() -> None:
    load("Gelu", "bf16")
    for form in ("none", "tanh"):
        rows_of(ops.gelu, references.gelu, lambda *shape: [], form)


def check_swiglu() -> None:
    load("Swiglu", "bf16")
    rows_of(ops.swiglu, references.swiglu, lambda *shape: [fresh(*shape)])


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
            wanted, by, low = references.quantize(x.double(), size, bits, symmetric)
            found = codes.view(torch.uint8).int()
            found = torch.stack([found & 15, found >> 4], 1) if bits == 4 else codes.int()
            found = found.view(-1, size)
            # Halfway between two codes, float32 may round to the other side of what float64 says.
            assert (found - wanted).abs().max() <= 1 and (found != wanted).sum() <= max(2, found.numel() // 200)
            close(scales, by, FP32)
            close(offsets, low, FP32)
            values = references.dequantize(found.double(), by, low)
            close(back.view(-1, size), values, BF16)
            close(exact.view(-1, size), values, FP32)


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
        before = [[one.clone() for one in each] for each in lists]
        wanted = list(stepped(name, lists))
        more = {"ratios": torch.ones(len(sizes))} if name == "Lamb" else {}
        numbers = {**NUMBERS[name], **MODES[name], **more}
        if captured:
            numbers |= {"lr": 9.0, "lr_tensor": torch.tensor(0.01), "grad_scale": torch.tensor(4.0)}
            numbers |= {"step_tensor": torch.tensor(3.0)}
            for one in lists[1]:
                one.mul_(4)
        flag = torch.full((1,), int(stopped), dtype=torch.int32)
        getattr(ops, f"fused_{name.lower()}_")(flag, *lists, copies, **numbers)
        device.check()
        if stopped:
            assert all(all(map(torch.equal, each, others)) for each, others in zip(lists, before, strict=True))
            continue
        for one, other in zip(copies, lists[0], strict=False):
            assert torch.equal(one, other.to(one.dtype))
        for each, expected in zip((lists[0], *lists[2:]), zip(*wanted, strict=True), strict=False):
            for one, double in zip(each, expected, strict=True):
                close(one, double, FP32, 4)


def stepped(name: str, lists: list[list[torch.Tensor]]) -> Iterator[tuple[torch.Tensor, ...]]:
    """What the reference makes of each tensor."""
    for together in zip(*lists, strict=True):
        doubles = [one.double() for one in together]
        given = together[0].numel() > 0
        yield getattr(references, name.lower())(*doubles, **NUMBERS[name]) if given else (doubles[0], *doubles[2:])


def check_that_faults_are_caught() -> None:
    load("Softmax", "forward_bf16_1024")
    device.images.clear()
    x = fresh(2, 1024).detach()
    ops.softmax(x)
    device.check()
    (image,) = device.images
    y = torch.empty_like(x)
    values = [x.data_ptr(), y.data_ptr(), 1024, 1024, 1024, 0, 0]
    tensors = [(one.data_ptr(), 2 * one.numel()) for one in (x, y)]
    good = image.decode()
    run(good, tensors, values)
    for ptx, known, parameters, said in (
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
            run(ptx, known, parameters)
        except ptx_machine.MachineError as error:
            assert said in str(error), error
        else:
            raise AssertionError(f"not caught: {said}")


def run(ptx: str, tensors: list[tuple[int, int]], values: list[int]) -> None:
    ptx_machine.run(ptx_machine.Kernel(ptx), ptx_machine.Memory(tensors), values, (2, 1, 1), 16)


CHECKS = {name.removeprefix("check_"): one for name, one in list(globals().items()) if name.startswith("check_")}


def main() -> None:
    told = {}
    for name, check in CHECKS.items():
        torch.manual_seed(0)
        try:
            check()
            told[name] = ""
        except Exception:
            told[name] = traceback.format_exc()
    print(json.dumps({"told": told, "launched": sorted(set(device.launches))}))


if __name__ == "__main__":
    sys.exit(main())
