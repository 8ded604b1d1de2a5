"""The bytes that functions must move: the table that the benchmarks use, and what the documentation states."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.paths import CHECKOUT

from opforge.ops.cases import traffic
from opforge.ops.cases.inference_core import CHANNELS, INFERENCE_CORE
from opforge.ops.cases.ragged import RAGGED_OPS
from opforge.ops.cases.random_ltd import BATCH, RANDOM_LTD
from opforge.ops.cases.random_ltd import CHANNELS as TOKEN


def test_the_documentation_states_the_bytes_of_norms_and_activations():
    page = Path(CHECKOUT, "docs/transformer-ops.md").read_text(encoding="utf-8")
    stated = {
        name: traffic.Traffic(float(read), float(written))
        for names, read, written in re.findall(r"^\| (`.+`.*?) \| ([\d.]+) read, ([\d.]+) written \|", page, re.M)
        for name in re.findall(r"`(\w+)\(", names)
    }
    norms = {"layer_norm", "rms_norm", "pre_layer_norm", "rms_pre_norm", "post_layer_norm"}
    assert stated == {name: traffic.TRAFFIC[name] for name in {"bias_activation", "gated_activation", *norms}}


def test_cases_move_each_tensor_once():
    """Against sums that are written out: rows of 4096 channels, half of the tokens, keys and values, two experts."""
    odd = [3 * 4095 * 2 * 2] * 2
    timed = [case for case in INFERENCE_CORE if case.sizes]
    assert [case.amount(3, 2) for case in timed] == [3 * CHANNELS * 2 * n for n in (2, 4, 2, 1.5)] + odd
    assert {case.amount(8, 4) for case in RANDOM_LTD} == {BATCH * 4 * TOKEN * 4 * 2}
    assert [case.amount(5, 2) for case in RAGGED_OPS if case.sizes] == [
        2 * 5 * 1024 * 2,
        4 * 5 * 1024 * 2,
        3 * 5 * 4096 * 2,
        16 * 2 * 5 * 1024 * 2,
        5,  # tokens, since only the time counts
    ]


def test_attention_moves_queries_keys_values_results_and_sums_once():
    assert traffic.attention(2, 8, 3, 16, 2) == 2 * 4 * (2 * 8 * 3 * 16) + 4 * 2 * 8 * 3


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm", "softmax", "gelu", "swiglu"])
def test_a_gradient_reads_and_writes_more_than_the_function(name):
    forward, backward = traffic.TRAFFIC[name], traffic.TRAFFIC[f"{name} backward"]
    assert backward.read == forward.read + 1 and backward.written == forward.read
