"""`opforge cache stats` after real builds, waits and hits."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner
from support import child_processes, gate, polling, sample_ops, text_files

from opforge.cli import group
from opforge.foundation import remembered_values_writer

LOAD = "import opforge; print(opforge.load('value', 'value.cpp', abi='c').value())"


def stats(*arguments):
    done = CliRunner().invoke(group, ["cache", "stats", *arguments])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout) if "--json" in arguments else done.stdout


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sample_ops.set_value(tmp_path, 1)
    text_files.write(tmp_path, "value.cpp", gate.SOURCE)
    text_files.write(tmp_path, "gate.h", "")
    return tmp_path


def test_hits_misses_and_waits_are_counted_and_the_time_that_they_took(folder, own_store):
    gate.close_gate(folder)
    locks = own_store / "v2" / "locks"
    first = child_processes.start_python(LOAD)
    polling.wait_for(lambda: locks.is_dir() and any(locks.iterdir()))
    second = child_processes.start_python(
        "import os; from opforge.cache.filesystem import lock; wait = lock._wait\n"
        "def noted(*arguments): open('waits', 'w').close(); return wait(*arguments)\n"
        f"lock._wait = noted; {LOAD}"
    )
    polling.wait_for((folder / "waits").exists)
    gate.open_gate(folder)
    assert [process.communicate(timeout=60)[0] for process in (first, second)] == ["1\n", "1\n"]
    child_processes.run_python(LOAD), child_processes.run_python(LOAD)
    counts = stats("--json")["counts"]
    (entry,) = json.loads(CliRunner().invoke(group, ["ls", "--json"]).stdout)["ops"]
    shown = {name: counts["all"][name] for name in ("hits", "cached", "misses", "rate", "built", "waited", "failed")}
    assert shown == {"hits": 2, "cached": 2, "misses": 2, "rate": 0.5, "built": 1, "waited": 1, "failed": 0}
    assert counts["all"]["saved_seconds"] == pytest.approx(2 * entry["seconds"], abs=0.01)
    assert counts["all"]["building_seconds"] > 0 < counts["all"]["waiting_seconds"] and counts["since_zero"] is None
    assert counts["today"]["hits"] == counts["days"]["hits"] == 2
    text = stats()
    assert (
        "LOOK-UPS\tTODAY\t30 DAYS\tALL\nhits\t2\t2\t2\nmisses\t2\t2\t2\nhit rate\t50.0%\t50.0%\t50.0%\nwaits\t1" in text
    )
    assert text.startswith(f"{own_store}: 1 entry, ") and re.search(r" of 10\.0 GiB \(0\.0%\)\n", text)
    assert "FOLDER" not in text and "FOLDER\tFILES" in stats("-v") and "that failed\t0" in stats("-v")


def test_a_failed_build_is_counted_and_zero_begins_again(folder):
    text_files.write(folder, "value.cpp", "int broken(\n")
    process = child_processes.start_python(LOAD)
    assert "CompileError" in process.communicate(timeout=60)[1]
    assert stats("--json")["counts"]["all"]["failed"] == 1
    assert "SINCE ZERO" in stats("--zero")
    text_files.write(folder, "value.cpp", gate.SOURCE)
    child_processes.run_python(LOAD)
    counts = stats("--json")["counts"]
    assert (counts["since_zero"]["misses"], counts["since_zero"]["failed"], counts["all"]["misses"]) == (1, 0, 2)


def test_hits_in_a_layer_are_counted_for_the_store_that_was_searched_behind_it(folder, own_store, monkeypatch):
    child_processes.run_python(LOAD)
    monkeypatch.setenv("OPFORGE_CACHE_LAYERS", str(own_store))
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(folder / "empty"))
    child_processes.run_python(LOAD)
    counts = stats("--json")["counts"]["all"]
    assert (counts["hits"], counts["prebuilt"], counts["misses"]) == (1, 1, 0)


def test_a_miss_of_build_ops_is_counted_and_logged_once(tmp_path, monkeypatch, own_store):
    monkeypatch.setenv("OPFORGE_LOG", str(tmp_path / "log"))
    for misses, hits in ((1, 0), (1, 1)):
        done = CliRunner().invoke(group, ["build-ops", "UtilsBuilder"])
        assert done.exit_code == 0, done.output
        remembered_values_writer.write_counts()  # as the end of a process does
        counts = stats("--json")["counts"]["all"]
        assert (counts["misses"], counts["hits"], counts["built"]) == (misses, hits, 1)
    events = [json.loads(line)["event"] for line in (tmp_path / "log").read_text().splitlines()]
    assert (events.count("miss"), events.count("hit")) == (1, 1)
