"""The quantizers: a value that was quantized and comes back is as near as its format allows."""

from __future__ import annotations

from typing import ClassVar

import torch

from opforge.ops import reference
from opforge.testing.tensors import difference

from .form import Check, draw


class QuantizerCheck(Check):
    """The group quantizer, against the same rule in float64."""

    def test_values_that_come_back_are_those_of_the_reference(self) -> None:
        for bits in (8, 4):
            for dtype in (torch.float32, torch.bfloat16):
                values = draw(5, 512, dtype=dtype).to(self.device)
                codes, scale, offset = reference.quantize(values.double(), bits, True)
                stored, params = self.loaded.quantize(values, 5, bits, self.loaded.Symmetric)
                back = torch.empty_like(values)
                self.loaded.dequantize_(back, stored, params, 5, bits, True)
                # Of a quotient that lies halfway between two codes, float32 may choose the other one.
                step = float(scale.max())
                problem = difference(back, (codes * scale + offset).double(), 4 * torch.finfo(dtype).eps, 1.001 * step)
                assert not problem, f"{bits} bits of {dtype}: {problem}"
                assert float((back.double() - values.double()).abs().max()) <= 1.01 * step, f"{bits} bits of {dtype}"


class FPQuantizerCheck(Check):
    """The quantizer to small floating-point formats: by the relative error that their mantissa allows."""

    GROUP: ClassVar[int] = 512
    FORMATS: ClassVar[tuple[tuple[int, int], ...]] = ((12, 7), (8, 3), (6, 2), (4, 1))
    """Bits of a code, bits of its mantissa."""

    def test_values_come_back_within_half_a_unit_of_the_format(self) -> None:
        for bits, mantissa in self.FORMATS:
            for dtype in (torch.float32, torch.bfloat16):
                values = draw(3, self.GROUP, dtype=dtype).to(self.device)
                rows = torch.empty(3, self.GROUP * bits // 8 + 4, dtype=torch.uint8, device=self.device)
                self.loaded.fp_quantize_(rows, values, self.GROUP, bits, mantissa, False, 1)
                back = torch.empty_like(values)
                self.loaded.fp_dequantize_(back, rows, self.GROUP, bits, mantissa)
                exact, result = values.double(), back.double()
                # Below the smallest normal number of the format the distance between numbers is the same everywhere.
                exponent = bits - 1 - mantissa
                smallest = exact.abs().amax(1, keepdim=True) * 2.0 ** (2 - 2**exponent)
                allowed = torch.maximum(exact.abs(), smallest) * 2.0 ** -(mantissa + 1) * 1.02
                allowed += exact.abs() * 2 * torch.finfo(dtype).eps
                off = ((result - exact).abs() - allowed).max()
                assert float(off) <= 0, f"{bits} bits of {dtype}: a value is {float(off)} further off than allowed"
