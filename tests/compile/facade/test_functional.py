"""torch::nn::functional on the facade gives what Python's gives, with gradients; tensors print as torch's."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from facade.compiling import compile_library
from facade.module_record import load

NAME = "facade_functional"
SOURCE = Path(__file__).parents[2] / "support" / "facade" / "functional_source.cpp"
torch.manual_seed(0)
X, W, G = torch.randn(2, 3, 6, 5), torch.randn(4, 3, 3, 2), torch.rand(2, 3, 4, 2) * 2.4 - 1.2
ONES = torch.ones(4)
CALLS: dict[str, Callable[..., Any]] = {
    "pad": lambda x: F.pad(x, (1, 2)),
    "pad_value": lambda x: F.pad(x, (1, 1, 0, 1), value=2.5),
    "pad_reflect": lambda x: F.pad(x, (1, 1, 2, 1), mode="reflect"),
    "pad_circular": lambda x: F.pad(x, (1, 1, 1, 1), mode="circular"),
    "pad_replicate": lambda x: F.pad(x, (0, 2, 1, 0), mode="replicate"),
    "conv1d": lambda x, w: F.conv1d(x.flatten(2), w.flatten(2), stride=2, padding=1),
    "conv2d": F.conv2d,
    "conv2d_all": lambda x, w: F.conv2d(x, w, ONES, stride=(2, 1), padding=1, dilation=(1, 2)),
    "conv2d_same": lambda x, w: F.conv2d(x, w, padding="same"),
    "conv3d": lambda x, w: F.conv3d(x.unsqueeze(2), w.unsqueeze(2), padding=(0, 1, 1)),
    "conv_transpose1d": lambda x, w: F.conv_transpose1d(x.flatten(2), w.flatten(2).transpose(0, 1), stride=2),
    "conv_transpose2d": lambda x, w: F.conv_transpose2d(
        x, w.transpose(0, 1), stride=2, padding=1, output_padding=(0, 1)
    ),
    "conv_transpose3d": lambda x, w: F.conv_transpose3d(x.unsqueeze(2), w.unsqueeze(2).transpose(0, 1)),
    "nearest": lambda x: F.interpolate(x, (7, 3)),
    "nearest_exact": lambda x: F.interpolate(x, scale_factor=(1.5, 2.0), mode="nearest-exact"),
    "linear_size": lambda x: F.interpolate(x.flatten(2), (9,), mode="linear", align_corners=True),
    "bilinear": lambda x: F.interpolate(x, scale_factor=(2.3, 1.7), mode="bilinear", align_corners=False),
    "bilinear_again": lambda x: F.interpolate(
        x, scale_factor=(2.3, 1.7), mode="bilinear", align_corners=False, recompute_scale_factor=True
    ),
    "bicubic": lambda x: F.interpolate(x, (3, 8), mode="bicubic", align_corners=True),
    "antialias": lambda x: F.interpolate(x, (3, 2), mode="bilinear", align_corners=False, antialias=True),
    "trilinear": lambda x: F.interpolate(x.unsqueeze(2), (2, 3, 8), mode="trilinear", align_corners=False),
    "grid_sample": lambda x, g: F.grid_sample(x, g, align_corners=False),
    "grid_sample_all": lambda x, g: F.grid_sample(x, g, "nearest", "reflection", True),
    "softmax": lambda x: F.softmax(x, 1),
    "softmax_dtype": lambda x: F.softmax(x, -1, dtype=torch.float64),
    "log_softmax": lambda x: F.log_softmax(x, 1),
    "linear": lambda x, w: F.linear(x[..., :2], w.flatten(0, 2)),
    "relu": F.relu,
    "silu": F.silu,
    "mish": F.mish,
    "logsigmoid": F.logsigmoid,
    "normalize": F.normalize,
    "normalize_all": lambda x: F.normalize(x, p=1, dim=-1),
    "avg_pool2d": lambda x: F.avg_pool2d(x, 2),
    "avg_pool2d_all": lambda x: F.avg_pool2d(x, (3, 2), stride=1, padding=1, count_include_pad=False),
    "max_pool2d": lambda x: F.max_pool2d(x, 2, stride=(1, 2)),
    "max_pool1d": lambda x: F.max_pool1d(x.flatten(2), 3, ceil_mode=True),
    "unfold": lambda x: F.unfold(x, (2, 3), padding=1, stride=2),
    "mse_loss": lambda x: F.mse_loss(x, x * 2),
    "l1_loss": lambda x: F.l1_loss(x, x * 2, reduction="sum"),
}


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    library = tmp_path_factory.mktemp("functional") / f"{NAME}.so"
    compile_library("facade", NAME, [SOURCE], library, ["-O0"])
    return load(library, NAME)


def _with_gradients(function: Callable[..., Any], given: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    leaves = [part.clone().requires_grad_() for part in given]
    result = function(*leaves)
    weights = torch.linspace(0.5, 1.5, result.numel(), dtype=result.dtype).reshape(result.shape)
    return [result.detach(), *torch.autograd.grad(result, leaves, weights)]


@pytest.mark.parametrize("name", CALLS)
def test_a_function_gives_what_pythons_gives(module: ModuleType, name: str) -> None:
    function = CALLS[name]
    second = {"grid_sample": (G,), "grid_sample_all": (G,)}.get(
        name, (W,) if "conv" in name or name == "linear" else ()
    )
    ours, theirs = (_with_gradients(call, (X, *second)) for call in (getattr(module, name), function))
    for mine, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, expected, rtol=0, atol=1e-6)


def test_classes_are_counted_as_pythons(module: ModuleType) -> None:
    index = torch.tensor([0, 3, 1])
    assert torch.equal(module.one_hot(index), F.one_hot(index, 4))


def test_a_size_and_a_factor_are_one_too_many(module: ModuleType) -> None:
    with pytest.raises(RuntimeError, match="only one of size or scale_factor should be defined"):
        module.of_both(X)
    with pytest.raises(RuntimeError, match="either size or scale_factor should be defined"):
        module.of_neither(X)


def test_a_tensor_is_printed_as_torchs_own_print_does(module: ModuleType) -> None:
    assert module.text(torch.tensor([[1, 2], [3, 40]])) == (
        "  1   2\n  3  40\n[ CPULongType{2,2} ]; [ Tensor (undefined) ]"
    )
    assert module.text(torch.tensor([0.5, 1.25])) == " 0.5000\n 1.2500\n[ CPUFloatType{2} ]; [ Tensor (undefined) ]"


def test_a_source_asks_whether_there_is_cuda(module: ModuleType) -> None:
    assert module.cuda() == (torch.cuda.is_available(), torch.cuda.device_count())
