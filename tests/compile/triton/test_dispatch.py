"""Which kernel a call launches: one whose declared alignment and dtypes its tensors have, whatever their layout.

Nothing runs here: each launch is compared with the kernel's declaration.
"""

from __future__ import annotations

import importlib
import itertools
import struct

import pytest
import torch

from opforge.builders.triton import TRITON_BUILDERS
from opforge.builders.triton_op_builder.rows import FORWARD as SIZES
from opforge.builders.triton_op_builder.rows import LARGEST_COUNT
from opforge.ops import triton as ops
from opforge.ops.triton import registry

POINTEES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
POINTEES |= {"i8": torch.int8, "i32": torch.int32, "i64": torch.int64}
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class CheckedLaunches:
    """Stands in for an op's library, and compares each launch with the kernel's declaration."""

    def __init__(self, builder):
        self.op, self.names = builder.name, []
        self.declared = {kernel.name: kernel for kernel in builder.kernels}

    def launch(self, name, grid, *arguments):
        kernel = self.declared[name]
        numbers = []
        for (argument, kind), value in zip(kernel.arguments.items(), arguments, strict=True):
            bare, _, promise = kind.partition(":")
            if bare.startswith("*"):
                assert value.dtype == POINTEES[bare[1:]], (name, argument, value.dtype)
            numbers.append(value.data_ptr() if bare.startswith("*") else value)
            assert not promise or numbers[-1] % int(promise) == 0, (name, argument, numbers[-1])
        struct.pack(kernel.packing(), *numbers)
        for config in ({}, *kernel.configs):
            sizes = grid if isinstance(grid, tuple) else grid({**kernel.constants, **config})
            assert all(0 < size < 1 << 31 for size in sizes) and max(sizes[1:]) <= 65535, (name, config, sizes)
        self.names.append(name)


@pytest.fixture
def checked_launches():
    """Every Triton op by its name, with CheckedLaunches in place of its library."""
    registry.reset()
    launches = {}
    for import_path in TRITON_BUILDERS.values():
        module, _, name = import_path.partition(":")
        builder = getattr(importlib.import_module(module), name)
        launches[builder.name] = CheckedLaunches(builder)
        registry.bind(launches[builder.name])
    yield launches
    registry.reset()


@pytest.fixture
def launched(checked_launches):
    """A function that calls another one, and returns the names of the kernels that this launches."""

    def call(function, *arguments, **options):
        for launches in checked_launches.values():
            launches.names.clear()
        function(*arguments, **options)
        return [name for launches in checked_launches.values() for name in launches.names]

    return call


def at(offset, *shape, dtype=torch.float32):
    """Returns a tensor of zeros that begins `offset` values after a multiple of 64 bytes."""
    count = 1
    for size in shape:
        count *= size
    whole = torch.zeros(count + 64 + offset, dtype=dtype)
    skipped = -whole.data_ptr() % 64 // whole.element_size()
    return whole[skipped + offset : skipped + offset + count].view(shape)


def layouts(dtype):
    """Yields names and matrices, whose rows have every layout that a tensor of torch can have."""
    for offset, columns in itertools.product((0, 1, 4, 8), (1, 2, 16, 17, 72, 1024, 1040, 5008, 9008, 20000)):
        yield f"{columns} columns at {offset}", at(offset, 3, columns, dtype=dtype)
    yield "a gap of 3", at(0, 3, 67, dtype=dtype)[:, :64]
    yield "a gap of 16", at(0, 3, 80, dtype=dtype)[:, :64]
    yield "columns from 8 on", at(0, 3, 80, dtype=dtype)[:, 8:72]
    yield "one row for all", at(0, 64, dtype=dtype).expand(3, 64)
    yield "one row for all, at 1", at(1, 64, dtype=dtype).expand(3, 64)
    yield "one value for all", at(0, 1, dtype=dtype).expand(3, 64)
    yield "transposed", at(0, 64, 3, dtype=dtype).t()
    yield "every second", at(0, 3, 128, dtype=dtype)[:, ::2]
    yield "three dimensions, turned", at(0, 2, 3, 64, dtype=dtype).transpose(0, 1)
    yield "one row", at(0, 1, 4096, dtype=dtype)
    yield "one value", at(8, 1, 1, dtype=dtype)
    yield "a vector", at(0, 256, dtype=dtype)


