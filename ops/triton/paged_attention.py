"""flash_attn_by_atoms on a GPU: attention over pages of a cache of keys and values, scheduled by atoms."""

from __future__ import annotations

from torch import Tensor

from opforge.builders.triton.attention import kernel_name
from opforge.builders.triton.ragged import RaggedOpsBuilder

from . import attention, registry

OP = RaggedOpsBuilder.name
MOST_QUERIES = 128
"""So many queries of an atom are processed at once, if it has more; the others follow."""


def flash_attn_by_atoms(
    out: Tensor, q: Tensor, k: Tensor, v: Tensor, attention_atoms: Tensor, softmax_scale: float, is_causal: bool
) -> None:
    """Writes the attention of each atom's queries over the pages of its sequence to `out`.

    Args:
        out: [tokens, query heads * size], float16 or bfloat16.
        q: As `out`.
        k: Keys, [pages, tokens of a page, heads, size]. Sizes are multiples of 16, up to 256.
        v: Values, of k's shape and strides.
        attention_atoms: int32 [atoms, 8], by `build_atoms`. They and the lists that they point to are in the memory of
            the GPU: their content is not checked.
        softmax_scale: The factor of the scores.
        is_causal: Whether a query sees no later tokens.

    Raises ValueError, TypeError, KernelLaunchError. Tensors of the host are computed by the host's op.
    """
    from opforge.ops.host_op import host_op, on_host

    if on_host(q):
        host_op("RaggedOpsBuilder").flash_attn_by_atoms(out, q, k, v, attention_atoms, softmax_scale, is_causal)
        return
    dtype, size = _check(out, q, k, v, attention_atoms)
    heads = k.shape[2]
    group = q.shape[1] // (heads * k.shape[3])
    numbers = [heads, group, k.shape[1], k.shape[3], int(is_causal), softmax_scale]
    numbers += [q.stride(0), out.stride(0), k.stride(0), k.stride(1)]
    programs, rows = attention_atoms.shape[0] * heads, min(q.shape[0], MOST_QUERIES) * group
    kernels = registry.kernels_of(RaggedOpsBuilder)
    if programs and rows:
        name = kernel_name("paged", "pages", dtype, size, 0)
        grid = lambda constants: (programs, -(-rows // constants["ROWS"]), 1)  # noqa: E731
        kernels.launch(name, grid, q, k, v, out, attention_atoms, *numbers)


def _check(out: Tensor, q: Tensor, k: Tensor, v: Tensor, atoms: Tensor) -> tuple[str, int]:
    """Returns the dtype and the head size of the kernel. Raises ValueError or TypeError."""
    if q.dim() != 2 or out.shape != q.shape or k.dim() != 4 or v.shape != k.shape:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in (out, q, k, v))
        raise ValueError(
            f"{OP}: out, q, k and v have shapes {shapes}, expected [tokens, channels] twice and "
            "[pages, tokens of a page, heads, size] twice"
        )
    for name, tensor in (("out", out), ("k", k), ("v", v)):
        if tensor.dtype != q.dtype or tensor.device != q.device:
            raise TypeError(
                f"{OP}: {name} is {tensor.dtype} on {tensor.device}, expected {q.dtype} on {q.device}, as q"
            )
    heads, size = k.shape[2:]
    dtype, kernel_size = attention.kernel_size(OP, "pages", k)
    if size % attention.MULTIPLE:
        raise ValueError(f"{OP}: heads have size {size}, expected a multiple of {attention.MULTIPLE}")
    if not heads or q.shape[1] % (heads * size):
        many = f"as many heads as a multiple of the {heads} heads of size {size} of k"
        raise ValueError(f"{OP}: q has shape {tuple(q.shape)}, expected {many}")
    if atoms.dim() != 2 or atoms.shape[1:] != (8,) or str(atoms.dtype) != "torch.int32" or not atoms.is_contiguous():
        expected = "contiguous int32 [atoms, 8], of build_atoms"
        raise ValueError(f"{OP}: attention_atoms is {atoms.dtype} {tuple(atoms.shape)}, expected {expected}")
    for name, tensor, dense in (("out", out, 1), ("q", q, 1), ("k", k, 2), ("v", v, 2)):
        rows = [stride % attention.MULTIPLE for stride in attention.strides(tensor)]
        packed = tensor.stride(-1) == 1 and (dense == 1 or tensor.stride(-2) == size or heads == 1)
        if any(rows) or not packed or tensor.data_ptr() % 16:
            raise ValueError(
                f"{OP}: {name} has strides {tensor.stride()}, expected heads without gaps, and rows that begin at "
                f"multiples of {attention.MULTIPLE} numbers: use .contiguous()"
            )
    if attention.strides(k)[:2] != attention.strides(v)[:2]:
        raise ValueError(f"{OP}: v has strides {v.stride()}, expected k's, {k.stride()}")
    return dtype, kernel_size
