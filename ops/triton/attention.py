"""The attention core on a GPU, which `opforge.ops.attention` runs for tensors there, and DeepSpeed's functions.

Head sizes and rows of biases are padded to multiples of 16, unless they are such multiples already. Nothing else is
copied, if rows of `q`, `k`, `v` and the biases begin at multiples of 16 numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from opforge.builders.triton import attention as builders
from opforge.builders.triton_op_builder.launching import Grid
from opforge.ops.host_op import host_op

from . import registry

EVOFORMER, SPARSE = builders.EvoformerAttnBuilder.name, builders.SparseAttnBuilder.name
MULTIPLE = 16


class Options(NamedTuple):
    """The arguments of a call of the core, except tensors of results."""

    biases: Sequence[Tensor]
    offsets: Tensor | None
    columns: Tensor | None
    block: int
    multiplied: int
    scale: float
    causal: bool


class Call:
    """The checked and padded tensors of a call, and the numbers that all kernels take."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, options: Options) -> None:
        self.form = "dense" if options.offsets is None else "blocks"
        self.op = EVOFORMER if options.offsets is None else SPARSE
        check_shapes(self.op, q, k, v, options)
        self.shape, self.keys, self.options = q.shape, k.shape[2], options
        self.dtype, self.kernel_size = kernel_size(self.op, self.form, q)
        self.size = -(-q.shape[-1] // MULTIPLE) * MULTIPLE
        self.q = self.laid_out(q)
        self.k, self.v = self.laid_out(k), self.laid_out(v)
        if strides(self.k) != strides(self.v):
            self.k, self.v = self.k.contiguous(), self.v.contiguous()
        self.biases = [self._bias(number, bias) for number, bias in enumerate(options.biases)]
        count = next(count for count in builders.BIASES[self.form] if count >= len(self.biases))
        while len(self.biases) < count:
            self.biases.append(q.new_zeros((1, 1, 1, 1, -(-self.keys // MULTIPLE) * MULTIPLE)))

    @property
    def length(self) -> int:
        """The number of queries."""
        return int(self.shape[2])

    @property
    def matrices(self) -> int:
        """The number of matrices of scores."""
        return int(self.shape[0] * self.shape[1] * self.shape[3])

    def laid_out(self, tensor: Tensor) -> Tensor:
        """Returns a tensor of heads with the padded size, whose rows begin at multiples of 16 numbers."""
        if self.size != tensor.shape[-1]:
            return pad(tensor, (0, self.size - tensor.shape[-1]))
        return tensor if _is_aligned(tensor) else tensor.clone(memory_format=torch.contiguous_format)

    def packed(self, tensor: Tensor) -> Tensor:
        """Returns a tensor of heads with the padded size and without gaps."""
        tensor = self.laid_out(tensor).contiguous()
        return tensor if tensor.data_ptr() % 16 == 0 else tensor.clone()

    def result(self, like: Tensor, given: Tensor | None = None) -> Tensor:
        """Returns memory for a result of the shape of `like` with the padded size: `given` if a kernel can write it."""
        if given is not None and _is_packed(given) and given.shape[-1] == self.size and given.dtype == like.dtype:
            return given
        return torch.empty((*like.shape[:-1], self.size), dtype=like.dtype, device=like.device)

    def unpadded(self, result: Tensor) -> Tensor:
        """Returns a result with the size of the call's heads, without gaps."""
        return result[..., : self.shape[-1]].contiguous()

    def _bias(self, number: int, bias: Tensor) -> Tensor:
        if self.options.multiplied >> number & 1:
            bias = torch.where(bias == 0, float("-inf"), 0.0).to(bias.dtype)
        missing = -self.keys % MULTIPLE or (0 if self.keys else MULTIPLE)  # strides of rows without keys are any
        if missing:
            return pad(bias, (0, missing))
        return bias if _is_aligned(bias) else bias.clone(memory_format=torch.contiguous_format)

    def launch(
        self,
        function: str,
        grid: Grid,
        *tensors: Tensor,
        lists: Sequence[Tensor] = (),
        sizes: Sequence[int] = (),
    ) -> None:
        """Launches a kernel of the core. `tensors` are those before the biases, `sizes` the integers after them."""
        numbers: list[float] = [*sizes, self.shape[0], self.shape[3], self.shape[1], self.length, self.keys, self.size]
        numbers += [self.options.block or 1, int(self.options.causal), self.options.scale]
        for tensor in (self.q, self.k, *self.biases):
            numbers += strides(tensor)
        name = builders.kernel_name(
            function, self.form, self.dtype, self.kernel_size, len(self.biases), self.options.block
        )
        builder = builders.EvoformerAttnBuilder if self.op == EVOFORMER else builders.SparseAttnBuilder
        registry.kernels_of(builder).launch(name, grid, *tensors, *self.biases, *lists, *numbers)

    def programs(self, count: int, own: str) -> Grid:
        """Returns the grid of a kernel of which each program has a tile of `count` queries or keys of a matrix."""
        return lambda constants: (-(-count // constants[own]) * self.matrices, 1, 1)

    def lists(self) -> list[Tensor]:
        """Returns the lists of the blocks of keys that queries see; nothing without lists."""
        if self.options.offsets is None or self.options.columns is None:
            return []
        return [self.options.offsets.contiguous(), self.options.columns.contiguous()]

    def transposed_lists(self) -> list[Tensor]:
        """Returns the lists of the blocks of queries that see a block of keys; nothing without lists."""
        if self.options.offsets is None or self.options.columns is None:
            return []
        offsets, columns = self.options.offsets.long(), self.options.columns.long()
        rows, key_blocks = self.length // self.options.block, self.keys // self.options.block
        every = torch.arange(offsets.numel() - 1, device=columns.device)
        numbers = every.repeat_interleave(offsets.diff(), output_size=columns.numel())
        ordered, order = (numbers // max(rows, 1) * key_blocks + columns).sort(stable=True)
        begins = torch.arange(self.shape[3] * key_blocks + 1, device=columns.device)
        members = (numbers % max(rows, 1))[order].to(torch.int32)
        return [torch.searchsorted(ordered, begins).to(torch.int32), members]


def strides(tensor: Tensor) -> list[int]:
    """Returns the strides of all dimensions but the last; 0 for those of one element."""
    return [stride if size > 1 else 0 for size, stride in zip(tensor.shape[:-1], tensor.stride()[:-1], strict=True)]


def _is_packed(tensor: Tensor) -> bool:
    return tensor.is_contiguous() and tensor.data_ptr() % 16 == 0


def _is_aligned(tensor: Tensor) -> bool:
    if tensor.data_ptr() % 16 or (tensor.stride(-1) != 1 and tensor.shape[-1] > 1):
        return False
    return not any(stride % MULTIPLE for stride in strides(tensor))


def kernel_size(op: str, form: str, q: Tensor) -> tuple[str, int]:
    """Returns the dtype and the head size of the kernel for these queries. Raises TypeError and ValueError."""
    dtype, sizes = registry.DTYPE_NAMES.get(q.dtype, ""), builders.SIZES[form]
    if q.dtype not in DTYPES:
        offered = " or ".join(map(str, DTYPES))
        raise TypeError(f"{op}: q is {q.dtype} on {q.device}, expected {offered}: convert it with .half()")
    size = next((size for size in sizes if 0 < q.shape[-1] <= size), None)
    if size is None:
        raise ValueError(f"{op}: q has heads of size {q.shape[-1]}, expected 1 to {builders.MOST_SIZE}")
    return dtype, size


DTYPES = (torch.float16, torch.bfloat16)


def check_shapes(op: str, q: Tensor, k: Tensor, v: Tensor, options: Options) -> None:
    """Raises ValueError or TypeError if the tensors of a call do not fit together."""
    if q.dim() != 5 or k.dim() != q.dim():
        expected = "[outer, inner, length, heads, size]"
        raise ValueError(f"{op}: q and k have shapes {tuple(q.shape)} and {tuple(k.shape)}, expected {expected}")
    outer, inner, length, heads, size = q.shape
    keys = k.shape[2]
    for name, tensor in (("k", k), ("v", v)):
        if tensor.shape != (outer, inner, keys, heads, size):
            expected = f"[{outer}, {inner}, {keys if name == 'v' else 'keys'}, {heads}, {size}]"
            raise ValueError(f"{op}: {name} has shape {tuple(tensor.shape)}, expected {expected}")
    most = builders.BIASES["dense" if options.offsets is None else "blocks"][-1]
    if len(options.biases) > most:
        raise ValueError(f"{op}: there are {len(options.biases)} biases, expected at most {most}: add some of them up")
    for number, bias in enumerate(options.biases):
        full = (outer, inner, heads, length)
        fits = bias.dim() == q.dim() and bias.shape[-1] == keys
        if not fits or any(has not in (1, scores) for has, scores in zip(bias.shape, full, strict=False)):
            text = f"biases[{number}] has shape {tuple(bias.shape)}, expected {(*full, keys)}"
            raise ValueError(f"{op}: {text}; each size but the last may be 1")
    for name, count in (("queries", length), ("keys", keys)):
        registry.check_count(op, f"the number of {name}", count)
    check_like_q(op, q, {"k": k, "v": v} | {f"biases[{i}]": bias for i, bias in enumerate(options.biases)})
    if options.offsets is not None:
        _check_lists(op, length, keys, heads, q.device, options)


def check_like_q(op: str, q: Tensor, tensors: Mapping[str, Tensor]) -> None:
    """Raises TypeError unless the tensors have q's dtype and device. The keys are their names."""
    for name, tensor in tensors.items():
        if tensor.dtype != q.dtype:
            raise TypeError(f"{op}: {name} is {tensor.dtype}, expected q's dtype, {q.dtype}: convert it with .to()")
        if tensor.device != q.device:
            raise TypeError(f"{op}: {name} is on {tensor.device}, expected {q.device}, where q is: move it with .to()")


def _check_lists(op: str, length: int, keys: int, heads: int, device: torch.device, options: Options) -> None:
    block, offsets, columns = options.block, options.offsets, options.columns
    if block not in (16, 32, 64, 128):
        raise ValueError(f"{op}: block is {block}, expected 16, 32, 64 or 128")
    for name, count in (("q", length), ("k", keys)):
        if count % block:
            raise ValueError(f"{op}: {name} has {count} tokens, expected a multiple of the block, {block}: pad it")
    expected = heads * (length // block) + 1
    if offsets is None or columns is None or offsets.numel() != expected:
        raise ValueError(
            f"{op}: offsets has {offsets.numel() if offsets is not None else 0} numbers, expected "
            f"{expected}: one for each row of blocks of each head, and the end"
        )
    for name, tensor in (("offsets", offsets), ("columns", columns)):
        if tensor.dtype != torch.int32:
            raise TypeError(f"{op}: {name} is {tensor.dtype}, expected torch.int32")
        if tensor.device != device:
            raise TypeError(f"{op}: {name} is on {tensor.device}, expected {device}, where q is: move it with .to()")


def forward(q: Tensor, k: Tensor, v: Tensor, options: Options, given: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Returns the result, without gaps, and the logarithms of the sums, float32 [outer, inner, heads, 2 * length].

    Behind the logarithms is what float32 cannot hold of them. The result is in `given` if a kernel can write it.
    """
    call = Call(q, k, v, options)
    outer, inner, length, heads, _ = q.shape
    out = call.result(q, given)
    log_sums = q.new_empty((outer, inner, heads, 2 * length), dtype=torch.float32)
    if log_sums.numel():
        grid = call.programs(length, "ROWS")
        call.launch("forward", grid, call.q, call.k, call.v, out, log_sums, lists=call.lists())
    return call.unpadded(out), log_sums


def backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    log_sums: Tensor,
    needs: Sequence[bool],
    options: Options,
    given: Sequence[Tensor | None] = (),
) -> list[Tensor]:
    """Returns the gradients of q, k and v, and of each bias in float32: without elements if it is not needed.

    A gradient is in its tensor of `given`, if there are some and a kernel can write it.
    """
    call = Call(q, k, v, options)
    if any(needs) and options.offsets is not None:
        raise ValueError(
            f"{call.op}: biases[{list(needs).index(True)}] requires a gradient, which lists of blocks do not give on a "
            "GPU: detach it, or use attention without lists"
        )
    given = given or [None] * (3 + len(needs))
    results = [call.result(like, tensor) for like, tensor in zip((q, k, v), given, strict=False)]
    totals = [
        _total(bias, tensor) if needed else torch.empty(0, dtype=torch.float32, device=q.device)
        for bias, needed, tensor in zip(options.biases, needs, given[3:], strict=True)
    ]
    if not call.matrices * call.length or not call.keys:
        return [call.unpadded(gradient.zero_()) for gradient in results] + [total.zero_() for total in totals]
    dout, out, log_sums = call.packed(dout), call.packed(out), log_sums.contiguous()
    deltas = torch.empty(log_sums.numel() // 2, dtype=torch.float32, device=q.device)
    tensors, (dq, dk, dv) = (call.q, call.k, call.v), results
    reading = (*tensors, out, dout, log_sums, deltas)
    call.launch("backward_queries", call.programs(call.length, "ROWS"), *reading, dq, lists=call.lists())
    inputs, key_grid = (*tensors, dout, log_sums, deltas), call.programs(call.keys, "KEYS")
    call.launch("backward_keys", key_grid, *inputs, dk, dv, lists=call.transposed_lists())
    for total in totals:
        if total.numel():
            sizes = total.shape[:4]
            call.launch("backward_bias", _bias_grid(total, call.length), *inputs, total, sizes=sizes)
    return [call.unpadded(gradient) for gradient in results] + totals


def _total(bias: Tensor, given: Tensor | None) -> Tensor:
    """Returns memory for the gradient of a bias: `given` if a kernel can write it."""
    if given is not None and given.dtype == torch.float32 and given.is_contiguous():
        return given
    return torch.empty(bias.shape, dtype=torch.float32, device=bias.device)


def _bias_grid(total: Tensor, length: int) -> Grid:
    outers, inners, heads, queries, keys = total.shape
    return lambda constants: (
        outers
        * inners
        * heads
        * (1 if queries == 1 else -(-length // constants["ROWS"]))
        * -(-keys // constants["KEYS"]),
        1,
        1,
    )


class Evoformer:
    """The kernels by the names and schemas of the host's op, which DeepSpeed's functions call."""

    @staticmethod
    def evoformer_attention_(
        out: Tensor,
        log_sums: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        biases: Sequence[Tensor],
        multiplied: int,
        scale: float,
    ) -> None:
        """Writes the result to `out`, and the logarithms of the sums to the first of `log_sums`."""
        options = Options(biases, None, None, 0, multiplied, scale, False)
        check_shapes(EVOFORMER, q, k, v, options)
        _check_results(q, {"out": (out, q.shape)})
        _check_sums(log_sums, q)
        result, sums = forward(q, k, v, options, out)
        _give(out, result)
        places = log_sums.shape[-1]
        kept = sums.shape[-1] if places >= sums.shape[-1] else q.shape[2]
        log_sums.view(*sums.shape[:3], places)[..., :kept].copy_(sums[..., :kept])

    @staticmethod
    def evoformer_attention_backward_(
        dq: Tensor,
        dk: Tensor,
        dv: Tensor,
        dbiases: Sequence[Tensor],
        dout: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        log_sums: Tensor,
        deltas: Tensor,
        biases: Sequence[Tensor],
        multiplied: int,
        scale: float,
    ) -> None:
        """Writes the gradients, of a bias unless it has no elements. `deltas` is not used."""
        options = Options(biases, None, None, 0, multiplied, scale, False)
        check_shapes(EVOFORMER, q, k, v, options)
        results = {"dq": (dq, q.shape), "dk": (dk, k.shape), "dv": (dv, k.shape)}
        _check_results(q, {"dout": (dout, q.shape), "out": (out, q.shape), **results})
        _check_sums(log_sums, q)
        _check_gradients(dbiases, biases, q)
        outer, inner, length, heads, _ = q.shape
        sums = log_sums.reshape(outer, inner, heads, log_sums.shape[-1])[..., : 2 * length]
        if sums.shape[-1] < 2 * length:  # DeepSpeed's tensor has no place for what float32 cannot hold
            sums = pad(sums[..., :length], (0, length))
        needs = [gradient.numel() > 0 for gradient in dbiases]
        given = (dq, dk, dv, *dbiases)
        gradients = backward(dout, q, k, v, out, sums, needs, options, given)
        for to, gradient in zip(given, gradients, strict=True):
            _give(to, gradient)


def _give(to: Tensor, result: Tensor) -> None:
    """Copies a result to where it is wanted, unless a kernel has written it there."""
    if to.data_ptr() != result.data_ptr():
        to.copy_(result)


def _check_results(q: Tensor, tensors: Mapping[str, tuple[Tensor, torch.Size]]) -> None:
    """Raises TypeError or ValueError unless tensors have q's dtype and device, and the shapes beside them."""
    check_like_q(EVOFORMER, q, {name: tensor for name, (tensor, _) in tensors.items()})
    for name, (tensor, shape) in tensors.items():
        if tensor.shape != shape:
            raise ValueError(f"{EVOFORMER}: {name} has shape {tuple(tensor.shape)}, expected {tuple(shape)}")


def _check_sums(sums: Tensor, q: Tensor) -> None:
    outer, inner, length, heads, _ = q.shape
    fits = sums.dim() > 0 and sums.shape[-1] >= length and sums.numel() == outer * inner * heads * sums.shape[-1]
    if not fits or sums.dtype != torch.float32 or sums.device != q.device:
        raise ValueError(
            f"{EVOFORMER}: log_sums is {sums.dtype} of shape {tuple(sums.shape)} on {sums.device}, expected "
            f"torch.float32 ({outer * inner}, {heads}, {length} or more) on {q.device}"
        )


def _check_gradients(gradients: Sequence[Tensor], biases: Sequence[Tensor], q: Tensor) -> None:
    for number, (gradient, bias) in enumerate(zip(gradients, biases, strict=True)):
        fits = gradient.shape == bias.shape and gradient.device == q.device
        if gradient.numel() and not fits:
            raise ValueError(
                f"{EVOFORMER}: bias_gradients[{number}] has shape {tuple(gradient.shape)} on {gradient.device}, "
                f"expected the bias's shape, {tuple(bias.shape)}, on {q.device}, or no element if it is not wanted"
            )


bind_sparse = registry.binding(
    {"sdd_segment": lambda layout, start_width: host_op("SparseAttnBuilder").sdd_segment(layout, start_width)}
)
