"""The builder of random layerwise token dropping."""

from __future__ import annotations

from opforge.builders.base import OpBuilder


class RandomLTDBuilder(OpBuilder):
    """Random layerwise token dropping: token_sort_, token_gather, token_scatter_, mask_gather_bert, mask_gather_gpt.

    See opforge.ops.random_ltd for the functions, ops/csrc/random_ltd/random_ltd.cpp for the schemas.
    """

    name = "random_ltd"
    sources = ["random_ltd/random_ltd.cpp"]
    python_functions = "opforge.ops.random_ltd:functions"
