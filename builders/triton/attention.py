"""The builders of the attention core: Evoformer attention, block-sparse attention, attention over pages of a cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from opforge.builders.triton_op_builder.builder import TritonOpBuilder
from opforge.builders.triton_op_builder.kernel import Kernel

from .configs import Config, by_warps, with_configs

SOURCE = "kernels/attention.py"
DTYPES = ("fp16", "bf16")
MOST_SIZE = 256
BIASES = {"dense": (0, 1, 2), "blocks": (0, 1, 3)}
"""Form -> the numbers of biases that its kernels take. A call with another number takes the next, with zeros."""
MOST_BIASES = 3
FUNCTIONS = ("forward", "backward_queries", "backward_keys", "backward_bias")


class Tile(NamedTuple):
    """The block of one program: how many queries or keys it owns, and how many of the others it reads at a time."""

    own: int
    others: int
    warps: int
    stages: int


SIZES = {"dense": (32, 64, 128, 256), "blocks": (64, 128, 256), "pages": (32, 64, 128, 256)}
"""Form -> the largest head sizes of its kernels."""
USUAL = Tile(64, 32, 4, 3)
TILES = {
    ("dense", "backward_keys", 64): Tile(32, 32, 4, 2),
    ("dense", "backward_keys", 128): Tile(64, 32, 8, 3),
    ("dense", "backward_bias", 128): Tile(64, 32, 8, 2),
    ("dense", "forward", 256): Tile(64, 32, 8, 2),
    ("dense", "backward_queries", 256): Tile(32, 32, 4, 2),
    ("dense", "backward_keys", 256): Tile(32, 16, 4, 2),
    ("dense", "backward_bias", 256): Tile(64, 16, 8, 1),
    ("blocks", "forward", 64): Tile(64, 32, 8, 3),
    ("blocks", "backward_queries", 64): Tile(64, 32, 8, 2),
    ("blocks", "backward_keys", 64): Tile(32, 32, 4, 2),
    ("blocks", "forward", 128): Tile(64, 32, 8, 3),
    ("blocks", "backward_queries", 128): Tile(32, 32, 4, 2),
    ("blocks", "backward_keys", 128): Tile(64, 32, 8, 3),
    ("blocks", "forward", 256): Tile(64, 16, 8, 2),
    ("blocks", "backward_queries", 256): Tile(64, 16, 8, 2),
    ("blocks", "backward_keys", 256): Tile(32, 16, 4, 2),
    ("pages", "paged", 256): Tile(64, 32, 8, 3),
}
"""(form, function, head size) -> the largest tile, if it is not USUAL, with which no register is spilled on sm_80 and
sm_90, and whose shared memory fits 99 KiB on every GPU from sm_80 on and 64 KiB on those of AMD. On sm_90 and sm_100,
which have 227 KiB, Triton stages more."""
SMALL_BLOCK = 16
"""The tile of blocks of 16 and 32 queries and keys."""
SMALL_WARPS = {
    ("forward", 128): 4,
    ("backward_queries", 128): 4,
    ("backward_queries", 256): 4,
    ("backward_keys", 256): 4,
}
"""(function, head size) -> the warps of such a tile, if not 2. With others registers are spilled."""


def tile_of(form: str, function: str, size: int, block: int = 0) -> Tile:
    """Returns the tile of a kernel; `block` is that of the lists of blocks."""
    if 0 < block < USUAL.own:
        return Tile(SMALL_BLOCK, SMALL_BLOCK, SMALL_WARPS.get((function, size), 2), 2)
    return TILES.get((form, function, size), USUAL)


def configs_of(form: str, tile: Tile, own: str, others: str) -> list[Config]:
    """Returns the tiles to try beside the default one; `own` and `others` are the names of their constants.

    A tile of a list of blocks stays as it is: it must divide the blocks.
    """
    tries: list[Config] = [{"stages": 2 if tile.stages == 3 else 3}]
    if form == "blocks":
        return [*by_warps(tile.warps), *tries]
    tries += [{others: 2 * tile.others}, {own: 2 * tile.own, others: 2 * tile.others, "warps": 8}]
    # The queries of a sequence that is decoded are as many as share a head of keys: mostly 1 to 8.
    return [*tries, {own: 16, others: 64}, {own: 16, others: 128}] if form == "pages" else tries


def kernel_name(function: str, form: str, dtype: str, size: int, biases: int, block: int = 0) -> str:
    """Returns the name of the kernel of a function for heads of up to `size`, so many biases, and blocks of `block`."""
    tile = f"_{USUAL.own if block >= USUAL.own else SMALL_BLOCK}" if block else ""
    return f"{function}_{form}_{dtype}_{size}{tile}_{biases}"


def _numbers(biases: int) -> dict[str, str]:
    integers = ("outer", "heads", "inner", "queries", "keys")
    arguments = dict.fromkeys(integers, "i32") | {"size": "i32:16"}
    arguments |= {**dict.fromkeys(("block", "causal"), "i32"), "scale": "fp32"}
    rows, scores = ("outer", "inner", "row", "head"), ("outer", "inner", "head", "query")
    parts = {"q": rows, "k": rows} | {f"b{number}": scores for number in range(biases)}
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


def attention_kernel(function: str, form: str, dtype: str, size: int, biases: int, block: int = 0) -> Kernel:
    """Returns the kernel of a function of the core: `form` is dense or blocks."""
    tile = tile_of(form, function, size, block)
    arguments = _tensors(function, dtype) | {f"bias{number}": f"*{dtype}:16" for number in range(biases)}
    constants: dict[str, int | None] = {"BIASES": biases, "SIZE": size}
    own, others = ("KEYS", "ROWS") if function == "backward_keys" else ("ROWS", "KEYS")
    constants |= {own: tile.own, others: tile.others}
    for number in range(biases, MOST_BIASES):
        constants |= {f"bias{number}": None}
        constants |= dict.fromkeys(f"b{number}_{dim}" for dim in ("outer", "inner", "head", "query"))
    if function == "backward_bias":
        arguments |= dict.fromkeys(("total_outer", "total_inner", "total_heads", "total_queries"), "i32")
    else:
        constants["BLOCKS"] = form == "blocks"
        if form == "blocks":
            arguments |= {"lists": "*i32", "members": "*i32"}
        else:
            constants |= {"lists": None, "members": None}
    name = kernel_name(function, form, dtype, size, biases, block)
    kernel = Kernel(name, SOURCE, function, arguments | _numbers(biases), constants, tile.warps, tile.stages)
    return with_configs(kernel, configs_of(form, tile, own, others))


def dense_kernels(dtypes: Sequence[str] = DTYPES) -> Iterator[Kernel]:
    """Yields the kernels of attention of all keys."""
    for dtype in dtypes:
        for size in SIZES["dense"]:
            for function in FUNCTIONS:
                for biases in BIASES["dense"]:
                    if biases or function != "backward_bias":
                        yield attention_kernel(function, "dense", dtype, size, biases)


def block_kernels(dtypes: Sequence[str] = DTYPES) -> Iterator[Kernel]:
    """Yields the kernels of attention over lists of blocks. Biases have no gradients there."""
    for dtype in dtypes:
        for size in SIZES["blocks"]:
            for function in FUNCTIONS[:3]:
                for block in (USUAL.own, SMALL_BLOCK):
                    for biases in BIASES["blocks"]:
                        yield attention_kernel(function, "blocks", dtype, size, biases, block)


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
            name = kernel_name("paged", "pages", dtype, size, 0)
            kernel = Kernel(name, SOURCE, "paged", arguments, constants, tile.warps, tile.stages)
            yield with_configs(kernel, configs_of("pages", tile, "ROWS", "KEYS"))


class EvoformerAttnBuilder(TritonOpBuilder):
    """Attention with up to two biases that are broadcast, on a GPU; see opforge.ops.evoformer_attention."""

    name = "triton_evoformer_attn"
    python_functions = "opforge.ops.evoformer:bind"
    compiles_configs = False
    cases = "opforge.ops.cases.triton_ops:EVOFORMER"
    kernels = list(dense_kernels())


class SparseAttnBuilder(TritonOpBuilder):
    """Block-sparse attention on a GPU; see opforge.ops.sparse_attention."""

    name = "triton_sparse_attn"
    python_functions = "opforge.ops.triton.attention:bind_sparse"
    compiles_configs = False
    cases = "opforge.ops.cases.triton_ops:SPARSE"
    kernels = list(block_kernels())
