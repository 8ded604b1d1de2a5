"""GELU, by the error function or approximated by tanh, and SwiGLU; forward and backward."""

import triton
import triton.language as tl


@triton.jit
def _normal_distribution(x, TANH: tl.constexpr):
    """Returns the factor that GELU multiplies x by, and the derivative of the factor."""
    if TANH:
        # sqrt(2 / pi) * (x + 0.044715 x^3). tanh(u) as 1 - 2 / (e^2u + 1) reaches its limits without inf / inf.
        inner = 0.7978845608028654 * x * (1.0 + 0.044715 * x * x)
        tanh = 1.0 - 2.0 / (tl.exp(2.0 * inner) + 1.0)
        slope = 0.5 * (1.0 - tanh * tanh) * 0.7978845608028654 * (1.0 + 3.0 * 0.044715 * x * x)
        return 0.5 * (1.0 + tanh), tl.where(tanh * tanh == 1.0, 0.0, slope)
    return 0.5 * (1.0 + tl.erf(x * 0.7071067811865476)), 0.3989422804014327 * tl.exp(-0.5 * x * x)


@triton.jit
def gelu_forward(x, y, count, TANH: tl.constexpr, BLOCK: tl.constexpr):
    """Computes gelu(x), one program per block."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    at = start + tl.arange(0, BLOCK)
    if start + BLOCK <= count:  # a mask would prevent wide loads
        value = tl.load(x + at).to(tl.float32)
        factor, _slope = _normal_distribution(value, TANH)
        tl.store(y + at, value * factor)
    else:
        here = at < count
        value = tl.load(x + at, mask=here, other=0.0).to(tl.float32)
        factor, _slope = _normal_distribution(value, TANH)
        tl.store(y + at, value * factor, mask=here)


@triton.jit
def gelu_backward(dy, x, dx, count, TANH: tl.constexpr, BLOCK: tl.constexpr):
    """Computes the gradient of gelu, one program per block."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    at = start + tl.arange(0, BLOCK)
    if start + BLOCK <= count:
        value = tl.load(x + at).to(tl.float32)
        factor, slope = _normal_distribution(value, TANH)
        tl.store(dx + at, tl.load(dy + at).to(tl.float32) * (factor + value * slope))
    else:
        here = at < count
        value = tl.load(x + at, mask=here, other=0.0).to(tl.float32)
        factor, slope = _normal_distribution(value, TANH)
        tl.store(dx + at, tl.load(dy + at, mask=here, other=0.0).to(tl.float32) * (factor + value * slope), mask=here)


@triton.jit
def swiglu_forward(gate, up, y, columns, gate_stride, up_stride, y_stride, BLOCK: tl.constexpr):
    """Computes y = gate * sigmoid(gate) * up, one program per row and block of columns."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = at < columns
    g = tl.load(gate + row * gate_stride + at, mask=here, other=0.0).to(tl.float32)
    u = tl.load(up + row * up_stride + at, mask=here, other=0.0).to(tl.float32)
    tl.store(y + row * y_stride + at, g / (1.0 + tl.exp(-g)) * u, mask=here)


@triton.jit
def swiglu_backward(
    dy,
    gate,
    up,
    dgate,
    dup,
    columns,
    dy_stride,
    gate_stride,
    up_stride,
    dgate_stride,
    dup_stride,
    BLOCK: tl.constexpr,
):
    """Computes the gradients of gate and up, one program per row and block of columns."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = at < columns
    d = tl.load(dy + row * dy_stride + at, mask=here, other=0.0).to(tl.float32)
    g = tl.load(gate + row * gate_stride + at, mask=here, other=0.0).to(tl.float32)
    u = tl.load(up + row * up_stride + at, mask=here, other=0.0).to(tl.float32)
    sigmoid = 1.0 / (1.0 + tl.exp(-g))
    # The factors that may be 0 come first: of a large gate and gradient the product could be inf, and inf * 0 is NaN.
    tl.store(dgate + row * dgate_stride + at, sigmoid * (1.0 + g * (1.0 - sigmoid)) * u * d, mask=here)
    tl.store(dup + row * dup_stride + at, sigmoid * g * d, mask=here)
