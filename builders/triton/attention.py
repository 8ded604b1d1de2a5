"""The builders of the attention core: Evoformer attention, block-sparse attention, attention over pages of a cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from opforge.builders.triton_op.builder import TritonOpBuilder
from opforge.builders.triton_op.kernel import Kernel

SOURCE = "kernels/attention.py"
DTYPES = ("fp16", "bf16")
MOST_SIZE = 256
BIASES = {"dense": 2, "blocks": 3}
"""Form -> the biases that its kernels take."""
FUNCTIONS = ("forward", "backward_queries", "backward_keys", "backward_bias")


class Tile(NamedTuple):
    """What one program works on: so many queries or keys of its own, and so many of the others at a time."""

    own: int
    others: int
    warps: int
    stages: int


SIZES = {"dense": (32, 64, 128, 256), "blocks": (64, 128, 256), "pages": (32, 64, 128, 256)}
"""Form -> the largest head sizes of its kernels."""
USUAL = Tile(64, 32, 4, 3)
TILES = {
    ("dense", "backward_keys", 64): Tile(64, 16, 8, 2),
    ("dense", "backward_keys", 128): Tile(64, 32, 8, 3),
    ("dense", "forward", 256): Tile(64, 32, 8, 3),
    ("dense", "backward_queries", 256): Tile(64, 32, 8, 3),
    ("dense", "backward_keys", 256): Tile(32, 16, 8, 2),
    ("dense", "backward_bias", 256): Tile(64, 16, 8, 2),
    ("blocks", "forward", 64): Tile(64, 32, 8, 3),
    ("blocks", "backward_queries", 64): Tile(64, 32, 8, 3),
    ("blocks", "backward_keys", 64): Tile(64, 32, 8, 2),
    ("blocks", "forward", 128): Tile(64, 32, 8, 3),
    ("blocks", "backward_queries", 128): Tile(64, 32, 8, 2),
    ("blocks", "backward_keys", 128): Tile(64, 32, 8, 3),
    ("blocks", "forward", 256): Tile(64, 16, 8, 2),
    ("blocks", "backward_queries", 256): Tile(64, 16, 8, 2),
    ("blocks", "backward_keys", 256): Tile(32, 16, 8, 2),
    ("pages", "paged", 256): Tile(64, 32, 8, 3),
}
"""(form, function, head size) -> the largest tile, if it is not USUAL, with which no register is spilled on sm_80 and
sm_90, and whose shared memory both have."""
SMALL_BLOCK = 16
"""The tile of blocks of 16 and 32 queries and keys."""
SMALL_WARPS = {("forward", 128): 4, ("backward_queries", 256): 4, ("backward_keys", 256): 4}
"""(function, head size) -> the warps of such a tile, if not 2. With others registers are spilled."""


def tile_of(form: str, function: str, size: int, block: int = 0) -> Tile:
    """Returns the tile of a kernel; `block` is that of the lists of blocks."""
    if 0 < block < USUAL.own:
        return Tile(SMALL_BLOCK, SMALL_BLOCK, SMALL_WARPS.get((function, size), 2), 2)
    return TILES.get((form, function, size), USUAL)


def kernel_name(function: str, form: str, dtype: str, size: int, tile: int) -> str:
    """Returns the name of the kernel of a function for heads of up to `size` and tiles of so many queries or keys."""
    return f"{function}_{form}_{dtype}_{size}_{tile}"


def _numbers(third: bool) -> dict[str, str]:
    integers = ("outer", "heads", "inner", "queries", "keys")
    arguments = dict.fromkeys(integers, "i32") | {"size": "i32:16"}
    arguments |= {**dict.fromkeys(("block", "present", "causal"), "i32"), "scale": "fp32"}
    rows, scores = ("outer", "inner", "row", "head"), ("outer", "inner", "head", "query")
    parts = {"q": rows, "k": rows, "b0": scores, "b1": scores} | ({"b2": scores} if third else {})
    for tensor, dims in parts.items():
        arguments |= {f"{tensor}_{dim}": "i64:16" for dim in dims}
    return arguments


def _tensors(function: str, dtype: str) -> dict[str, str]:
    rows, sums = f"*{dtype}:16", "*fp32"
    if function == "forward":
        return {**dict.fromkeys(("q", "k", "v", "out"), rows), "log_sums": sums}
    if function == "backward_queries":
        return {**dict.fromkeys(("q", "k", "v", "out", "dout"), rows), "log_sums": sums, "deltas": sums, "dq": rows}
    inputs = {**dict.fromkeys(("q", "k", "v", "dout"), rows), "log_sums": sums, "deltas": sums}
    return inputs | ({"dk": rows, "dv": rows} if function == "backward_keys" else {"total": sums})


def attention_kernel(function: str, form: str, dtype: str, size: int, tile: Tile) -> Kernel:
    """Returns the kernel of a function of the core: `form` is dense or blocks."""
    third, blocks = BIASES[form] > 2, form == "blocks"
    arguments = _tensors(function, dtype) | dict.fromkeys(("bias0", "bias1", "bias2")[: BIASES[form]], f"*{dtype}:16")
    constants: dict[str, int | None] = {"THIRD": third, "SIZE": size}
    own, others = ("KEYS", "ROWS") if function == "backward_keys" else ("ROWS", "KEYS")
    constants |= {own: tile.own, others: tile.others}
    if not third:
        constants |= dict.fromkeys(("bias2", "b2_outer", "b2_inner", "b2_head", "b2_query"))
    if function == "backward_bias":
        arguments |= dict.fromkeys(("total_outer", "total_inner", "total_heads", "total_queries"), "i32")
    else:
        constants["BLOCKS"] = blocks
        if blocks:
            arguments |= {"lists": "*i32", "members": "*i32"}
        else:
            constants |= {"lists": None, "members": None}
    name = kernel_name(function, form, dtype, size, tile.own)
    return Kernel(name, SOURCE, function, arguments | _numbers(third), constants, tile.warps, tile.stages)


def dense_kernels(dtypes: Sequence[str] = DTYPES) -> Iterator[Kernel]:
    """Yields the kernels of attention of all keys."""
    for dtype in dtypes:
        for size in SIZES["dense"]:
            for function in FUNCTIONS:
                yield attention_kernel(function, "dense", dtype, size, tile_of("dense", function, size))


def block_kernels(dtypes: Sequence[str] = DTYPES) -> Iterator[Kernel]:
    """Yields the kernels of attention over lists of blocks. Biases have no gradients there."""
    for dtype in dtypes:
        for size in SIZES["blocks"]:
            for function in FUNCTIONS[:3]:
                for block in (USUAL.own, SMALL_BLOCK):
                    yield attention_kernel(function, "blocks", dtype, size, tile_of("blocks", function, size, block))


def paged_kernels(dtypes: Sequence[str] = DTYPES) -> Iterator[Kernel]:
    """Yields the kernels of attention over pages."""
    for dtype in dtypes:
        for size in SIZES["pages"]:
            tile = tile_of("pages", "paged", size)
            arguments = dict.fromkeys(("q", "k", "v", "out"), f"*{dtype}:16") | {"atoms": "*i32:16"}
            arguments |= {**dict.fromkeys(("heads", "group", "length"), "i32"), "size": "i32:16"}
            arguments |= {"causal": "i32", "scale": "fp32"}
            arguments |= dict.fromkeys(("q_row", "out_row", "page", "token"), "i64:16")
            constants = {"ROWS": tile.own, "KEYS": tile.others, "SIZE": size}
            name = kernel_name("paged", "pages", dtype, size, tile.own)
            yield Kernel(name, SOURCE, "paged", arguments, constants, tile.warps, tile.stages)


class EvoformerAttnBuilder(TritonOpBuilder):
    """Attention with up to two biases that are broadcast, on a GPU; see opforge.ops.evoformer_attention."""

    name = "triton_evoformer_attn"
    python_functions = "opforge.ops.evoformer:bind"
    kernels = list(dense_kernels())


class SparseAttnBuilder(TritonOpBuilder):
    """Block-sparse attention on a GPU; see opforge.ops.sparse_attention."""

    name = "triton_sparse_attn"
    python_functions = "opforge.ops.triton.attention:bind_sparse"
    kernels = list(block_kernels())


class RaggedOpsBuilder(TritonOpBuilder):
    """flash_attn_by_atoms on a GPU. The other functions for ragged batches are those of the host."""

    name = "triton_ragged_ops"
    python_functions = "opforge.ops.triton.paged_attention:bind"
    kernels = list(paged_kernels())
