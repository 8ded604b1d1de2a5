"""Cases of the core ops of inference: rows of 4096 channels, beside torch's operators and a copy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from opforge.foundation.lazy_torch import torch
from opforge.ops.cases.case import ORDINARY, TIME, Call, Case, MissingError, Place, Prepared, Promise
from opforge.ops.cases.memory import COPY, copied
from opforge.ops.cases.rivals import COMPILED, DEEPSPEED, TORCH, compiled
from opforge.ops.cases.traffic import TRAFFIC

if TYPE_CHECKING:
    from torch import Tensor

CHANNELS, ODD, EPS = 4096, 4095, 1e-5
ROWS = (16, 256, 4096)
PRODUCTS = 64
"""Channels of a product."""
GOAL = 0.8  # for what no cache holds
SHAPES = ((0, 8), (1, 1), (3, 15), (2, 3, 17), (2, 1025))
SHAPES_OF_GATES = ((0, 8), (1, 2), (3, 30), (2, 3, 34), (2, 1026))
"""Half of the channels are the gate's."""
GELU, RELU, SILU, NONE = 0, 1, 2, 6
"""Numbers of activations."""
GATED = {GELU: 3, RELU: 4, SILU: 5}
"""Number of an activation -> that of the gate which applies it."""


def amount(function: str, channels: int, size: int, itemsize: int) -> float:
    """Returns the bytes that a function must move for `size` rows."""
    return TRAFFIC[function].amount(size * channels, itemsize)


def _activation(number: int) -> Callable[[Tensor], Tensor]:
    from torch.nn import functional

    functions: dict[int, Callable[[Tensor], Tensor]] = {
        GELU: partial(functional.gelu, approximate="tanh"),
        RELU: functional.relu,
        SILU: functional.silu,
        NONE: lambda rows: rows,
    }
    return functions[number]


def _activated(rows: Tensor, bias: Tensor, number: int) -> Tensor:
    return _activation(number)(rows + bias)


def _gated(_out: Tensor, rows: Tensor, bias: Tensor, number: int) -> Tensor:
    from opforge.ops.transformer import reference

    (activation,) = (own for own, gate in GATED.items() if gate == number)
    return reference.gated_activation(rows, bias, _activation(activation))


def _layer_norm(_out: Tensor, *arguments: Any) -> Tensor:
    from opforge.ops.transformer import reference

    return reference.layer_norm(*arguments)


def _rms_norm(_out: Tensor, *arguments: Any) -> Tensor:
    from opforge.ops.transformer import reference

    return reference.rms_norm(*arguments)


