"""The builder of the channel biases of images."""

from __future__ import annotations

from opforge.builders.base import OpBuilder


class SpatialInferenceBuilder(OpBuilder):
    """Biases of channels in one pass: nhwc_bias_add, nhwc_bias_add_add, nhwc_bias_add_bias_add.

    See opforge.ops.spatial for the functions, ops/csrc/spatial/spatial.cpp for the schema.
    """

    name = "spatial_inference"
    sources = ["spatial/spatial.cpp"]
    python_functions = "opforge.ops.spatial:functions"
    extra_compile_args = ["-fno-math-errno", "-fno-trapping-math"]
