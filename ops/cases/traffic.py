"""The bytes that a call of each function must move at least.

`opforge bench`, the GPU benchmarks and their roofline compute bandwidth from these numbers. Tests count what the
compiled kernels move, and compare it with them; docs/transformer-ops.md states them.
"""

from __future__ import annotations

from typing import NamedTuple

SCALE = 4
"""Bytes of the scale of a group."""


class Traffic(NamedTuple):
    """The reads and writes of a function, as a multiple of the elements of its first input.

    What all rows share, such as weights of a norm, is not counted: caches serve it.
    """

    read: float
    written: float

    def amount(self, elements: int, itemsize: int) -> float:
        """Returns the bytes of a call whose first input has so many elements of so many bytes."""
        return (self.read + self.written) * elements * itemsize


TRAFFIC: dict[str, Traffic] = {
    "bias_activation": Traffic(1, 1),
    "gated_activation": Traffic(1, 0.5),
    "layer_norm": Traffic(1, 1),
    "rms_norm": Traffic(1, 1),
    "pre_layer_norm": Traffic(2, 2),
    "rms_pre_norm": Traffic(2, 2),
    "post_layer_norm": Traffic(2, 1),
    "nhwc_bias_add": Traffic(1, 1),
    "nhwc_bias_add_add": Traffic(2, 1),
    "nhwc_bias_add_bias_add": Traffic(2, 1),
    "token_gather": Traffic(1, 1),
    "token_scatter_": Traffic(1, 1),
    "linear_kv_copy": Traffic(2, 2),
    "softmax": Traffic(1, 1),
    "gelu": Traffic(1, 1),
    "swiglu": Traffic(2, 1),
    "layer_norm backward": Traffic(2, 1),
    "rms_norm backward": Traffic(2, 1),
    "softmax backward": Traffic(2, 1),
    "gelu backward": Traffic(2, 1),
    "swiglu backward": Traffic(3, 2),
}
"""Function -> its traffic. Of gathers and scatters the retained tokens count, of the cache the keys.

Backward reads the gradient of the result, with the inputs or the result, and writes a gradient for each input.
"""


def of_experts(count: int) -> Traffic:
    """Returns the traffic of `moe_gather` for `count` experts of a token, in elements of the result."""
    return Traffic(count, 1)


def quantized(elements: int, itemsize: int, bits: int, group: int) -> float:
    """Returns the bytes of values, their codes, and a float32 scale for each group: of either direction."""
    return elements * itemsize + elements * bits / 8 + elements / group * SCALE


def attention(outer: int, length: int, heads: int, size: int, itemsize: int) -> float:
    """Returns the bytes of q, k, v, the result, and a float32 logarithm of sums for each query, without biases."""
    rows = outer * length * heads
    return 4 * rows * size * itemsize + 4 * rows


def decoding(tokens: int, heads: int, size: int, itemsize: int) -> float:
    """Returns the bytes of the keys and values of `tokens` tokens."""
    return 2 * tokens * heads * size * itemsize
