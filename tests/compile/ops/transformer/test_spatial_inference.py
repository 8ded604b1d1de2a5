"""Biases of channels beyond their contract: DeepSpeed's functions, torch's bytes, layouts, errors."""

import pytest
import torch

from opforge.builders.cpu.transformer.spatial_inference import SpatialInferenceBuilder
from opforge.ops.transformer import reference

pytestmark = [pytest.mark.compile, pytest.mark.usefixtures("builds_are_shared")]
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.fixture(scope="module")
def op():
    return SpatialInferenceBuilder().load()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("batch", "channels", "side"), [(0, 8, 4), (2, 15, 17)])
def test_images_with_deepspeeds_arguments_are_torchs_bit_for_bit(op, dtype, batch, channels, side):
    """The contract allows for another rounding of the sums."""
    random = torch.Generator().manual_seed(0)
    draw = lambda *sizes: torch.randn(sizes, generator=random).to(dtype)  # noqa: E731
    images = [draw(batch, channels, side, side).to(memory_format=torch.channels_last) for _ in range(2)]
    biases = [draw(channels) for _ in range(2)]
    calls = {
        op.nhwc_bias_add: (images[0], biases[0]),
        op.nhwc_bias_add_add: (images[0], biases[0], images[1]),
        op.nhwc_bias_add_bias_add: (images[0], biases[0], images[1], biases[1]),
    }
    for function, arguments in calls.items():
        out = function(*arguments)
        assert out.dtype == dtype and out.shape == images[0].shape
        assert out.is_contiguous(memory_format=torch.channels_last)
        rows = [tensor.permute(0, 2, 3, 1) if tensor.dim() == 4 else tensor for tensor in arguments]
        assert torch.equal(out, reference.channel_bias_add(*rows).permute(0, 3, 1, 2))


def test_rows_of_pixels_and_other_layouts(op):
    rows, bias = torch.randn(2, 9, 15), torch.randn(15)
    assert torch.equal(op.nhwc_bias_add(rows, bias), rows + bias)
    apart = torch.randn(15, 2)[:, 0]
    assert torch.equal(op.nhwc_bias_add_bias_add(rows, apart, rows, apart), (rows + apart) + (rows + apart))
    image = torch.randn(2, 3, 4, 5)  # not channels_last: the result is
    out = op.nhwc_bias_add(image, bias[:3])
    assert torch.equal(out, image + bias[:3, None, None]) and out.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda op: op.nhwc_bias_add(torch.ones(2, 3), torch.ones(3)),
            r"input has shape \(2, 3\), expected \[batch, channels, height, width\] in the memory format",
        ),
        (
            lambda op: op.nhwc_bias_add(torch.ones(2, 3, 4), torch.ones(3)),
            r"bias has shape \[3\], expected \[4\]: one for each channel of the input",
        ),
        (
            lambda op: op.nhwc_bias_add_add(torch.ones(2, 3, 4), torch.ones(4), torch.ones(2, 1, 4)),
            r"other has shape \[2, 1, 4\], expected \[2, 3, 4\], that of input",
        ),
        (
            lambda op: op.nhwc_bias_add(torch.ones(2, 3, 4), torch.ones(4).half()),
            "bias and input differ in dtype, expected one",
        ),
        (
            lambda op: op.nhwc_bias_add(torch.ones(2, 3, 4).double(), torch.ones(4).double()),
            "out is float64, expected float32, bfloat16 or float16",
        ),
        (
            lambda op: op.channel_bias_add_(torch.ones(4), torch.ones(4), torch.ones(4), None, torch.ones(4)),
            "other_bias is a tensor and other is None, expected both: pass other",
        ),
    ],
)
def test_errors_state_what_was_expected(op, call, message):
    with pytest.raises((RuntimeError, ValueError), match=message):
        call(op)