def test_a_plan_of_rows_is_what_their_matrix_would_be():
    planned = 0
    for name, x in layouts(torch.float32):
        rows, stride = registry.rows_of(x)
        plan = registry.row_plan("forward", SIZES, x.shape, [x.stride()])
        is_view = rows.data_ptr() == x.data_ptr()
        assert (plan is not None) == is_view, name
        if plan is not None:
            planned += 1
            assert (plan.rows, plan.columns) == (x.numel() // x.shape[-1], x.shape[-1])
            assert plan.strides == (stride,) or plan.rows == 1, name
            assert plan.names[0] == "forward_any"
            assert plan.leading == x.shape[:-1]
    assert planned > 40
    assert registry.row_plan("forward", SIZES, (), [()]) is None
    assert registry.row_plan("forward", SIZES, (0, 4), [(4, 1)]) is None
    for columns in (LARGEST_COUNT, LARGEST_COUNT + 1):
        assert (registry.row_plan("forward", SIZES, (columns,), [(1,)]) is None) == (columns > LARGEST_COUNT)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_call_launches_a_kernel_that_its_tensors_fit(launched, dtype):
    for _name, x in layouts(dtype):
        for weight in (at(0, x.shape[-1], dtype=dtype), at(1, x.shape[-1], dtype=dtype), at(0, x.shape[-1])):
            x_with_grad = x.detach().requires_grad_()
            for norm, parameters in ((ops.rms_norm, [weight]), (ops.layer_norm, [weight, weight])):
                y = norm(x_with_grad, *parameters)
                assert len(launched(y.backward, x)) in (1, 2) and y.is_contiguous()
        for function in (ops.softmax, ops.gelu, lambda gate, up=x: ops.swiglu(gate, up)):
            x_with_grad = x.detach().requires_grad_()
            assert len(launched(function(x_with_grad).backward, x)) == 1
        for size, bits, symmetric in itertools.product((1, 2, 16, 34, 64, 1024, 9008, 5000), (8, 4), (True, False)):
            if x.numel() % size == 0 and (bits == 8 or size % 2 == 0):
                codes = ops.quantize(x, size, bits, symmetric)
                for offset in (0, 1):
                    moved = at(offset, *codes[0].shape, dtype=torch.int8)
                    assert len(launched(ops.dequantize, moved, *codes[1:], bits, dtype)) == 1


@pytest.mark.parametrize(
    ("x", "size"),
    [
        (at(0, 3, 64), "1024"),
        (at(0, 3, 16384), "16384"),
        (at(0, 3, 16400), "long"),
        (at(4, 3, 64), "1024"),
        (at(1, 3, 64), "any"),
        (at(0, 3, 65), "any"),
        (at(0, 3, 1), "any"),
        (at(0, 1, 1), "any"),
        (at(0, 3, 67)[:, :64], "any"),
        (at(0, 3, 80)[:, :64], "1024"),
        (at(0, 3, 80)[:, 1:65], "any"),
        (at(0, 64).expand(3, 64), "1024"),
        (at(1, 64).expand(3, 64), "any"),
        (at(0, 1).expand(3, 64), "1024"),  # copied
    ],
)
def test_unaligned_rows_take_the_kernel_without_alignment(launched, x, size):
    assert launched(ops.softmax, x) == [f"forward_fp32_{size}"]


def test_a_group_takes_the_smallest_block_that_holds_it_and_otherwise_two_passes(launched):
    for size in (128, 1024, 8192, 16384):
        assert launched(ops.quantize, at(0, 2, size), size) == [f"quantize_symmetric_8_fp32_{size}"]
    assert launched(ops.quantize, at(0, 2, 24), 24) == ["quantize_symmetric_8_fp32_any"]
    assert launched(ops.quantize, at(1, 2, 64), 64) == ["quantize_symmetric_8_fp32_any"]
    assert launched(ops.quantize, at(0, 16400), 16400) == ["extremes_fp32_aligned", "encode_symmetric_8_fp32_aligned"]
    assert launched(ops.quantize, at(1, 16400), 16400) == ["extremes_fp32_any", "encode_symmetric_8_fp32_any"]
    # If there are enough groups for all multiprocessors, one program takes a group.
    for offset, suffix in ((0, "aligned"), (1, "any")):
        assert launched(ops.quantize, at(offset, 2, 16400), 16400) == [f"quantize_long_symmetric_8_fp32_{suffix}"]
    assert launched(ops.quantize, at(0, 1025), 1025) == ["extremes_fp32_any", "encode_symmetric_8_fp32_any"]


def test_the_optimizers_have_a_kernel_for_every_mix_of_dtypes_and_addresses(launched, checked_launches):
    flag, ratios = torch.zeros(1), torch.ones(1)
    rule = {"lr": 0.1, "beta1": 0.9, "beta2": 0.9, "weight_decay": 0.0}
    adam = {**rule, "eps": 1e-8, "step": 1, "bias_correction": True}
    lamb = {**adam, "max_coeff": 1.0, "min_coeff": 0.1, "scale": 1.0, "eps_inside_sqrt": False, "ratios": ratios}
    adam_kernels = set()
    for param, grad, state, copy in itertools.product(DTYPES, DTYPES, DTYPES, (None, *DTYPES)):
        for offset in (0, 1):
            kinds = (param, grad, state, state)
            lists = [[at(offset, 33, dtype=kind)] for kind in kinds]
            copies = [at(0, 33, dtype=copy)] if copy else []
            names = launched(ops.fused_adam_, flag, *lists, copies, adamw_mode=True, **adam)
            names += launched(ops.fused_lion_, flag, *lists[:3], copies, **rule)
            names += launched(ops.fused_lamb_, flag, *lists, copies, **lamb)
            assert names[0] == names[1] and [name.partition("_")[0] for name in names[2:]] == [
                "accumulate",
                "trust",
                "descend",
            ]
            assert names[0] == "update_any" or offset == 0
            adam_kernels.add(names[0])
    assert adam_kernels == set(checked_launches["triton_adam"].declared)
