"""Ragged batches on a GPU, with DeepSpeed's arguments: the cache of keys and values, experts, embeddings, last tokens.

Batches are described in the memory of the GPU, where their content is not checked: see kernels/ragged.py. Tensors of
the host are computed by the host's op.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, wraps
from typing import Any

import torch
from torch import Tensor

from opforge.builders.triton import ragged as builders

from . import devices, registry
from .paged_attention import flash_attn_by_atoms

OP = builders.RaggedOpsBuilder.name
BLOCK = builders.BLOCK


def _or_on_host(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that calls the host's op of the same name if its first tensor is the host's."""
    from opforge.ops import host_op as hosts

    @wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        first = arguments[0] if arguments else next(iter(named.values()))
        if hosts.on_host(first):
            return getattr(hosts.host_op("RaggedOpsBuilder"), function.__name__)(*arguments, **named)
        return function(*arguments, **named)

    return call


def _launch(name: str, grid: tuple[int, int, int], *arguments: Any) -> None:
    if 0 not in grid:
        registry.kernels_of(builders.RaggedOpsBuilder).launch(name, grid, *arguments)


def _check(like: Tensor, tensors: Mapping[str, tuple[Tensor, torch.dtype | None, tuple[int | str, ...]]]) -> None:
    """Raises ValueError or TypeError unless tensors are contiguous, on like's device, and of a dtype and shape.

    A size that is a text may be any.
    """
    for name, (tensor, dtype, shape) in tensors.items():
        fits = tensor.dim() == len(shape)
        sizes = zip(tensor.shape, shape, strict=False)
        if not fits or any(has != wanted for has, wanted in sizes if not isinstance(wanted, str)):
            expected = ", ".join(map(str, shape))
            raise ValueError(f"{OP}: {name} has shape {tuple(tensor.shape)}, expected [{expected}]")
        if (dtype is not None and tensor.dtype != dtype) or tensor.device != like.device:
            expected = f"{dtype or tensor.dtype} on {like.device}"
            raise TypeError(f"{OP}: {name} is {tensor.dtype} on {tensor.device}, expected {expected}")
        if not tensor.is_contiguous():
            raise ValueError(f"{OP}: {name} has strides {tensor.stride()}, expected a contiguous tensor")


def _check_batch(like: Tensor, **described: Tensor) -> None:
    """Raises TypeError or ValueError unless these are what describes a batch."""
    for name, tensor in described.items():
        dtype = torch.int64 if name == "kv_ptrs" else torch.int32
        if tensor.dtype != dtype or tensor.device != like.device or not tensor.is_contiguous():
            expected = f"contiguous {dtype} on {like.device}"
            raise TypeError(f"{OP}: {name} is {tensor.dtype} on {tensor.device}, expected {expected}")
    if (head := described.get("batch_metadata")) is not None and head.numel() < 2:
        raise ValueError(f"{OP}: batch_metadata has {head.numel()} numbers, expected 2: tokens and sequences")


@_or_on_host
def build_atoms(
    atoms_ten: Tensor,
    batch_metadata: Tensor,
    seq_metadata: Tensor,
    kv_ptrs: Tensor,
    q_block_size: int,
    kv_block_size: int,
) -> int:
    """Writes the atoms of a batch, and returns their number.

    The number is the host's, so this waits for the GPU. With a description on the host it does not: pass that, as
    DeepSpeed does, and copy the atoms. Raises RuntimeError in the capture of a graph.
    """
    from opforge.ops.host_op import host_op

    devices.check_copies(atoms_ten.device, "the descriptions of batches")
    _check(atoms_ten, {"atoms": (atoms_ten, torch.int32, ("most atoms", 8))})
    copies = [tensor.cpu() for tensor in (atoms_ten, batch_metadata, seq_metadata, kv_ptrs)]
    count: int = host_op("RaggedOpsBuilder").build_atoms(*copies, q_block_size, kv_block_size)
    atoms_ten[:count].copy_(copies[0][:count])
    return count


@_or_on_host
def kv_rotary_embeddings(
    kv_cache: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rotary_dim: int,
    theta_base: float,
    batch_metadata: Tensor,
    seq_metadata: Tensor,
    tokens_to_seq: Tensor,
    kv_ptrs: Tensor,
) -> None:
    """Rotates queries in place, and writes rotated keys, and values, to the batch's places in the cache.

    Frequencies are theta_base ** (-2 i / rotary_dim), rounded to the dtype of the queries.
    """
    if rotary_dim < 0 or rotary_dim % 2:
        raise ValueError(f"{OP}: rotary_dim is {rotary_dim}, expected an even number")
    if (kv_cache.device, rotary_dim, theta_base, kv_cache.dtype) not in _known_frequencies:
        devices.check_copies(kv_cache.device, "the frequencies of this rotation")
    frequencies = _frequencies(kv_cache.device, rotary_dim, theta_base, kv_cache.dtype)
    _fill(kv_cache, q, k, v, frequencies, batch_metadata, seq_metadata, tokens_to_seq, kv_ptrs)


