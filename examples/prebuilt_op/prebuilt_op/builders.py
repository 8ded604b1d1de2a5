"""The op as data."""

from opforge import OpBuilder


class SquaredReluBuilder(OpBuilder):
    name = "prebuilt_squared_relu"
    sources = ("csrc/squared_relu.cpp",)
