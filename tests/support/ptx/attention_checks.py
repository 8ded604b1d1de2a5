"""Runs the attention kernels as compiled for sm_80 on the emulated GPU of ptx_device.py, against float64 references.

It is a program of its own, as ptx_checks.py is. It prints JSON: the error of each check by its name, or "".
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from support.attention.float64_errors import block_sparse
from support.ptx import ptx_device, ptx_machine
from support.ptx.programs import run_checks
from support.ragged.batches import RaggedBatch

from opforge.builders.triton import attention as builders
from opforge.builders.triton.ragged import RaggedOpsBuilder
from opforge.ops import attention as core
from opforge.ops import evoformer_attention, host_op, reference
from opforge.ops.cases.traffic import attention
from opforge.ops.sparse_attention import sparse_attention

BF16 = torch.bfloat16
device = ptx_device.present()
core.on_host = host_op.on_host


def fresh(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).to(BF16).requires_grad_()


def doubled(*tensors: torch.Tensor) -> list[torch.Tensor]:
    return [tensor.detach().double().requires_grad_() for tensor in tensors]


def close(actual: torch.Tensor, expected: torch.Tensor, allowed: float = 3e-2) -> None:
    torch.testing.assert_close(actual.double(), expected.double(), rtol=allowed, atol=allowed)


def both_ways(function: Callable[..., torch.Tensor], exact: Callable[..., torch.Tensor], tensors: Any) -> None:
    """Compares results and gradients, and asserts that two runs have the same bits."""
    out = function(*tensors)
    device.check()
    doubles = doubled(*tensors)
    expected = exact(*doubles)
    close(out, expected)
    dout = torch.randn(out.shape).to(BF16)
    gradients = torch.autograd.grad(out, tensors, dout, retain_graph=True)
    device.check()
    for gradient, double in zip(gradients, torch.autograd.grad(expected, doubles, dout.double()), strict=True):
        close(gradient, double, 6e-2)
    again = torch.autograd.grad(out, tensors, dout)
    assert torch.equal(function(*tensors), out) and all(map(torch.equal, gradients, again)), "not the same bits"
    device.check()


def dense(size: int, kernel: int) -> None:
    ptx_device.load(builders.EvoformerAttnBuilder, [f"bf16_{kernel}_2"], "cuda:sm_80")
    for length in (17, 70):
        tensors = [fresh(1, 2, length, 1, size) for _ in range(3)]
        biases = [fresh(1, 2, 1, 1, length), fresh(1, 1, 1, length, length)]
        both_ways(
            lambda q, k, v, *biases: evoformer_attention(q, k, v, biases),
            lambda q, k, v, *biases: reference.attention(q, k, v, biases)[0],
            [*tensors, *biases],
        )


def check_dense_32() -> None:
    dense(32, 32)


def check_lowest_masks() -> None:
    """Checks rows that hide all keys by the lowest number of bfloat16: SDPA gives the mean of the values."""
    ptx_device.load(builders.EvoformerAttnBuilder, ["bf16_32_2"], "cuda:sm_80")  # those of `check_dense_32`
    mask, none = torch.zeros(1, 1, 1, 40, 40, dtype=BF16), torch.zeros(1, 1, 1, 1, 40, dtype=BF16)
    mask[..., :3, :] = mask[..., 5:20] = torch.finfo(BF16).min
    both_ways(
        lambda q, k, v: evoformer_attention(q, k, v, [none, mask]),
        lambda q, k, v: reference.attention(q, k, v, [mask.double()])[0],
        [fresh(1, 1, 40, 1, 32) for _ in range(3)],
    )


def check_special_values() -> None:
    """Checks that NaN and infinity reach what they reach in float64; -0.0 and denormals are numbers as others."""
    ptx_device.load(builders.EvoformerAttnBuilder, ["forward_dense_bf16_32_0"], "cuda:sm_80")
    q, k, v = (fresh(1, 1, 40, 1, 32).detach() for _ in range(3))
    q[0, 0, 3, 0, 1], q[0, 0, 4], q[0, 0, 5] = torch.nan, -0.0, 1e-39
    v[0, 0, 7, 0, 5], v[0, 0, 8, 0, 6], v[0, 0, 9, 0, 7] = torch.inf, -torch.inf, torch.nan
    out = evoformer_attention(q, k, v)
    device.check()
    expected = reference.attention(*doubled(q, k, v))[0]
    torch.testing.assert_close(out.double(), expected, rtol=3e-2, atol=3e-2, equal_nan=True)
    k[0, 0, 20, 0, 2] = torch.nan  # every query sees this key
    assert evoformer_attention(q, k, v).isnan().all()
    device.check()


def check_dense_64() -> None:
    dense(40, 64)


def check_dense_128() -> None:
    dense(128, 128)


def check_dense_256() -> None:
    dense(256, 256)


def check_causal() -> None:
    ptx_device.load(builders.EvoformerAttnBuilder, ["bf16_32_0"], "cuda:sm_80")
    both_ways(
        lambda q, k, v: core.attention(q, k, v, causal=True)[0],
        lambda q, k, v: reference.attention(q, k, v, causal=True)[0],
        [fresh(1, 1, 70, 2, 16), fresh(1, 1, 90, 2, 16), fresh(1, 1, 90, 2, 16)],
    )


def blocks(size: int, kernel: int, block: int) -> None:
    ptx_device.load(builders.SparseAttnBuilder, [f"bf16_{kernel}_{min(block, 64)}_1"], "cuda:sm_80")
    count = 3 if block == 64 else 4
    layout = torch.eye(count, dtype=torch.int64)[None].repeat(2, 1, 1)
    layout[0, 2, 0] = layout[1, 0, 1] = 1
    layout[1, 1, 1] = 0
    mask = torch.zeros(1, count * block, dtype=BF16)
    mask[:, -5:] = -torch.inf
    both_ways(
        lambda q, k, v: sparse_attention(q, k, v, layout, block, key_padding_mask=mask),
        lambda q, k, v: block_sparse(q, k, v, mask.double()[:, None, None, None], layout=layout, block=block),
        [fresh(1, 2, count * block, size) for _ in range(3)],
    )


def check_blocks_64() -> None:
    blocks(64, 64, 64)


def check_blocks_of_16() -> None:
    blocks(64, 64, 16)


def check_blocks_128() -> None:
    blocks(128, 128, 64)


def check_blocks_256() -> None:
    blocks(256, 256, 64)


def paged(size: int, heads: int, group: int, kernel: int) -> None:
    from opforge.ops.triton import paged_attention

    ptx_device.load(RaggedOpsBuilder, [f"pages_bf16_{kernel}_"], "cuda:sm_80")
    batch = RaggedBatch([(1, 0), (5, 30), (1, 63)], block=8, seed=1)
    q, cache = fresh(batch.tokens, heads * group * size).detach(), fresh(batch.pages, 8, 2, heads, size).detach()
    rows, start = [], 0
    for number, (tokens, seen) in enumerate(batch.sequences):
        address = torch.tensor([batch.lists[number].data_ptr()]).view(torch.int32).tolist()
        rows.append([*address, start, tokens, -(-(seen + tokens) // 8), seen + tokens, seen, 0])
        start += tokens
    out, start = torch.full_like(q, torch.nan), 0
    atoms = torch.tensor(rows, dtype=torch.int32)
    for causal in (True, False):
        keys, values = cache[:, :, 0], cache[:, :, 1]
        paged_attention.flash_attn_by_atoms(out, q, keys, values, atoms, size**-0.5, causal)
        device.check()
        assert device.launches[-1] == "paged"
        start = 0
        for number, (tokens, seen) in enumerate(batch.sequences):
            keys, values = cache.double()[batch.lists[number].long()].flatten(0, 1)[: seen + tokens].unbind(1)
            queries = q[start : start + tokens].double().view(tokens, heads, group, size)
            scores = torch.einsum("thgd,khd->hgtk", queries, keys) * size**-0.5
            last = seen + (torch.arange(tokens) if causal else torch.full((tokens,), tokens))
            scores = scores.masked_fill(torch.arange(seen + tokens)[None] > last[:, None], -torch.inf)
            expected = torch.einsum("hgtk,khd->thgd", scores.softmax(-1), values).flatten(1)
            close(out[start : start + tokens], expected)
            start += tokens


def check_pages_32() -> None:
    paged(16, 1, 8, 32)


def check_pages_128() -> None:
    paged(80, 2, 3, 128)


def check_traffic() -> None:
    """Checks that K and V are read once for each tile of queries, and everything else once."""
    ptx_device.load(builders.EvoformerAttnBuilder, ["forward_dense_bf16_32_0"], "cuda:sm_80")
    length, size, tile = 192, 32, builders.tile_of("dense", "forward", 32).own
    q, k, v = (fresh(1, 1, length, 1, size).detach() for _ in range(3))
    out, log_sums = core.attention(q, k, v)
    device.check()
    (launch,) = device.traffic[-1:]
    once = q.numel() * 2
    assert launch["read"] == {q.data_ptr(): once, k.data_ptr(): once * (length // tile), v.data_ptr(): once * 3}
    assert sorted(launch["written"].values()) == [log_sums.numel() * 4, out.numel() * 2]
    moved = sum(launch["read"].values()) + sum(launch["written"].values())
    # Beside each logarithm is what float32 cannot hold of it.
    assert moved == attention(1, length, 1, size, 2) + 4 * length + 2 * once * (length // tile - 1)


def check_unfinished_copies_are_detected() -> None:
    ptx_device.load(builders.EvoformerAttnBuilder, ["forward_dense_bf16_32_0"], "cuda:sm_80")
    tensors = [fresh(1, 1, 64, 1, 32).detach() for _ in range(3)]
    device.images.clear()
    core.attention(*tensors)
    device.check()
    (image,) = device.images
    device.override = image.decode().replace("cp.async.wait_group", "// cp.async.wait_group")
    try:
        core.attention(*tensors)
        device.check()
    except ptx_machine.MachineError as error:
        assert "an asynchronous copy that writes this shared memory is unfinished" in str(error), error
    else:
        raise AssertionError("not detected")
    finally:
        device.override = ""


CHECKS = {name.removeprefix("check_"): check for name, check in list(globals().items()) if name.startswith("check_")}


def main(names: Sequence[str] = ()) -> None:
    """Runs these checks, or all, and prints the errors."""
    run_checks(CHECKS, names)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
