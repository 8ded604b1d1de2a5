"""The builder of the core ops of DeepSpeed's second inference engine."""

from __future__ import annotations

from opforge.builders.base import OpBuilder


class InferenceCoreBuilder(OpBuilder):
    """Activations, norms with a residual, and matrix products: bias_activation, rms_pre_norm, blas_linear and others.

    See ops/csrc/inference_core/inference_core.cpp for the schemas, opforge.ops.inference_core for the
    products.
    """

    name = "inference_core_ops"
    sources = ["inference_core/inference_core.cpp"]
    python_functions = "opforge.ops.inference_core:functions"
    extra_compile_args = ["-fno-math-errno", "-fno-trapping-math"]


class InferenceBuilder(InferenceCoreBuilder):
    """The functions of DeepSpeed's first inference engine that keep nothing between calls, over the same library.

    See opforge.ops.inference for the functions.
    """

    python_functions = "opforge.ops.inference:functions"