@_or_on_host
def kv_trained_rotary_embeddings(
    kv_cache: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    inv_freq: Tensor,
    batch_metadata: Tensor,
    seq_metadata: Tensor,
    tokens_to_seq: Tensor,
    kv_ptrs: Tensor,
) -> None:
    """Does what kv_rotary_embeddings does, with these frequencies, float32 [rotary_dim / 2]."""
    _check(kv_cache, {"inv_freq": (inv_freq, torch.float32, ("rotary_dim / 2",))})
    _fill(kv_cache, q, k, v, inv_freq, batch_metadata, seq_metadata, tokens_to_seq, kv_ptrs)


@_or_on_host
def linear_kv_copy(
    kv_cache: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    batch_metadata: Tensor,
    seq_metadata: Tensor,
    tokens_to_seq: Tensor,
    kv_ptrs: Tensor,
) -> None:
    """Writes keys and values to the batch's places in the cache."""
    _fill(kv_cache, q, k, v, None, batch_metadata, seq_metadata, tokens_to_seq, kv_ptrs)


_known_frequencies: set[tuple[torch.device, int, float, torch.dtype]] = set()


@cache
def _frequencies(device: torch.device, dimension: int, base: float, dtype: torch.dtype) -> Tensor:
    exact = [1.0 / base ** (2 * i / dimension) for i in range(dimension // 2)]
    rounded = torch.tensor(exact, dtype=torch.float32, device="cpu").to(dtype).float().to(device)
    _known_frequencies.add((device, dimension, base, dtype))
    return rounded


def _fill(
    kv_cache: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    frequencies: Tensor | None,
    head: Tensor,
    states: Tensor,
    owners: Tensor,
    pointers: Tensor,
) -> None:
    dtype = registry.dtype_name(OP, kv_cache)
    _check(kv_cache, {"kv_cache": (kv_cache, None, ("pages", "tokens of a page", 2, "heads", "head size"))})
    pages, block, _, heads, size = kv_cache.shape
    rows = q.shape[0] if q.dim() else 0
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        whole = heads * size
        columns = whole if name != "q" else tensor.shape[-1] if tensor.dim() == 2 and whole else 0
        if tensor.shape != (rows, columns) or (whole and columns % whole) or (tensor.stride(-1) != 1 and columns > 1):
            expected = f"rows of a multiple of the {heads} heads of size {size} of kv_cache, for each token of q"
            raise ValueError(f"{OP}: {name} has shape {tuple(tensor.shape)}, expected {expected}")
        if tensor.dtype != kv_cache.dtype or tensor.device != kv_cache.device:
            expected = f"{kv_cache.dtype} on {kv_cache.device}, as kv_cache"
            raise TypeError(f"{OP}: {name} is {tensor.dtype} on {tensor.device}, expected {expected}")
    registry.check_count(OP, "the length of a row", max(heads * size, q.shape[1]))
    described = {"batch_metadata": head, "seq_metadata": states, "tokens_to_seq": owners, "kv_ptrs": pointers}
    _check_batch(kv_cache, **described)
    if owners.numel() < rows:
        raise ValueError(f"{OP}: tokens_to_seq has {owners.numel()} numbers, expected one for each of {rows} rows of q")
    half = frequencies.numel() if frequencies is not None else 0
    if 2 * half > size:
        raise ValueError(f"{OP}: rotary_dim is {2 * half}, expected at most {size}, the head size")
    if not block or not heads * size:
        raise ValueError(f"{OP}: kv_cache has shape {tuple(kv_cache.shape)}, expected a token or more of a page")
    first = (kv_cache, q, k, v, *([] if frequencies is None else [frequencies]))
    numbers = (pages, block, heads, size, q.shape[1] // size, half, q.stride(0), k.stride(0), v.stride(0))
    name = f"{'copy' if frequencies is None else 'rotate'}_{dtype}"
    _launch(name, (rows, 1, 1), *first, head, states, owners, pointers, *numbers)


@_or_on_host
def ragged_embed(
    embedded_tokens: Tensor,
    input_ids: Tensor,
    embedding_weight: Tensor,
    position_embedding_weight: Tensor | None,
    pos_embed_offset: int,
    batch_metadata: Tensor,
    seq_metadata: Tensor,
    tokens_to_seq: Tensor,
    kv_ptrs: Tensor,
) -> None:
    """Writes each token's embedding, plus that of its position if there are such.

    Positions are clamped to those that exist. A word that does not exist gives NaN, and so does, where there are
    positions, a token without a sequence.
    """
    table, places = embedding_weight, position_embedding_weight
    dtype, tokens = registry.dtype_name(OP, table), input_ids.numel()
    _check(table, {"embedding_weight": (table, None, ("words", "channels"))})
    columns = table.shape[1]
    _check(table, {"embedded_tokens": (embedded_tokens, table.dtype, (tokens, columns))})
    if input_ids.dtype not in (torch.int32, torch.int64) or input_ids.device != table.device:
        expected = f"torch.int32 or torch.int64 on {table.device}"
        raise TypeError(f"{OP}: input_ids is {input_ids.dtype} on {input_ids.device}, expected {expected}")
    _check_batch(table, batch_metadata=batch_metadata, seq_metadata=seq_metadata, tokens_to_seq=tokens_to_seq)
    of_places: list[Tensor] = []
    if places is not None:
        _check(table, {"position_embedding_weight": (places, table.dtype, ("positions", columns))})
        if not places.shape[0] or tokens_to_seq.numel() < tokens:
            raise ValueError(
                f"{OP}: there are {places.shape[0]} positions and {tokens_to_seq.numel()} numbers in tokens_to_seq, "
                f"expected a position or more, and a number for each of {tokens} tokens"
            )
        of_places = [seq_metadata, tokens_to_seq]
    name = (
        f"embed{'_places' if places is not None else ''}_{dtype}_{'i32' if input_ids.dtype == torch.int32 else 'i64'}"
    )
    tensors = (embedded_tokens, input_ids.contiguous(), table, *([] if places is None else [places]))
    numbers = (table.shape[0], 0 if places is None else places.shape[0], columns, pos_embed_offset)
    _launch(name, (tokens, -(-columns // BLOCK), 1), *tensors, batch_metadata, *of_places, *numbers)


@_or_on_host
def gather_for_logits(final_token_acts: Tensor, all_acts: Tensor, batch_metadata: Tensor, seq_metadata: Tensor) -> None:
    """Writes the last token of each sequence. Of one without a token all bits are set, which is NaN in floats."""
    _check(all_acts, {"all_acts": (all_acts, None, ("tokens", "channels"))})
    rows, columns = final_token_acts.shape[0] if final_token_acts.dim() else 0, all_acts.shape[1]
    _check(all_acts, {"final_token_acts": (final_token_acts, all_acts.dtype, (rows, columns))})
    _check_batch(all_acts, batch_metadata=batch_metadata, seq_metadata=seq_metadata)
    form, (out, tokens) = _as_bits(final_token_acts, all_acts)
    sequences = min(rows, seq_metadata.numel() // 4)
    numbers = (all_acts.shape[0], tokens.shape[1])
    grid = (sequences, -(-tokens.shape[1] // BLOCK), 1)
    _launch(f"last_{form}", grid, out, tokens, batch_metadata, seq_metadata, *numbers)


def _as_bits(*tensors: Tensor) -> tuple[str, list[Tensor]]:
    """Returns how matrices are moved, and them as integers: words of 4 bytes if rows begin at multiples of 16 bytes."""
    size = tensors[0].shape[-1] * tensors[0].element_size()
    aligned = size % 16 == 0 and all(tensor.data_ptr() % 16 == 0 for tensor in tensors)
    return ("aligned" if aligned else "any"), [
        tensor.view(torch.int32 if aligned else torch.int8) for tensor in tensors
    ]


@_or_on_host
def top_k_gating(
    expert_counts: Tensor, scores: Tensor, assignments: Tensor, offsets: Tensor, logits: Tensor, batch_metadata: Tensor
) -> None:
    """Writes each token's experts with the largest logits, their softmax, and its number among an expert's tokens.

    An expert's tokens are numbered in their order, from its count on, and are added to it. Tokens behind the batch's
    have -1. A logit of NaN is chosen last, and makes the token's scores NaN.
    """
    dtype = registry.dtype_name(OP, logits)
    _check(
        logits,
        {"logits": (logits, None, ("tokens", "experts")), "scores": (scores, torch.float32, ("tokens", "top k"))},
    )
    (rows, count), top = logits.shape, scores.shape[1]
    choices = dict.fromkeys(("scores", "assignments", "offsets"), (rows, top))
    tensors = {"scores": scores, "assignments": assignments, "offsets": offsets, "expert_counts": expert_counts}
    shapes = {**choices, "expert_counts": (count,)}
    kinds = {name: torch.float32 if name == "scores" else torch.int32 for name in tensors}
    _check(logits, {name: (tensor, kinds[name], shapes[name]) for name, tensor in tensors.items()})
    if batch_metadata.dtype != torch.int32 or batch_metadata.device != logits.device or not batch_metadata.numel():
        expected = f"torch.int32 on {logits.device}"
        raise TypeError(
            f"{OP}: batch_metadata is {batch_metadata.dtype} on {batch_metadata.device}, expected {expected}"
        )
    most = next((most for most, _ in builders.EXPERTS if count <= most), 0)
    if top > count or not most:
        limit = builders.EXPERTS[-1][0]
        text = f"logits has {count} experts and scores {top} columns"
        raise ValueError(f"{OP}: {text}, expected at most {limit} experts, and as many columns or fewer")
    registry.check_count(OP, "the number of chosen experts", rows * top)
    if top:
        _launch(
            f"choose_{dtype}_{most}", (rows, 1, 1), scores, assignments, offsets, logits, batch_metadata, count, top
        )
        _launch("count", (count if rows else 0, 1, 1), expert_counts, assignments, offsets, rows * top)


@_or_on_host
def moe_scatter(
    moe_input: Tensor,
    expert_count_cumsums: Tensor,
    mapped_slots: Tensor,
    activations: Tensor,
    expert_counts: Tensor,
    assignments: Tensor,
    offsets: Tensor,
) -> None:
    """Copies tokens to the rows of their experts, and writes the rows' numbers, and the sums of the counts."""
    _check(activations, {"activations": (activations, None, ("tokens", "channels"))})
    _check(activations, {"assignments": (assignments, torch.int32, (activations.shape[0], "top k"))})
    choices, experts = assignments.shape, expert_counts.numel()
    rows = choices[0] * choices[1]
    _check(
        activations,
        {
            "offsets": (offsets, torch.int32, tuple(choices)),
            "mapped_slots": (mapped_slots, torch.int32, tuple(choices)),
            "moe_input": (moe_input, activations.dtype, (rows, activations.shape[1])),
            "expert_counts": (expert_counts, torch.int32, ("experts",)),
            "expert_count_cumsums": (expert_count_cumsums, torch.int64, (experts,)),
        },
    )
    if not rows:
        expert_count_cumsums.copy_(expert_counts.cumsum(0))
        return
    form, (out, tokens) = _as_bits(moe_input, activations)
    columns = tokens.shape[1]
    tensors = (out, expert_count_cumsums, mapped_slots, tokens, expert_counts, assignments, offsets)
    _launch(f"scatter_{form}", (rows, max(1, -(-columns // BLOCK)), 1), *tensors, experts, choices[1], columns)


@_or_on_host
def moe_gather(
    layer_output: Tensor,
    moe_output: Tensor,
    scores: Tensor,
    mapped_slots: Tensor,
    expert_count: Tensor,
    normalize_scales: bool,
) -> None:
    """Adds up the rows of each token's experts, weighted by its scores, and sets the counts to 0 for their next use.

    A token without an expert keeps what its row of `layer_output` holds.
    """
    dtype = registry.dtype_name(OP, layer_output)
    _check(layer_output, {"layer_output": (layer_output, None, ("tokens", "channels"))})
    tokens, columns = layer_output.shape
    _check(layer_output, {"scores": (scores, torch.float32, (tokens, "top k"))})
    top = scores.shape[1]
    _check(
        layer_output,
        {
            "mapped_slots": (mapped_slots, torch.int32, (tokens, top)),
            "moe_output": (moe_output, layer_output.dtype, (tokens * top, columns)),
            "expert_count": (expert_count, torch.int32, ("experts",)),
        },
    )
    if not tokens:
        expert_count.zero_()
        return
    grid = (tokens, max(1, -(-columns // BLOCK)), 1)
    numbers = (expert_count.numel(), top, columns, tokens * top, int(normalize_scales))
    _launch(f"weigh_{dtype}", grid, layer_output, moe_output, scores, mapped_slots, expert_count, *numbers)


FUNCTIONS = (
    build_atoms,
    flash_attn_by_atoms,
    gather_for_logits,
    kv_rotary_embeddings,
    kv_trained_rotary_embeddings,
    linear_kv_copy,
    moe_gather,
    moe_scatter,
    ragged_embed,
    top_k_gating,
)


bind = registry.binding({function.__name__: function for function in FUNCTIONS})
