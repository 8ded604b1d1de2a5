"""The least times of functions by data sheets."""

from __future__ import annotations

import pytest


def test_the_bytes_or_the_products_bound_a_function(capsys):
    from benchmarks.gpu import roofline

    sheet = roofline.Sheet("test", bandwidth=1e9, peak=1e12)
    assert roofline.microseconds(roofline.Work(2e6, 1e9), sheet) == pytest.approx(2000)
    assert roofline.microseconds(roofline.Work(2e6, 4e9), sheet) == pytest.approx(4000)
    work = roofline.attention(2, 8, 3, 16, biases=100.0, share=0.5)
    tensor = 2 * 8 * 3 * 16
    assert work.bytes == 4 * 2 * tensor + 4 * 2 * 8 * 3 + 100  # q, k, v, the result; a float for each query; biases
    assert work.operations == 0.5 * 2 * 2 * tensor * 8  # two products, each a multiplication and an addition
    roofline.main()
    table = capsys.readouterr().out
    assert all(name in table for name in (*roofline.SHEETS, *roofline.WORKS))
    assert all(sheet.source in table for sheet in roofline.SHEETS.values())
