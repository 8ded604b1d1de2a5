"""Wrong arguments of the Triton ops are rejected before anything is launched, with what was expected."""

from __future__ import annotations

import importlib

import pytest
import torch
from support.gpu import triton_interpreter
from support.gpu.triton_cases import ADAM, GO, INTERPRETED, LAMB, LION, zeros

from opforge.builders.triton import TRITON_BUILDERS
from opforge.builders.triton_op_builder.rows import LARGEST_COUNT
from opforge.errors import KernelLaunchError, OpIncompatibleError
from opforge.ops import triton as ops
from opforge.ops.triton import attention, norms, quantizer, ragged
from opforge.ops.triton.transformer import channels, inference_core

pytestmark = INTERPRETED
CODES = torch.zeros(8, dtype=torch.int8)
LONG = torch.zeros(1).expand((1 << 31) - 1)
"""A row that takes no memory, in which an int32 wraps when a block is added to the place of the last one."""
KEYS = torch.zeros(1, dtype=torch.float16).expand(1, 1, LONG.numel(), 1, 16)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ops.quantize(torch.zeros(8), 8, 5), ValueError, "bits is 5, expected 8 or 4"),
        (
            lambda: ops.dequantize(CODES, torch.ones(1), torch.ones(1, dtype=torch.float64)),
            TypeError,
            "triton_quantizer: offsets is torch.float64, expected torch.float32, as quantize returns it",
        ),
        (
            lambda: quantizer.check_codes(CODES, torch.ones(1, device="meta"), torch.ones(0), 8),
            ValueError,
            "triton_quantizer: scales is on meta, expected cpu, where codes is",
        ),
        (
            lambda: ops.quantize(torch.zeros(9), 3, 4),
            ValueError,
            "group_size is 3, expected an even number from 1 to 2147418112",
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
        (lambda: ops.rms_norm(torch.tensor(1.0)), ValueError, "expected x to have a dimension of the same size"),
        (
            lambda: ops.fused_adam_(GO, *[zeros(4)] * 4, [], **{**ADAM, "step": 0}),
            ValueError,
            "step is 0, expected 1 at the first step: count it before the call",
        ),
        (
            lambda: ops.fused_lion_(GO, *[[torch.zeros(4, 4)[:, :2]]] * 3, [], **LION),
            ValueError,
            "params[0] has gaps between its values: pass .contiguous() tensors",
        ),
        (
            lambda: ops.fused_lion_(GO, zeros(4), zeros(4), zeros(4, 4), [], **LION),
            ValueError,
            "exp_avgs holds 2 tensors, expected 1 as params does",
        ),
        (
            lambda: ops.fused_lion_(GO, *[zeros(4)] * 3, zeros(5), **LION),
            ValueError,
            "copies[0] has shape (5,), strides (1,), on cpu; expected those of params[0]: (4,), (1,), cpu",
        ),
        (
            lambda: ops.fused_lion_(GO.long(), *[zeros(4)] * 3, [], **LION),
            ValueError,
            "noop_flag has 1 elements and is torch.int64 on cpu, expected one of torch.int32 or torch.float32 on cpu",
        ),
        (
            lambda: ops.fused_lion_(GO, *[zeros(4)] * 3, [], lr_tensor=torch.zeros(2), **LION),
            ValueError,
            "lr_tensor has 2 elements and is torch.float32",
        ),
        (
            lambda: ops.fused_lamb_(GO, *[zeros(4)] * 4, [], ratios=torch.ones(2), **LAMB),
            ValueError,
            "ratios has 2 elements and is torch.float32 on cpu, expected a contiguous float32 tensor of 1 on cpu",
        ),
        (
            lambda: ops.fused_lamb_(GO, *[zeros(4, dtype=torch.float64)] * 4, [], ratios=torch.ones(1), **LAMB),
            TypeError,
            "a tensor is torch.float64, expected one of torch.float32, torch.float16, torch.bfloat16",
        ),
    ],
)
def test_wrong_arguments_are_rejected(call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "call",
    [
        lambda: ops.softmax(LONG),
        lambda: torch.ops.opforge_triton.softmax_backward(LONG, LONG),
        lambda: ops.rms_norm(LONG, LONG),
        lambda: torch.ops.opforge_triton.rms_norm_backward(LONG, LONG, LONG, torch.ones(1)),
        lambda: ops.layer_norm(LONG, LONG, LONG),
        lambda: inference_core.rms_norm(LONG, LONG, LONG, 1e-5),
        lambda: inference_core.bias_activation(LONG, LONG, 0),
        lambda: channels.Channels.channel_bias_add_(LONG, LONG, LONG),
    ],
)
def test_a_row_that_kernels_cannot_count_is_refused(call):
    with pytest.raises(
        ValueError, match=r"the length of a row is 2147483647, expected at most 2147418112: compute it in parts"
    ):
        call()


def test_more_keys_or_choices_than_kernels_can_count_are_refused():
    options = attention.Options((), None, None, 0, 0, 1.0, False)
    with pytest.raises(ValueError, match=r"the number of keys is 2147483647, expected at most 2147418112"):
        attention.check_shapes("an op", KEYS[:, :, :1], KEYS, KEYS, options)
    choices = [_without_memory(1 << 29, 4) for _ in range(2)]
    scores, logits = (_without_memory(1 << 29, 4, dtype=torch.float32) for _ in range(2))
    with pytest.raises(ValueError, match=r"the number of chosen experts is 2147483648, expected at most 2147418112"):
        ragged.top_k_gating.__wrapped__(_without_memory(4), scores, *choices, logits, _without_memory(2))
    cache = _without_memory(1, 1, 2, 1, LONG.numel(), dtype=torch.float32)
    rows = [_without_memory(1, LONG.numel(), dtype=torch.float32) for _ in range(3)]
    with pytest.raises(ValueError, match=r"the length of a row is 2147483647, expected at most 2147418112"):
        ragged.linear_kv_copy.__wrapped__(cache, *rows, *[_without_memory(4)] * 4)


def _without_memory(*shape, dtype=torch.int32):
    """Returns a tensor for the functions below the choice of host or GPU, which takes this one to the host."""
    return torch.empty(shape, dtype=dtype, device="meta")


def test_no_loop_over_the_largest_count_wraps():
    """No block, times those that a loop reads ahead, reaches the end of an int32 from the end of the longest row."""
    for path in TRITON_BUILDERS.values():
        module, _, name = path.partition(":")
        for kernel in getattr(importlib.import_module(module), name).kernels:
            largest = max(kernel.constants.get(block) or 0 for block in ("BLOCK", "ROWS", "KEYS"))
            assert LARGEST_COUNT + largest * (kernel.stages + 1) <= 1 << 31, kernel.name


def test_undeclared_kernels_and_unaligned_arguments_are_rejected():
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
    monkeypatch.delenv(triton_interpreter.INTERPRET)
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(OpIncompatibleError, match=r"torch can use no GPU here. TRITON_INTERPRET=1 runs the op"):
        ops.softmax(torch.zeros(2))
