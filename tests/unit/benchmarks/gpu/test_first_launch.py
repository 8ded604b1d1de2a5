"""The benchmark of a kernel's first launch: which processes it starts, and what it requires of them."""

from __future__ import annotations

import os
import sys

import pytest
from support.gpu import fake_gpu, triton_parts


def launch(first, origin, compiled):
    """Returns what a child prints about its launches."""
    return {"first": first, "again": 0.1, "origin": origin, "compiled": compiled}


def run_round(launches, tmp_path, monkeypatch):
    """Runs one round with fake children. Returns its seconds, and the kind and the settings of each child."""
    from benchmarks.gpu import first_launch
    from benchmarks.scratch import Scratch

    scratch, started = Scratch(str(tmp_path)), []

    def run_child(module, *arguments, **settings):
        started.append((arguments[0], settings))
        return launches[len(started) - 1]

    monkeypatch.setattr(scratch, "run_child", run_child)
    return first_launch.run_round(scratch, "/layer", "cuda", "cuda:sm_90"), started


def test_a_layer_of_the_environment_is_measured_and_none_is_built(monkeypatch):
    from benchmarks.gpu import first_launch

    launches = iter(
        [launch(0.02, "/brought", 0), launch(0.01, "/brought", 0), launch(0.9, "jit", 12), launch(0.2, "jit", 0)]
    )
    monkeypatch.setenv("OPFORGE_CACHE_LAYERS", "/other:/brought")
    monkeypatch.setattr(first_launch, "ROUNDS", 1)
    monkeypatch.setattr(first_launch.Scratch, "run_child", lambda *_arguments, **_settings: next(launches))
    figures = first_launch.run(fake_gpu.create())
    assert [figure.microseconds for figure in figures[:4]] == pytest.approx([1e4, 2e4, 9e5, 2e5])
    assert [figure.task for figure in figures[4:]] == [first_launch.WHOLE] * 4 and figures[4].microseconds > 0


def test_first_launches_start_from_stores_without_kernels(tmp_path, monkeypatch):
    launches = [launch(0.02, "/layer", 0), launch(0.01, "/layer", 0), launch(0.9, "jit", 12), launch(0.2, "jit", 0)]
    seconds, started = run_round(launches, tmp_path, monkeypatch)
    assert {name: first for name, (first, _whole) in seconds.items()} == {
        "opforge, the store's first process": 0.02,
        "opforge": 0.01,
        "Triton, nothing compiled": 0.9,
        "Triton, its own cache warm": 0.2,
    }
    (_, new_store), (_, ours), (_, cold), (_, warm) = started
    assert ours["OPFORGE_CACHE_LAYERS"] == "/layer" and ours["OPFORGE_PREBUILT"] == "require" and ours == new_store
    assert cold["TRITON_CACHE_DIR"] == warm["TRITON_CACHE_DIR"] and not os.listdir(cold["TRITON_CACHE_DIR"])
    assert len({settings["OPFORGE_CACHE_DIR"] for _how, settings in started}) == 3
    assert [how for how, _settings in started] == ["prebuilt", "prebuilt", "triton", "triton"]


@pytest.mark.parametrize(
    ("launches", "text"),
    [
        ([launch(0.01, "cache", 0)], "came from 'cache', expected /layer"),
        ([*[launch(0.01, "/layer", 0)] * 2, launch(0.9, "jit", 0)], "nothing compiled: 0 files were added"),
        (
            [*[launch(0.01, "/layer", 0)] * 2, launch(0.9, "jit", 9), launch(0.9, "jit", 2)],
            "cache warm: 2 files were added",
        ),
    ],
)
def test_a_launch_that_did_not_load_or_compile_what_it_should_is_an_error(tmp_path, monkeypatch, launches, text):
    from benchmarks.scratch import ChildError

    with pytest.raises(ChildError, match=text):
        run_round(launches, tmp_path, monkeypatch)


def test_a_cold_launch_must_take_ten_times_as_long_as_a_prebuilt_one():
    from benchmarks.gpu.first_launch import COLD, WARM, with_target

    ours, cold, _warm = with_target({"opforge": [0.02, 0.01, 0.03], COLD: [0.3, 0.2, 0.2], WARM: [0.1]})
    assert (ours.microseconds, ours.best, cold.best) == pytest.approx((20_000, 10_000, 200_000))
    assert ours.met and ours.note == "a cold one takes 10.0 times as long"
    assert with_target({"opforge": [0.021], COLD: [0.2], WARM: [0.1]})[0].met is False


@pytest.mark.test_all("needs triton")
@triton_parts.needs_triton
def test_a_process_that_uses_triton_itself_prints_its_first_launch(tmp_path):
    from benchmarks.gpu.child_launch import TRITON
    from benchmarks.scratch import Scratch

    result = Scratch(str(tmp_path)).run_child(
        "gpu.child_launch", TRITON, "cpu", "cuda:sm_90", TRITON_INTERPRET="1", PYTHONPATH=os.pathsep.join(sys.path)
    )
    assert result["origin"] == "jit" and result["compiled"] == 0 and result["first"] > 0
