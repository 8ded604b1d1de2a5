"""Biases of channels for images whose channels lie together in memory. Each sum is rounded, as torch's are."""

import triton
import triton.language as tl


@triton.jit
def channel_bias_add(
    x, bias, other, other_bias, out, count, channels,
    OTHER: tl.constexpr, OTHER_BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Computes (x + bias) + (other + other_bias), without what is absent. One program per block of the whole image."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    lane = tl.arange(0, BLOCK)
    here = lane < count - start
    column = ((start % channels).to(tl.int32) + lane) % channels
    kind = out.dtype.element_ty
    value = tl.load(x + start + lane, mask=here, other=0.0).to(tl.float32)
    value += tl.load(bias + column, mask=here, other=0.0).to(tl.float32)
    if OTHER:
        second = tl.load(other + start + lane, mask=here, other=0.0).to(tl.float32)
        if OTHER_BIAS:
            second += tl.load(other_bias + column, mask=here, other=0.0).to(tl.float32)
            second = second.to(kind).to(tl.float32)
        value = value.to(kind).to(tl.float32) + second
    tl.store(out + start + lane, value.to(kind), mask=here)
