"""The least times of cases by data sheets."""

from __future__ import annotations

import pytest

from opforge.ops.cases import Case


def test_the_bytes_or_the_products_bound_a_case(capsys):
    from benchmarks.gpu import roofline

    sheet = roofline.Sheet("test", bandwidth=1e9, peak=1e12)
    assert roofline.microseconds(roofline.Work("a", 2e6, 1e9), sheet) == pytest.approx(2000)
    assert roofline.microseconds(roofline.Work("a", 2e6, 4e9), sheet) == pytest.approx(4000)
    roofline.main()
    table = capsys.readouterr().out
    assert all(sheet.source in table for sheet in roofline.SHEETS.values())
    assert all(work.name in table and work.bytes > 1000 for work in roofline.works())


def test_the_work_of_a_case_is_what_the_case_says():
    from benchmarks.gpu import roofline

    case = Case(
        "product",
        lambda place: (),
        sizes=(4, 64),
        amount=lambda size, itemsize: 3 * size * itemsize,
        operations=lambda size: 2 * size,
    )
    assert roofline.work("Op", case) == ("Op: product, 64 elements", 3 * 64 * 2, 2 * 64)


def test_attention_moves_each_tensor_and_computes_each_product():
    from benchmarks.gpu import roofline

    works = {work.name: work for work in roofline.works()}
    tensor, length, heads = 64 * 256 * 4 * 32, 256, 4  # rows, tokens, heads, channels of a head
    forward = works["EvoformerAttn: forward, 256 tokens"]
    biases = 2 * (64 * length + heads * length * length)
    assert forward.bytes == 4 * 2 * tensor + 4 * 64 * length * heads + biases  # a float for the sums of each query
    assert forward.operations == 2 * 2 * tensor * length
    assert works["EvoformerAttn: forward and backward, 256 tokens"].operations == 3 * forward.operations
