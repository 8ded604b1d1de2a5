"""Mixed precision: torch.amp for the accelerator's device."""

from __future__ import annotations

import pytest
import torch
from support.devices import vendor_modules

from opforge.accelerator.devices.cpu import CPUAccelerator
from opforge.accelerator.devices.null import NullAccelerator


def test_operations_inside_the_context_choose_their_precision():
    cpu, matrix = CPUAccelerator(), torch.ones(4, 4)
    amp = cpu.amp()
    with amp:
        assert (matrix @ matrix).dtype == torch.bfloat16
        with amp.autocast(enabled=False):
            assert (matrix @ matrix).dtype == torch.float32
        with amp:
            assert (matrix @ matrix).dtype == torch.bfloat16
        assert torch.is_autocast_enabled("cpu")
    assert (matrix @ matrix).dtype == torch.float32 and not torch.is_autocast_enabled("cpu")


def test_the_context_ends_after_an_error_and_decorates_functions():
    cpu = CPUAccelerator()
    with pytest.raises(ZeroDivisionError), cpu.amp():
        1 / 0
    assert not torch.is_autocast_enabled("cpu")

    @cpu.amp()
    def product(matrix):
        return matrix @ matrix

    assert product(torch.ones(2, 2)).dtype == torch.bfloat16
    assert not torch.is_autocast_enabled("cpu")


def test_its_functions_are_torchs_for_the_device():
    cpu, seen = CPUAccelerator(), []

    class Square(torch.autograd.Function):
        @staticmethod
        @cpu.amp().custom_fwd
        def forward(ctx, matrix):
            ctx.save_for_backward(matrix)
            return matrix @ matrix

        @staticmethod
        @cpu.amp().custom_bwd
        def backward(ctx, gradient):
            seen.append(torch.is_autocast_enabled("cpu"))
            return gradient @ ctx.saved_tensors[0] * 2

    @cpu.amp().custom_fwd(cast_inputs=torch.float16)
    def forward(ctx, matrix):
        return matrix.dtype

    matrix = torch.ones(2, 2, requires_grad=True)
    with cpu.amp().autocast(dtype=torch.bfloat16):
        result = Square.apply(matrix)
        assert forward(torch.autograd.function.FunctionCtx(), torch.ones(1)) == torch.float16
    result.sum().backward()
    assert result.dtype == torch.bfloat16 and seen == [True], "backward runs as forward did"
    scaler = cpu.amp().GradScaler(init_scale=8.0)
    assert isinstance(scaler, torch.amp.GradScaler) and scaler.scale(torch.ones(1)).item() == 8.0


def test_a_device_without_computation_casts_nothing():
    with NullAccelerator().amp() as amp:
        assert (torch.ones(2, 2, device="meta") @ torch.ones(2, 2, device="meta")).dtype == torch.float32
        with amp.autocast(dtype=torch.bfloat16):
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32


@pytest.mark.parametrize("name", ["cuda", "xpu", "hpu", "mps"])
def test_the_context_is_that_of_the_vendors_device(name, monkeypatch, tmp_path):
    accelerator, _ = vendor_modules.install(name, monkeypatch, tmp_path)
    entered = []
    monkeypatch.setattr(torch.amp, "autocast", lambda *arguments: entered.append(arguments) or torch.no_grad())
    with accelerator.amp():
        pass
    with accelerator.amp().autocast(torch.float16, cache_enabled=False):
        pass
    assert entered == [(name, None, True, None), (name, torch.float16, True, False)]
