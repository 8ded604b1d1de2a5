"""Runs the smaller ops for transformers as compiled for sm_90 on the emulated GPU of ptx_device.py, in bfloat16.

It is a program of its own, as ptx_checks.py is. It prints JSON: the error of each check by its name, or "". Each check
also counts the bytes that the kernels read and write.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from support.ptx import ptx_device
from support.ptx.programs import run_checks
from support.ragged.batches import RaggedBatch

from opforge.builders.triton import transformer as builders
from opforge.builders.triton.ragged import RaggedOpsBuilder

BF16 = torch.bfloat16
device = ptx_device.present()


def fresh(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).to(BF16)


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual.double(), expected.double(), rtol=1.6e-2, atol=1.6e-2)


def check_channels() -> None:
    op = ptx_device.load(builders.SpatialInferenceBuilder, ["bf16"])
    for channels, rows in ((48, 60), (17, 90)):
        x, other, bias, second = fresh(1, rows, channels), fresh(1, rows, channels), fresh(channels), fresh(channels)
        out = op.nhwc_bias_add_bias_add(x, bias, other, second)
        device.check_traffic("nhwc_bias_add_bias_add", x, other, out)
        assert torch.equal(out, (x + bias) + (other + second))
        out = op.nhwc_bias_add(x, bias)
        device.check_traffic("nhwc_bias_add", x, out)
        assert torch.equal(out, x + bias)
        out = op.nhwc_bias_add_add(x, bias, other)
        device.check_traffic("nhwc_bias_add_add", x, other, out)
        assert torch.equal(out, (x + bias) + other)


def special(*shape: int) -> torch.Tensor:
    """Returns numbers of which each kind that is not normal stands beside every other, and beside normal ones."""
    kinds = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0, 0.0, 1e-40, -1e-40, 3e38, 1.0])
    return kinds[torch.randint(len(kinds), shape)].to(BF16)


def same_numbers(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Checks values, and NaN at the same places."""
    torch.testing.assert_close(actual.double(), expected.double(), rtol=1.6e-2, atol=1.6e-2, equal_nan=True)


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Checks values, NaN at the same places, and the signs of zeros."""
    torch.testing.assert_close(actual.double(), expected.double(), rtol=1.6e-2, atol=1e-39, equal_nan=True)
    numbers = ~expected.isnan()
    assert torch.equal(actual.signbit()[numbers], expected.signbit()[numbers]), "the sign of a zero"


def check_special_values() -> None:
    """Checks NaN, inf, -0.0 and numbers below the normal ones in the ops that compute; tokens are moved as bits."""
    op = ptx_device.load(builders.SpatialInferenceBuilder, ["bf16"])
    for channels in (48, 17):
        x, other, bias, second = (
            special(1, 30, channels),
            special(1, 30, channels),
            special(channels),
            special(channels),
        )
        out = [op.nhwc_bias_add_bias_add(x, bias, other, second), op.nhwc_bias_add_add(x, bias, other)]
        out.append(op.nhwc_bias_add(x, bias))
        device.check()
        for actual, expected in zip(out, ((x + bias) + (other + second), (x + bias) + other, x + bias), strict=True):
            same(actual, expected)
    tokens = ptx_device.load(builders.RandomLTDBuilder)
    whole, numbers = special(2, 9, 33), torch.tensor([[0, 4, 8], [1, 2, 3]], dtype=torch.int32)
    part = tokens.token_gather(whole, numbers, True)
    device.check()
    expected = torch.stack([whole[i, numbers[i].long()] for i in range(2)])
    assert torch.equal(part.view(torch.int16), expected.view(torch.int16)), "other bits"
    core = ptx_device.load(builders.InferenceCoreBuilder, ["activation_biased_bf16"])
    for kind, function in ((1, F.relu), (2, F.silu), (6, lambda values: values)):
        x, bias = special(3, 96), special(96)
        wide = x.float() + bias.float()
        core.bias_activation(x, bias, kind)
        device.check()
        same_numbers(x, function(wide).to(BF16))
    core = ptx_device.load(builders.InferenceCoreBuilder, ["norm_bf16"])
    for columns in (1024, 77):
        x, gamma, beta = fresh(5, columns), fresh(columns), fresh(columns)
        x[0, 3], x[1, 70], x[2], x[3] = torch.nan, torch.inf, -0.0, 1e-40
        for eps in (1e-3, 1e-30):
            out, wide = torch.empty_like(x), x.double()
            core.rms_norm(out, x, gamma, eps)
            device.check()
            same_numbers(out, F.rms_norm(wide, (columns,), gamma.double(), eps))
            core.layer_norm(out, x, gamma, beta, eps)
            device.check()
            same_numbers(
                out[[0, 1, 2, 4]], F.layer_norm(wide, (columns,), gamma.double(), beta.double(), eps)[[0, 1, 2, 4]]
            )


def check_tokens() -> None:
    op = ptx_device.load(builders.RandomLTDBuilder)
    whole, numbers = fresh(2, 9, 1024), torch.tensor([[0, 4, 8], [1, 2, 3]], dtype=torch.int32)
    part = op.token_gather(whole, numbers, True)
    device.check_traffic("token_gather", part, whole, numbers)
    assert all(torch.equal(part[i], whole[i, numbers[i].long()]) for i in range(2))
    back = torch.zeros_like(whole)
    op.token_scatter_(back, part, numbers, True)
    device.check_traffic("token_scatter_", part, back, numbers)
    assert torch.equal(back[1, 1:4], whole[1, 1:4]) and not back[1, 4:].any()
    odd = fresh(2, 9, 33)
    assert torch.equal(op.token_gather(odd, numbers, True)[0], odd[0, numbers[0].long()])
    mask = torch.randn(2, 1, 9, 9) > 0
    out = op.mask_gather_bert(mask, numbers[None])
    device.check()
    assert torch.equal(out[0, 1, 0], mask[1, 0, 1:4, 1:4])


def check_ragged() -> None:
    """Checks experts, with special logits, and the cache; the interpreter shows no race and no code of sm_90."""
    names = ["choose_bf16_64", "count", "scatter_", "weigh_bf16", "rotate_bf16", "embed_bf16_i32", "last_"]
    op, int32 = ptx_device.load(RaggedOpsBuilder, names), torch.int32
    logits = fresh(9, 5)
    logits[1], logits[2, 0], logits[3, 1], logits[4] = 1, torch.nan, torch.inf, -torch.inf
    counts, scores = torch.zeros(5, dtype=int32), torch.zeros(9, 2)
    chosen, offsets, slots = (torch.full((9, 2), 7, dtype=int32) for _ in range(3))
    op.top_k_gating(counts, scores, chosen, offsets, logits, torch.tensor([8, 1], dtype=int32))
    device.check()
    assert chosen[[1, 4, 8]].tolist() == [[0, 1], [0, 1], [-1, -1]], chosen.tolist()
    assert 0 not in chosen[2].tolist() and chosen[3, 0].item() == 1, chosen.tolist()
    assert counts.tolist() == torch.bincount(chosen[:8].flatten(), minlength=5).tolist()
    tokens, spread, sums = fresh(9, 64), torch.zeros(18, 64, dtype=BF16), torch.zeros(5, dtype=torch.int64)
    op.moe_scatter(spread, sums, slots, tokens, counts, chosen, offsets)
    device.check()
    assert sums.tolist() == counts.cumsum(0).tolist() and torch.equal(spread[slots[:8, 1].long()], tokens[:8])
    out = torch.zeros(9, 64, dtype=BF16)
    op.moe_gather(out, spread, torch.rand(9, 2) + 0.1, slots, counts, True)
    device.check()
    close(out[:8], tokens[:8].double())
    batch = RaggedBatch([(5, 0), (3, 6001)], block=4)
    q, k, v = fresh(8, 64), fresh(8, 32), fresh(8, 32)
    cache, before, frequency = torch.zeros(batch.pages, 4, 2, 2, 16, dtype=BF16), q.double(), torch.ones(8)
    op.kv_trained_rotary_embeddings(cache, q, k, v, frequency, *batch.described)
    device.check()
    for token, _, position, page, place in batch.places():
        x, y = before[token].view(4, 2, 8).unbind(1)
        cosine, sine = torch.tensor(position).double().cos(), torch.tensor(position).double().sin()
        close(q[token], torch.stack([x * cosine - y * sine, y * cosine + x * sine], 1).flatten())
        assert torch.equal(cache[page, place, 1].flatten(), v[token])
    words = fresh(50, 33)
    embedded, last = torch.zeros(8, 33, dtype=BF16), torch.zeros(2, 33, dtype=BF16)
    op.ragged_embed(embedded, torch.arange(8, dtype=int32), words, None, 0, *batch.described)
    op.gather_for_logits(last, embedded, *batch.described[:2])
    device.check()
    assert torch.equal(embedded, words[:8]) and torch.equal(last, words[[4, 7]])


def moved(once: bool, function: str, *tensors: torch.Tensor) -> None:
    """Checks the last launch, and if the function reads its rows once, what it moved."""
    device.check()
    if once:
        device.check_traffic(function, *tensors)


def check_core() -> None:
    op = ptx_device.load(builders.InferenceCoreBuilder, ["norm_bf16", "bf16_aligned"])
    for columns, rows in ((1024, 3), (77, 5), (9008, 2)):
        once = columns == 1024  # a row that fits a block of an aligned kernel
        x, residual, gamma, beta = fresh(rows, columns), fresh(rows, columns), fresh(columns), fresh(columns)
        out, total, wide = torch.empty_like(x), torch.empty_like(x), x.double() + residual.double()
        op.rms_pre_norm(out, total, x, residual, gamma, 1e-3)
        moved(once, "rms_pre_norm", x, residual, out, total)
        assert torch.equal(total, x + residual)
        close(out, F.rms_norm(wide, (columns,), gamma.double(), 1e-3))
        op.pre_layer_norm(total, out, x, residual, gamma, beta, 1e-3)
        moved(once, "pre_layer_norm", x, residual, out, total)
        close(out, F.layer_norm(wide, (columns,), gamma.double(), beta.double(), 1e-3))
        op.post_layer_norm(out, x, residual, gamma, beta, 1e-3)
        moved(once, "post_layer_norm", x, residual, out)
        close(out, F.layer_norm(wide, (columns,), gamma.double(), beta.double(), 1e-3))
        op.layer_norm(out, x, gamma, beta, 1e-3)
        moved(once, "layer_norm", x, out)
        close(out, F.layer_norm(x.double(), (columns,), gamma.double(), beta.double(), 1e-3))
        op.rms_norm(out, x, gamma, 1e-3)
        moved(once, "rms_norm", x, out)
        close(out, F.rms_norm(x.double(), (columns,), gamma.double(), 1e-3))
    x, bias = fresh(3, 1024), fresh(1024)
    out, wide = torch.empty(3, 512, dtype=BF16), x.double() + bias.double()
    op.gated_activation(out, x, bias, 5)
    device.check_traffic("gated_activation", x, out)
    close(out, F.silu(wide[:, ::2]) * wide[:, 1::2])
    op.bias_activation(x, bias, 0)
    device.check_traffic("bias_activation", x)
    close(x, F.gelu(wide, approximate="tanh"))


NAMES = ("channels", "special_values", "tokens", "ragged", "core")
CHECKS = {name.removeprefix("check_"): globals()[f"check_{name}"] for name in NAMES}


def main(names: Sequence[str] = ()) -> None:
    """Runs these checks, or all, and prints the errors."""
    run_checks(CHECKS, names)