def _pre_layer_norm(_sum: Tensor, out: Tensor, rows: Tensor, residual: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return rows + residual, _layer_norm(out, rows + residual, *rest)


def _post_layer_norm(out: Tensor, rows: Tensor, residual: Tensor, *rest: Any) -> Tensor:
    return _layer_norm(out, rows + residual, *rest)


def _rms_pre_norm(out: Tensor, _sum: Tensor, rows: Tensor, residual: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return _rms_norm(out, rows + residual, *rest), rows + residual


def _inputs(outs: int, rows: int, vectors: int, number: float, place: Place) -> tuple[Any, ...]:
    """Returns memory for results, tensors of rows, vectors of their channels, and a number."""
    drawn = [place.draw(*place.shape, seed=seed) for seed in range(rows)]
    rest = [place.draw(place.shape[-1], seed=10 + seed) for seed in range(vectors)]
    return *(torch.zeros_like(drawn[0]) for _ in range(outs)), *drawn, *rest, number


def _inputs_of_a_gate(number: int, place: Place) -> tuple[Any, ...]:
    rows, bias = place.draw(*place.shape), place.draw(place.shape[-1], seed=2)
    return torch.zeros_like(rows[..., ::2].contiguous()), rows, bias, number


def _torch_activation(inputs: Prepared) -> Call:
    rows, bias, number = inputs.arguments
    activation = _activation(number)
    return lambda: rows.copy_(activation(rows + bias))


def _compiled_activation(inputs: Prepared) -> Call:
    rows, bias, number = inputs.arguments
    activation = _activation(number)

    def activate(rows: Tensor, bias: Tensor) -> Tensor:
        return rows.copy_(activation(rows + bias))

    call = compiled(inputs.place, activate)
    return lambda: call(rows, bias)


def _torch_rms(inputs: Prepared) -> Call:
    from torch.nn import functional

    _out, rows, gamma, eps = inputs.arguments
    return lambda: functional.rms_norm(rows, gamma.shape, gamma, eps)


def _compiled_rms(inputs: Prepared) -> Call:
    from torch.nn import functional

    out, rows, gamma, eps = inputs.arguments

    def rms(out: Tensor, rows: Tensor, gamma: Tensor) -> Tensor:
        return out.copy_(functional.rms_norm(rows, gamma.shape, gamma, eps))

    call = compiled(inputs.place, rms)
    return lambda: call(out, rows, gamma)


def _torch_pre_norm(inputs: Prepared) -> Call:
    from torch.nn import functional

    _sum, _out, rows, residual, gamma, beta, eps = inputs.arguments
    return lambda: functional.layer_norm(rows + residual, gamma.shape, gamma, beta, eps)


def _torch_gate(inputs: Prepared) -> Call:
    _out, rows, bias, _number = inputs.arguments
    activation = _activation(SILU)

    def gate() -> Tensor:
        total: Tensor = rows + bias
        return activation(total[..., ::2]) * total[..., 1::2]

    return gate


def _deepspeed(_inputs: Prepared) -> Call:
    raise MissingError("its inference ops need a GPU")


def _compared(
    name: str,
    function: str,
    inputs: Callable[[Place], Any],
    reference: Callable[..., Any],
    rows: int,
    outputs: tuple[str, ...] = (),
    **timed: Any,
) -> Case:
    """Returns a case whose first `rows` arguments are computed row by row."""
    return Case(
        name,
        inputs,
        function,
        reference=reference,
        dtypes=("float32", "bfloat16", "float16"),
        shapes=SHAPES_OF_GATES if function == "gated_activation" else SHAPES,
        outputs=outputs,
        refused_dtypes=("int64", "float64"),
        strided=False,
        promises=(*ORDINARY, Promise.BATCH),
        batch=dict.fromkeys(range(rows), 0),
        **timed,
    )


def _timed(
    function: str, channels: int, sizes: tuple[int, ...], rivals: dict[str, Any], **others: Any
) -> dict[str, Any]:
    return {
        "sizes": sizes,
        "shape": lambda size: (size, channels),
        "size_unit": "rows",
        "timed_dtypes": ("float32", "bfloat16"),
        "rivals": {**rivals, DEEPSPEED: _deepspeed, COPY: copied},
        "baseline": (COPY,),
        "amount": partial(amount, function, channels),
        **others,
    }


def _odd(function: str, rivals: dict[str, Any], goals: dict[str, float]) -> dict[str, Any]:
    """Returns the timed calls for rows that are not whole cache lines."""
    return _timed(function, ODD, ROWS[1:], rivals, quick=(), goals=goals)


GOALS = {"baseline": {ROWS[-1]: GOAL}}
RMS_NORM = ("rms_norm", partial(_inputs, 1, 1, 1, EPS))
INFERENCE_CORE = (
    _compared(
        "RMS norm",
        *RMS_NORM,
        _rms_norm,
        2,
        ("norm_output",),
        **_timed("rms_norm", CHANNELS, ROWS, {TORCH: _torch_rms}, goals=GOALS),
    ),
    _compared(
        "layer norm of a sum",
        "pre_layer_norm",
        partial(_inputs, 2, 2, 2, EPS),
        _pre_layer_norm,
        4,
        ("res_output", "norm_output"),
        **_timed("pre_layer_norm", CHANNELS, ROWS, {TORCH: _torch_pre_norm}, goals=GOALS),
    ),
    _compared(
        "bias and GELU",
        "bias_activation",
        partial(_inputs, 0, 1, 1, GELU),
        _activated,
        1,
        **_timed("bias_activation", CHANNELS, ROWS, {TORCH: _torch_activation}),
    ),
    _compared(
        "bias and SwiGLU",
        "gated_activation",
        partial(_inputs_of_a_gate, GATED[SILU]),
        _gated,
        2,
        ("output",),
        **_timed("gated_activation", CHANNELS, ROWS, {TORCH: _torch_gate}),
    ),
    _compared(
        f"bias and SiLU, {ODD} channels",
        "bias_activation",
        partial(_inputs, 0, 1, 1, SILU),
        _activated,
        1,
        **_odd("bias_activation", {TORCH: _torch_activation, COMPILED: _compiled_activation}, {COMPILED: 1.1}),
    ),
    Case(
        f"RMS norm, {ODD} channels",
        RMS_NORM[1],
        RMS_NORM[0],
        dtypes=("float32", "bfloat16"),
        **_odd("rms_norm", {TORCH: _torch_rms, COMPILED: _compiled_rms}, {}),
    ),
    _compared("layer norm", "layer_norm", partial(_inputs, 1, 1, 2, EPS), _layer_norm, 2, ("output",)),
    _compared(
        "layer norm of a sum alone", "post_layer_norm", partial(_inputs, 1, 2, 2, EPS), _post_layer_norm, 3, ("output",)
    ),
    _compared(
        "RMS norm of a sum",
        "rms_pre_norm",
        partial(_inputs, 2, 2, 1, EPS),
        _rms_pre_norm,
        4,
        ("norm_output", "residual_output"),
    ),
    *(
        _compared(f"bias and {name}", "bias_activation", partial(_inputs, 0, 1, 1, number), _activated, 1)
        for name, number in (("ReLU", RELU), ("no activation", NONE))
    ),
    *(
        _compared(
            f"bias and gated {name}",
            "gated_activation",
            partial(_inputs_of_a_gate, GATED[number]),
            _gated,
            2,
            ("output",),
        )
        for name, number in (("GELU", GELU), ("ReLU", RELU))
    ),
)


def _inputs_of_a_product(place: Place) -> tuple[Any, ...]:
    """Returns rows, weights, and the weight of their norm."""
    channels = place.shape[-1]
    return place.draw(*place.shape), place.draw(PRODUCTS, channels, seed=2), place.draw(channels, seed=3)


def _products(inputs: Prepared) -> Call:
    rows, weight, gamma = inputs.arguments
    suffix = {torch.float32: "fp32", torch.bfloat16: "bf16"}[rows.dtype]
    function, none = getattr(inputs.loaded, f"rms_qkv_gemm_{suffix}"), torch.empty(1)
    return lambda: function(rows, weight, none, gamma, EPS, False, True)


def _torch_products(inputs: Prepared) -> Call:
    from torch.nn import functional

    rows, weight, gamma = inputs.arguments
    return lambda: functional.rms_norm(rows, gamma.shape, gamma, EPS) @ weight.t()


def _chosen(place: Place) -> tuple[Any, ...]:
    """Returns which tokens each of two slots of three experts takes, and the tokens."""
    tokens, channels = place.shape
    return place.draw(tokens, 3, 2), place.draw(tokens, channels, seed=2)


def _relu(rows: Tensor, bias: Tensor) -> Tensor:
    return _activated(rows, bias, RELU)


INFERENCE = (
    Case(
        "product of an RMS norm",
        _inputs_of_a_product,
        sizes=(64, 256),
        shape=lambda size: (size, CHANNELS),
        size_unit="rows",
        dtypes=("float32", "bfloat16"),
        ours=_products,
        rivals={TORCH: _torch_products, DEEPSPEED: _deepspeed},
        baseline=(TORCH,),
        amount=lambda size, itemsize: itemsize * (2 * size * CHANNELS + CHANNELS * PRODUCTS + size * PRODUCTS),
        operations=lambda size: 2.0 * size * CHANNELS * PRODUCTS,
        unit=TIME,
        quick=(64,),
    ),
    Case(
        "bias and ReLU, by DeepSpeed's name",
        lambda place: (place.draw(*place.shape), place.draw(place.shape[-1], seed=2)),
        lambda loaded: lambda rows, bias: loaded.bias_relu_fp32(rows, bias),
        reference=_relu,
        shapes=((1, 1), (3, 15), (5, 1025)),
        changed=(0,),  # it works in place, which its schema does not say
        strided=False,
    ),
    Case(
        "tokens of experts",
        _chosen,
        "einsum_sec_sm_ecm_fp32",
        reference=lambda chosen, tokens: torch.einsum("sec,sm->ecm", chosen, tokens),
        shapes=((1, 1), (7, 33)),
        tolerance=1e-5,
        refused_dtypes=(),
        # torch's product depends on threads and addresses
        promises=(Promise.REPEATS, Promise.NAN, Promise.INFINITIES, Promise.ACCURACY),
    ),
)
