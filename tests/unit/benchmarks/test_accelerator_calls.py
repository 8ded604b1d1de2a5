"""The benchmark of an accelerator's calls: what counts as more expensive, and that its child measures every method."""

from __future__ import annotations

import importlib.util
import sys

import pytest

NO_DEEPSPEED = pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="pip install deepspeed")


@pytest.fixture
def scratch(tmp_path):
    from benchmarks.scratch import Scratch

    return Scratch(str(tmp_path))


def test_without_deepspeed_nothing_is_measured(scratch):
    from benchmarks.accelerator import accelerator_calls

    report = accelerator_calls.run(scratch)
    assert report.tables == [] and "OPFORGE_BENCH_DEEPSPEED_PYTHON" in report.left_out[0]


def test_a_call_counts_if_it_exceeds_the_ratio_and_the_difference(scratch, monkeypatch):
    from benchmarks.accelerator import accelerator_calls

    samples = {
        "communication_backend_name()": [[73e-6, 74e-6], [0.06e-6, 0.06e-6]],
        "current_device_name()": [[0.09e-6], [0.03e-6]],
        "manual_seed(1)": [[105e-6], [100e-6]],
        "current_stream()": [[0.4e-6], [0.03e-6]],
        "available_memory()": [[8e-6], [33e-6]],
    }
    scratch.deepspeed = sys.executable
    monkeypatch.setattr(scratch, "run_child", lambda *arguments, **options: {"samples": samples, "left_out": ["x"]})
    report = accelerator_calls.run(scratch)
    assert report.notes == ["communication_backend_name() costs 73.00 us, in DeepSpeed 0.06 us"]
    assert [(figure.value, figure.met) for figure in report.figures] == [(1, False), (pytest.approx(0.4), True)]
    assert len(report.tables[0].rows) == 5 and report.left_out == ["x: no cheap call"]


@pytest.mark.test_all("needs deepspeed")
@pytest.mark.long("calls 80 methods many times")
@NO_DEEPSPEED
def test_the_child_measures_every_method_of_deepspeeds_interface(scratch):
    from benchmarks.accelerator import accelerator_calls
    from benchmarks.scratch import CHECKOUT

    source = f"{CHECKOUT}/src"
    result = scratch.run_child(accelerator_calls.CHILD, "1", python=sys.executable, PYTHONPATH=source)
    assert set(result["left_out"]) <= {
        "capture_to_graph",
        "register_host_memory",
        "replay_graph",
        "supports_nvtx_domain",
        "unregister_host_memory",
    }
    assert len(result["samples"]) >= 75 and set(result["samples"]) >= accelerator_calls.EMPTY
    assert all(len(ours) == len(theirs) == 1 for ours, theirs in result["samples"].values())
