"""The builders of DeepSpeed's smaller ops for transformers on a GPU: token dropping, channel biases, inference core."""

from __future__ import annotations

from collections.abc import Iterator

from opforge.builders.triton_op_builder.builder import TritonOpBuilder
from opforge.builders.triton_op_builder.kernel import Kernel
from opforge.builders.triton_op_builder.rows import DTYPES, HEAVY, Size

from .configs import with_warps

BLOCK = 1024
"""Elements of a program of the kernels that have no rows."""
ALIGNED = {"aligned": ":16", "any": ""}
"""Form of a kernel -> what it promises of addresses and numbers of columns."""
CHANNELS = {"bias": (False, False), "bias_add": (True, False), "bias_add_bias": (True, True)}
"""Sum of channel biases -> whether there is another image, and a bias of it."""
NORMS = {
    "layer_norm": (True, False, False),
    "post_layer_norm": (True, True, False),
    "pre_layer_norm": (True, True, True),
    "rms_norm": (False, False, False),
    "rms_pre_norm": (False, True, True),
}
"""Norm -> whether it has a mean, a residual, and an output for the sum."""
MASK_BITS = (8, 16, 32, 64)


def channel_kernels() -> Iterator[Kernel]:
    """Yields the kernels of channel biases."""
    for form, promise in ALIGNED.items():
        for dtype in DTYPES:
            for name, (other, other_bias) in CHANNELS.items():
                present = ("x", "bias", *(["other"] if other else []), *(["other_bias"] if other_bias else []), "out")
                arguments = dict.fromkeys(present, f"*{dtype}{promise}") | {"count": "i64", "channels": f"i32{promise}"}
                absent = dict.fromkeys({"other", "other_bias"} - set(present))
                constants = {"OTHER": other, "OTHER_BIAS": other_bias, "BLOCK": BLOCK, **absent}
                yield Kernel(f"{name}_{dtype}_{form}", "kernels/spatial.py", "channel_bias_add", arguments, constants)


def token_kernels() -> Iterator[Kernel]:
    """Yields the kernels of token dropping."""
    source = "kernels/random_ltd.py"
    for form, (bits, promise) in {"aligned": ("i32", ":16"), "any": ("i8", "")}.items():
        for name in ("gather", "scatter"):
            arguments = dict.fromkeys(("whole", "part"), f"*{bits}{promise}") | {"numbers": "*i32"}
            arguments |= {"tokens": "i32", "retained": "i32", "columns": f"i32{promise}"}
            strides = ("whole_batch", "whole_token", "part_batch", "part_token")
            arguments |= dict.fromkeys(strides, f"i64{promise}")
            constants = {"SCATTER": name == "scatter", "BLOCK": BLOCK}
            yield Kernel(f"{name}_{form}", source, "move_tokens", arguments, constants)
    for width in MASK_BITS:
        arguments = dict.fromkeys(("mask", "out"), f"*i{width}") | {"numbers": "*i32"}
        arguments |= dict.fromkeys(("tokens", "retained", "batch"), "i32")
        yield Kernel(f"mask_{width}", source, "gather_mask", arguments, {"BLOCK": BLOCK})


def _norm(name: str, dtype: str, size: Size) -> Kernel:
    centred, residual, total = NORMS[name]
    present = ["out", *(["total"] if total else []), "x", *(["residual"] if residual else []), "gamma"]
    present += ["beta"] if centred else []
    arguments = dict.fromkeys(present, size.pointer(dtype)) | {"columns": size.integer("i32"), "eps": "fp32"}
    # Longer blocks of the sums of two rows of floats spill a register on sm_90.
    block = min(size.block, 4096) if dtype == "fp32" and residual and not size.once else size.block
    constants = {"CENTRED": centred, "RESIDUAL": residual, "TOTAL": total, "ONCE": size.once, "BLOCK": block}
    absent = dict.fromkeys({"total", "residual", "beta"} - set(present))
    # With 8 warps, sixteen values of a thread, layer_norm of floats spills two registers on sm_80.
    warps = 16 if dtype == "fp32" and name == "layer_norm" and size.name == "4096" else size.warps
    return Kernel(f"{name}_{dtype}_{size.name}", SOURCE, "norm", arguments, {**constants, **absent}, warps)


SOURCE = "kernels/inference_core.py"


def core_kernels() -> Iterator[Kernel]:
    """Yields the kernels of norms and activations."""
    for dtype in DTYPES:
        yield from (_norm(name, dtype, size) for name in NORMS for size in HEAVY)
        for form, promise in ALIGNED.items():
            for bias in (True, False):
                pointer = f"*{dtype}{promise}"
                numbers = {"count": "i64", "columns": f"i32{promise}", "kind": "i32"}
                constants: dict[str, int | None] = {"BIAS": bias, "BLOCK": BLOCK}
                biases, absent = ({"bias": pointer}, {}) if bias else ({}, {"bias": None})
                suffix = f"{'biased' if bias else 'plain'}_{dtype}_{form}"
                # A program of the gated one reads twice as many elements.
                for function, tensors, warps in (("bias_activation", ("x",), 4), ("gated_activation", ("out", "x"), 8)):
                    arguments = dict.fromkeys(tensors, pointer) | biases | numbers
                    yield Kernel(f"{function}_{suffix}", SOURCE, function, arguments, {**constants, **absent}, warps)


class SpatialInferenceBuilder(TritonOpBuilder):
    """Biases of channels on a GPU; see opforge.ops.spatial."""

    name = "triton_spatial_inference"
    python_functions = "opforge.ops.triton.transformer.channels:bind"
    compiles_configs = False
    cases = "opforge.ops.cases.triton_ops:SPATIAL"
    kernels = with_warps(channel_kernels())


class RandomLTDBuilder(TritonOpBuilder):
    """Random layerwise token dropping on a GPU; see opforge.ops.random_ltd."""

    name = "triton_random_ltd"
    python_functions = "opforge.ops.random_ltd:bind"
    compiles_configs = False
    cases = "opforge.ops.cases.triton_ops:RANDOM_LTD"
    kernels = with_warps(token_kernels())


class InferenceCoreBuilder(TritonOpBuilder):
    """Norms with a residual, activations with a bias and products on a GPU; see docs/transformer-ops.md."""

    name = "triton_inference_core"
    python_functions = "opforge.ops.triton.transformer.inference_core:bind"
    compiles_configs = False
    cases = "opforge.ops.cases.triton_ops:INFERENCE_CORE"
    kernels = with_warps(core_kernels())
