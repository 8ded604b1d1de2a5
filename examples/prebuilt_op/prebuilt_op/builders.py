"""The op's declaration."""

from opforge import OpBuilder


class SquaredReluBuilder(OpBuilder):
    name = "prebuilt_squared_relu"
    sources = ("csrc/squared_relu.cpp",)
