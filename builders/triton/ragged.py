"""The builder of the ops for ragged batches."""

from __future__ import annotations

from collections.abc import Iterator

from opforge.builders.triton_op_builder.builder import TritonOpBuilder
from opforge.builders.triton_op_builder.kernel import Kernel
from opforge.builders.triton_op_builder.rows import DTYPES

from .attention import paged_kernels

SOURCE = "kernels/ragged.py"
BLOCK = 1024
"""Numbers that a program processes at once."""
EXPERTS = ((64, 1), (256, 2), (1024, 4), (4096, 8))
"""(most experts, warps)."""
BATCH = {"head": "*i32", "states": "*i32"}
BITS = {"aligned": "*i32:16", "any": "*i8"}


def _of_tokens(dtype: str) -> Iterator[Kernel]:
    """Yields the kernels of the cache and of embeddings."""
    integers = dict.fromkeys(("pages", "block", "heads", "size", "q_heads", "half"), "i32")
    rows = dict.fromkeys(("q_row", "k_row", "v_row"), "i64")
    for name, rotary in (("rotate", True), ("copy", False)):
        arguments = dict.fromkeys(("cache", "q", "k", "v"), f"*{dtype}") | ({"frequencies": "*fp32"} if rotary else {})
        arguments |= BATCH | {"owners": "*i32", "pointers": "*i64"} | integers | rows
        constants: dict[str, int | None] = {"ROTARY": rotary, "BLOCK": BLOCK}
        yield Kernel(
            f"{name}_{dtype}", SOURCE, "fill_cache", arguments, constants | ({} if rotary else {"frequencies": None})
        )
    for ids in ("i32", "i64"):
        for name, places in (("embed_places", True), ("embed", False)):
            arguments = {"out": f"*{dtype}", "ids": f"*{ids}", "table": f"*{dtype}"}
            arguments |= ({"places": f"*{dtype}"} if places else {}) | {"head": "*i32"}
            arguments |= {"states": "*i32", "owners": "*i32"} if places else {}
            arguments |= dict.fromkeys(("words", "positions"), "i64") | {"columns": "i32", "shift": "i32"}
            constants = {"PLACES": places, "BLOCK": BLOCK}
            constants |= {} if places else dict.fromkeys(("places", "states", "owners"))
            yield Kernel(f"{name}_{dtype}_{ids}", SOURCE, "embed", arguments, constants)


def _of_experts(dtype: str) -> Iterator[Kernel]:
    """Yields the kernels of the choice of experts and of their weighted sums."""
    for most, warps in EXPERTS:
        arguments = {"scores": "*fp32", "assignments": "*i32", "offsets": "*i32", "logits": f"*{dtype}", "head": "*i32"}
        arguments |= {"count": "i32", "top": "i32"}
        yield Kernel(f"choose_{dtype}_{most}", SOURCE, "choose_experts", arguments, {"EXPERTS": most}, warps)
    arguments = {"out": f"*{dtype}", "rows": f"*{dtype}", "scores": "*fp32", "slots": "*i32", "counts": "*i32"}
    arguments |= dict.fromkeys(("experts", "top", "columns", "count", "normalizes"), "i32")
    yield Kernel(f"weigh_{dtype}", SOURCE, "gather_from_experts", arguments, {"BLOCK": BLOCK})


def ragged_kernels() -> Iterator[Kernel]:
    """Yields the kernels of all functions but the attention."""
    for dtype in DTYPES:
        yield from _of_tokens(dtype)
        yield from _of_experts(dtype)
    arguments = {"counts": "*i32", "assignments": "*i32", "offsets": "*i32", "total": "i32"}
    yield Kernel("count", SOURCE, "count_experts", arguments, {"BLOCK": BLOCK})
    for form, bits in BITS.items():
        arguments = {"out": bits, "tokens_of": bits, **BATCH, "rows": "i32", "columns": "i32"}
        yield Kernel(f"last_{form}", SOURCE, "gather_last", arguments, {"BLOCK": BLOCK})
        arguments = {"out": bits, "sums": "*i64", "slots": "*i32", "activations": bits, "counts": "*i32"}
        arguments |= {"assignments": "*i32", "offsets": "*i32"} | dict.fromkeys(("experts", "top", "columns"), "i32")
        yield Kernel(f"scatter_{form}", SOURCE, "scatter_to_experts", arguments, {"BLOCK": BLOCK})


class RaggedOpsBuilder(TritonOpBuilder):
    """Attention over pages, the cache, experts and embeddings of ragged batches: see docs/transformer-ops.md."""

    name = "triton_ragged_ops"
    python_functions = "opforge.ops.triton.ragged:bind"
    kernels = [*paged_kernels(), *ragged_kernels()]
