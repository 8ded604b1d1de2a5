"""Cases of the Triton ops: functions that are compared and tuned on a GPU. `benchmarks.gpu` times them beside rivals.

The ops that the host has too are compared by the host's cases, with the functions of the GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from opforge.foundation.lazy_torch import torch
from opforge.ops.cases import attention, inference_core, optimizers, ragged, random_ltd, spatial
from opforge.ops.cases.case import Case, Place, Promise

if TYPE_CHECKING:
    from torch import Tensor

GPU = ("cuda",)
DTYPES = ("float32", "bfloat16", "float16")
HALF = ("bfloat16", "float16")
COLUMNS = (1024, 4096, 8192, 16384, 65536, 5001)
"""A row for each kernel of rows: four that are read once, one that is longer, and one whose rows are not aligned."""
SIZES = (1 << 24,)
"""Elements that are tuned. What is found counts for calls that are up to eight times smaller or larger."""
GROUPS = (128, 1024, 8192, 16384, 65536, 34)
EPS = 1e-5
PROMISES = (Promise.REPEATS, Promise.NAN)
"""Alignment and the place in a batch choose the kernel, and so the order of sums."""
UNPROMISED = (Promise.THREADS, Promise.ALIGNMENT, Promise.BATCH)
SUMS = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}
"""Sums over a row, or over all rows, in float32."""
Function = Callable[..., Any]


def _op(name: str, _loaded: Any) -> Function:
    """Returns an op of torch that the loaded op has bound."""
    found: Function = getattr(torch.ops.opforge_triton, name).default
    return found


def _case(
    name: str, op: str, inputs: Callable[[Place], Any], reference: Function, compared: tuple[int, int], **more: Any
) -> Case:
    columns = compared[1]
    values: dict[str, Any] = {
        "dtypes": DTYPES,
        "shapes": (compared,),
        "tolerance": SUMS,
        "refused_dtypes": ("int64", "float64"),
        "promises": PROMISES,
        "shape": lambda size: (max(1, size // columns), columns),
        "tuned": dict.fromkeys(DTYPES, SIZES),
        "devices": GPU,
        **more,
    }
    return Case(name, inputs, partial(_op, op), reference=reference, **values)


# -- rows --------------------------------------------------------------------------------------------------------------


def _rows(count: int, vectors: int, numbers: tuple[Any, ...], place: Place, weight: str = "") -> tuple[Any, ...]:
    """Returns matrices of rows, then vectors that are as long as a row, then numbers."""
    dtype = getattr(torch, weight) if weight else None
    matrices = [place.draw(*place.shape, seed=seed) for seed in range(count)]
    return *matrices, *(place.draw(place.shape[-1], seed=9 + seed, dtype=dtype) for seed in range(vectors)), *numbers


def _statistics(x: Tensor, centred: bool) -> tuple[Tensor, Tensor]:
    """Returns the means of rows, 0 unless `centred`, and the reciprocals of their deviations."""
    wide = x if x.dtype == torch.float64 else x.float()
    mean = wide.mean(-1) if centred else torch.zeros_like(wide[..., 0])
    return mean, ((wide - mean[..., None]).square().mean(-1) + EPS).rsqrt()


def _rms(x: Tensor, weight: Tensor, eps: float) -> Any:
    from opforge.ops.triton import references

    return references.rms_norm(x, weight, eps), _statistics(x, False)[1]


def _layer(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Any:
    from opforge.ops.triton import references

    return references.layer_norm(x, weight, bias, eps), *_statistics(x, True)


def _norm_backward(centred: bool, place: Place) -> tuple[Any, ...]:
    """Returns the gradient, rows, the parameters, and the statistics that the forward keeps."""
    dy, x, *parameters = _rows(2, 2 if centred else 1, (), place)
    means, rstds = _statistics(x, centred)
    return dy, x, *parameters, *([means] if centred else []), rstds


def _rms_backward(dy: Tensor, x: Tensor, weight: Tensor, rstds: Tensor) -> Any:
    normal, gradient = x * rstds[..., None], dy * weight
    dx = (gradient - normal * (gradient * normal).mean(-1, keepdim=True)) * rstds[..., None]
    return dx, (dy * normal).flatten(0, -2).sum(0)


def _layer_backward(dy: Tensor, x: Tensor, weight: Tensor, _bias: Tensor, means: Tensor, rstds: Tensor) -> Any:
    normal, gradient = (x - means[..., None]) * rstds[..., None], dy * weight
    dx = gradient - normal * (gradient * normal).mean(-1, keepdim=True) - gradient.mean(-1, keepdim=True)
    return dx * rstds[..., None], (dy * normal).flatten(0, -2).sum(0), dy.flatten(0, -2).sum(0)


def _of_columns(
    name: str, op: str, inputs: Callable[[Place], Any], reference: Function, **more: Any
) -> tuple[Case, ...]:
    return tuple(
        _case(f"{name} of rows of {columns}", op, inputs, reference, (3, columns), **more) for columns in COLUMNS
    )


def _wide(name: str, op: str, count: int, vectors: int, reference: Function, columns: int = 4096) -> Case:
    """Returns a case of a norm whose parameters are float32, and its rows not."""
    inputs = partial(_rows, count, vectors, (EPS,), weight="float32")
    halves = dict.fromkeys(HALF, SIZES)
    return _case(f"{name} with float32 weights", op, inputs, reference, (3, columns), dtypes=HALF, tuned=halves)


RMS_NORM = (
    *_of_columns("RMS norm", "rms_norm", partial(_rows, 1, 1, (EPS,)), _rms),
    *_of_columns("its gradient", "rms_norm_backward", partial(_norm_backward, False), _rms_backward),
    _wide("RMS norm", "rms_norm", 1, 1, _rms),
)
LAYER_NORM = (
    *_of_columns("layer norm", "layer_norm", partial(_rows, 1, 2, (EPS,)), _layer),
    *_of_columns("its gradient", "layer_norm_backward", partial(_norm_backward, True), _layer_backward),
    _wide("layer norm", "layer_norm", 1, 2, _layer),
)


def _softmax(x: Tensor) -> Tensor:
    return x.softmax(-1)


def _softmax_inputs(place: Place) -> tuple[Any, ...]:
    dy, x = _rows(2, 0, (), place)
    return dy, x.float().softmax(-1).to(x.dtype)


SOFTMAX = (
    *_of_columns("softmax", "softmax", partial(_rows, 1, 0, ()), _softmax),
    *_of_columns(
        "its gradient", "softmax_backward", _softmax_inputs, lambda dy, y: y * (dy - (dy * y).sum(-1, keepdim=True))
    ),
)


def _gelu(x: Tensor, approximate: str) -> Tensor:
    from opforge.ops.triton import references

    return references.gelu(x, approximate)


def _gelu_backward(dy: Tensor, x: Tensor, approximate: str) -> Tensor:
    own = x.detach().requires_grad_()
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(_gelu(own, approximate), own, dy)
    return gradient


def _swiglu(gate: Tensor, up: Tensor) -> Tensor:
    from opforge.ops.triton import references

    return references.swiglu(gate, up)


def _swiglu_backward(dy: Tensor, gate: Tensor, up: Tensor) -> Any:
    sigmoid = gate.sigmoid()
    return dy * up * sigmoid * (1 + gate * (1 - sigmoid)), dy * gate * sigmoid


WIDTHS = (4096, 5001)
GELU = tuple(
    _case(f"{name}, {form}, of rows of {columns}", op, partial(_rows, count, 0, (form,)), reference, (3, columns))
    for columns in WIDTHS
    for form in ("none", "tanh")
    for name, op, count, reference in (("GELU", "gelu", 1, _gelu), ("its gradient", "gelu_backward", 2, _gelu_backward))
)
SWIGLU = tuple(
    _case(f"{name} of rows of {columns}", op, partial(_rows, count, 0, ()), reference, (3, columns))
    for columns in WIDTHS
    for name, op, count, reference in (
        ("SwiGLU", "swiglu", 2, _swiglu),
        ("its gradient", "swiglu_backward", 3, _swiglu_backward),
    )
)

# -- codes -------------------------------------------------------------------------------------------------------------


def _quantize(x: Tensor, group: int, bits: int, symmetric: bool) -> Any:
    from opforge.ops.triton import references

    codes, scales, offsets = references.quantize(x, group, bits, symmetric)
    return _signed(codes.flatten(), 8 if symmetric else bits), scales, offsets


def _signed(codes: Tensor, bits: int) -> Tensor:
    """Returns codes as integers of 8 bits: those above 127 as the same bits."""
    return torch.where(codes > 127, codes - 256, codes).to(torch.int8) if bits == 8 else codes.to(torch.int8)


def _split(codes: Tensor, symmetric: bool) -> Tensor:
    """Returns codes of 4 bits, of which a byte has two, as integers."""
    whole = codes.to(torch.int32)
    halves = torch.stack((whole & 15, whole >> 4 & 15), -1).flatten()
    return (halves ^ 8) - 8 if symmetric else halves


def _quantizer(_loaded: Any) -> Function:
    """Returns quantize with one integer for each code: bytes that hold two cannot be compared by their difference."""

    def call(x: Tensor, group: int, bits: int, symmetric: bool) -> Any:
        codes, scales, offsets = _op("quantize", None)(x, group, bits, symmetric)
        return codes.flatten() if bits == 8 else _split(codes, symmetric).to(torch.int8), scales, offsets

    return call


def _codes(group: int, bits: int, symmetric: bool, place: Place) -> tuple[Any, ...]:
    """Returns codes, any bytes, and scales and offsets, of a call of dequantize."""
    random = torch.Generator().manual_seed(0)
    count = place.shape[0] * place.shape[1]
    codes = torch.randint(-128, 128, (count * bits // 8,), generator=random).to(torch.int8)
    params = [torch.rand(count // group, generator=random) for _ in range(2)]
    offsets = torch.empty(0) if symmetric else params[1]
    return *(tensor.to(place.device) for tensor in (codes, params[0], offsets)), bits, place.torch_dtype()


def _dequantize(codes: Tensor, scales: Tensor, offsets: Tensor, bits: int, dtype: Any) -> Tensor:
    from opforge.ops.triton import references

    symmetric = not offsets.numel()
    whole = codes.to(torch.int32)
    values = _split(codes, symmetric) if bits == 4 else whole if symmetric else whole & 255
    made = references.dequantize(values.view(scales.numel(), -1), scales, offsets).flatten()
    return made if scales.dtype == torch.float64 else made.to(dtype)


def _tuned(bits: int, symmetric: bool) -> dict[str, tuple[int, ...]]:
    """Returns the timed cases: all kinds of codes of bfloat16, and one of float32. A result is one small file."""
    return dict.fromkeys(DTYPES[:2] if symmetric and bits == 8 else ("bfloat16",), SIZES)


def _quantize_case(name: str, group: int, bits: int, symmetric: bool, **more: Any) -> Case:
    common: dict[str, Any] = {"promises": (Promise.REPEATS,), "refused_dtypes": (), "tuned": _tuned(bits, symmetric)}
    common["integers"] = 1  # where a rounding decides
    inputs = partial(_to_quantize, group, bits, symmetric)
    case = _case(f"{name} to {bits} bits, {_kind(symmetric)}", "", inputs, _quantize, **common, **more)
    return replace(case, function=_quantizer, ours=lambda inputs: partial(_op("quantize", None), *inputs.arguments))


def _kind(symmetric: bool) -> str:
    return "symmetric" if symmetric else "with offsets"


def _to_quantize(group: int, bits: int, symmetric: bool, place: Place) -> tuple[Any, ...]:
    """Returns the arguments of quantize. A `group` of 0 is all of them."""
    return place.draw(*place.shape), group or place.shape[1], bits, symmetric


def _group_cases(group: int, bits: int, symmetric: bool) -> tuple[Case, Case]:
    common: dict[str, Any] = {"compared": (4, group), "promises": (Promise.REPEATS,), "refused_dtypes": ()}
    common["tuned"] = _tuned(bits, symmetric)
    dequantize = _case(
        f"groups of {group} from {bits} bits, {_kind(symmetric)}",
        "dequantize",
        partial(_codes, group, bits, symmetric),
        _dequantize,
        **common,
    )
    return _quantize_case(f"groups of {group}", group, bits, symmetric, compared=(4, group)), dequantize


MODES: dict[tuple[int, bool], tuple[int, ...]] = {
    (8, True): GROUPS,
    **dict.fromkeys(((8, False), (4, True), (4, False)), (128, 8192, 65536)),
}
"""Bits, and whether there are no offsets -> the groups that are tuned."""
QUANTIZER = (
    *(
        case
        for (bits, symmetric), groups in MODES.items()
        for group in groups
        for case in _group_cases(group, bits, symmetric)
    ),
    *(
        _quantize_case("one group", 0, bits, symmetric, compared=(1, 40960), shape=lambda size: (1, size))
        for bits, symmetric in MODES
    ),
)

# -- optimizers --------------------------------------------------------------------------------------------------------


def _optimizer(cases: tuple[Case, ...], op: str) -> tuple[Case, ...]:
    """Returns the cases of the CUDA op of the same name, of which the first is tuned."""
    first, *others = (
        replace(
            case,
            function=case.function if callable(case.function) else partial(_op, op),
            devices=GPU,
            ours=None,
            sizes=(),
        )
        for case in cases
        if case.reference
    )
    return replace(first, tuned=dict.fromkeys(DTYPES, (1 << 24, 1 << 27))), *others


ADAM = _optimizer(optimizers.FUSED_ADAM, "fused_adam_")
LION = _optimizer(optimizers.FUSED_LION, "fused_lion_")
LAMB = _optimizer(optimizers.FUSED_LAMB, "fused_lamb_")

# -- what the host has too ---------------------------------------------------------------------------------------------


def _written(where: str, positions: tuple[int, ...], _loaded: Any) -> Function:
    """Returns a function of a module of ops.triton that writes its arguments, which then returns what it wrote."""
    run = resolve_name(f"opforge.ops.triton.{where}")

    def call(*arguments: Any, **keywords: Any) -> Any:
        run(*arguments, **keywords)
        return [arguments[position] for position in positions]

    return call


def _of_host(case: Case, where: str = "", positions: tuple[int, ...] = (0,), **changes: Any) -> Case:
    """Returns a case of the host's op for the function of the GPU's that has the same arguments.

    Without `where`, the host's case makes the function of the loaded op.
    """
    changed: Mapping[str, Any] = {
        "function": partial(_written, where, positions) if where else case.function,
        "outputs": tuple(position for position in positions if case.outputs),
        "changed": positions,
        "promises": tuple(promise for promise in case.promises if promise not in UNPROMISED),
        "batch": {},
        "compiled": False,
        "sizes": (),
        "devices": GPU,
        **changes,
    }
    return replace(case, **changed)


ATTENTION_LENGTHS = (256, 1024)
FORWARD = _of_host(
    attention.EVOFORMER[0],
    "attention:Evoformer.evoformer_attention_",
    (0, 1),
    dtypes=HALF,
    tuned=dict.fromkeys(HALF, ATTENTION_LENGTHS),
)


def _both_ways(place: Place) -> tuple[Any, ...]:
    """Returns the arguments of `attention.backward` with two biases that want a gradient."""
    _out, _sums, *tensors, biases, _multiplied, scale = attention.EVOFORMER[0].inputs(place)
    out, log_sums = _attended(tensors, biases, scale)
    # What float32 cannot hold of the logarithms lies behind them.
    sums = torch.cat((log_sums.float(), (log_sums - log_sums.float().double()).float()), -1)
    return place.draw(*place.shape, seed=7), *tensors, out.to(tensors[0].dtype), sums, biases, scale


def _attended(tensors: Sequence[Tensor], biases: Sequence[Tensor], scale: float) -> tuple[Tensor, Tensor]:
    from opforge.ops import reference

    q, k, v = (tensor.double() for tensor in tensors)
    return reference.attention(q, k, v, [bias.double() for bias in biases], scale=scale)


def _backward(_loaded: Any) -> Function:
    from opforge.ops.triton import attention as kernels

    def call(*arguments: Any) -> Any:
        dout, q, k, v, out, log_sums, biases, scale = arguments
        options = kernels.Options(biases, None, None, 0, 0, scale, False)
        return kernels.backward(dout, q, k, v, out, log_sums, (True, True), options)

    return call


def _attention_gradients(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Any:
    _out, _sums, biases, scale = rest
    leaves = [tensor.detach().double().requires_grad_() for tensor in (q, k, v, *biases)]
    with torch.enable_grad():
        out, _log_sums = _attended(leaves[:3], leaves[3:], scale)
        return torch.autograd.grad(out, leaves, dout.double())


GRADIENTS = Case(
    "gradients",
    _both_ways,
    _backward,
    reference=_attention_gradients,
    dtypes=HALF,
    shapes=((1, 2, 70, 2, 20),),
    tolerance=4e-2,
    refused_dtypes=(),
    strided=False,
    compiled=False,
    promises=(Promise.REPEATS,),
    shape=attention.EVOFORMER[0].shape,
    tuned=dict.fromkeys(HALF, ATTENTION_LENGTHS),
    devices=GPU,
)
EVOFORMER = (FORWARD, GRADIENTS)


def _sparse_forward(_loaded: Any) -> Function:
    from opforge.ops.triton import attention as kernels

    def call(_out: Tensor, _sums: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
        biases, multiplied, offsets, columns, block, scale = rest
        options = kernels.Options(biases, offsets, columns, block, multiplied, scale, False)
        return kernels.forward(q, k, v, options)[0]

    return call


def _sparse_reference(case: Case, *arguments: Any) -> Any:
    assert case.reference is not None
    return case.reference(*arguments)[0]


SPARSE = tuple(
    _of_host(
        case,
        positions=(),
        function=_sparse_forward,
        reference=partial(_sparse_reference, case),
        dtypes=HALF,
        promises=(Promise.REPEATS,),
        tuned=dict.fromkeys(HALF, (1024, 4096)),
    )
    for case in attention.SPARSE_RESULTS
)
TOKENS = {"float32": (512, 4096), "bfloat16": (512, 4096)}
RANDOM_LTD = (
    _of_host(random_ltd.RANDOM_LTD[0], "transformer.tokens:Tokens.tokens_gather_", tuned=TOKENS),
    _of_host(random_ltd.RANDOM_LTD[1], "transformer.tokens:Tokens.tokens_scatter_", tuned=TOKENS),
)
IMAGES = {"float32": (4096, 262144), "bfloat16": (4096, 262144)}
SPATIAL = tuple(
    _of_host(case, "transformer.channels:Channels.channel_bias_add_", tuned=IMAGES) for case in spatial.SPATIAL
)
ROWS = {"float32": (256, 16384), "bfloat16": (256, 16384)}
INFERENCE_CORE = tuple(
    _of_host(
        case,
        f"transformer.inference_core:{case.function}",
        tuple(range(len(case.outputs) or 1)),
        shape=lambda size: (size, inference_core.CHANNELS),
        tuned=ROWS,
    )
    for case in inference_core.INFERENCE_CORE
    if case.reference
)


def _ragged(name: str, function: str = "", positions: tuple[int, ...] = (0,), **changes: Any) -> Case:
    case = next(case for case in ragged.RAGGED_OPS if case.name == name)
    return _of_host(case, function and f"ragged:{function}", positions, **changes)


RAGGED_OPS = (
    _ragged("tokens from two experts", "moe_gather", (0, 4), outputs=(0,), tuned=TOKENS),
    _ragged("tokens to two experts", "moe_scatter", (0, 1, 2)),
    _ragged(f"{ragged.CHOSEN} of {ragged.CHOICES} experts", "top_k_gating", (0, 1, 2, 3), outputs=(1, 2, 3)),
    _ragged("embeddings of tokens and positions", "ragged_embed"),
    _ragged("the last token of each sequence", "gather_for_logits"),
    _ragged("keys and values to pages"),
    _ragged("keys and values to pages, rotated by frequencies", positions=(0, 1)),
    _ragged("keys and values to pages, rotated by a base", positions=(0, 1)),
    _ragged(
        "attention over pages",
        dtypes=HALF,
        shapes=((1, 1, 0, 1, 1, 16), (2, 2, 37, 2, 3, 32), (3, 5, 20, 2, 2, 16)),
        refused_dtypes=("float32", "float64"),
        # Sequences that are decoded: a launch counts the elements of the queries, and not the tokens before them.
        shape=lambda size: (size, 1, 1023, ragged.HEADS, ragged.GROUP, ragged.SIZE),
        tuned=dict.fromkeys(HALF, (4, 64)),
    ),
)
