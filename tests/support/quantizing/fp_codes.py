"""The codes of the floating-point quantizer by exact arithmetic, with numpy."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy


class Form(NamedTuple):
    """A format of codes: a sign, and this many bits of exponent and mantissa."""

    exponent: int
    mantissa: int

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return 1 + self.exponent + self.mantissa

    @property
    def bias(self) -> int:
        """What is subtracted from a code's exponent."""
        return 2 ** (self.exponent - 1) - 1

    @property
    def range(self) -> float:
        """The largest number."""
        return (2.0 - 2.0**-self.mantissa) * 2.0 ** (2**self.exponent - 1 - self.bias)

    def __str__(self) -> str:
        return f"e{self.exponent}m{self.mantissa}"


FORMATS = (Form(4, 3), Form(5, 2), Form(4, 7), Form(3, 2), Form(2, 1))


def scale_of(values: Any, form: Form) -> tuple[Any, Any]:
    """Returns the scales of groups, which are rows of float32 with a number other than 0, and their inverses."""
    largest = numpy.abs(values).max(axis=1, keepdims=True)
    limit = numpy.float32(form.range)
    return largest / limit, limit / largest


def exact_codes(scaled: Any, form: Form) -> Any:
    """Returns the codes of the nearest numbers; of two that are as near, that of the larger magnitude."""
    magnitude = numpy.abs(scaled.astype(numpy.float64))
    smallest = 1 - form.bias
    exponent = numpy.where(magnitude < 2.0**smallest, smallest, numpy.frexp(magnitude)[1] - 1)
    steps = numpy.floor(numpy.ldexp(magnitude, form.mantissa - exponent) + 0.5).astype(numpy.int64)
    codes = (exponent.astype(numpy.int64) + form.bias - 1) * 2**form.mantissa + steps
    largest = 2 ** (form.bits - 1) - 1
    return numpy.minimum(codes, largest) + numpy.signbit(scaled) * (largest + 1)


def number(codes: Any, form: Form) -> Any:
    """Returns the numbers of codes in float64."""
    exponent, mantissa = codes >> form.mantissa & (2**form.exponent - 1), codes & (2**form.mantissa - 1)
    units = mantissa + (exponent > 0) * 2**form.mantissa
    magnitude = numpy.ldexp(units.astype(numpy.float64), numpy.maximum(exponent, 1) - form.bias - form.mantissa)
    return numpy.where(codes >> (form.bits - 1) & 1, -magnitude, magnitude)


def stream(codes: Any, bits: int) -> Any:
    """Returns the bytes of codes, one row for each of theirs: the first code has the lowest bits of the first byte."""
    single = (codes[..., None] >> numpy.arange(bits) & 1).astype(numpy.uint8)
    return numpy.packbits(single.reshape(len(codes), -1), axis=1, bitorder="little")


def unpacked_codes(rows: Any, bits: int) -> Any:
    """Undoes `stream`."""
    single = numpy.unpackbits(rows, axis=1, bitorder="little").reshape(len(rows), -1, bits).astype(numpy.int64)
    return (single << numpy.arange(bits)).sum(axis=2)
