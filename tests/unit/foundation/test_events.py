"""OPFORGE_LOG: one JSON object a line; a log that cannot be written makes nothing fail."""

from __future__ import annotations

import json
import os
import threading

import pytest
from support import child_processes

from opforge.foundation.events import emit


def events(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_without_the_variable_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    emit("hit", op="relu")
    assert os.listdir(tmp_path) == []


def test_an_event_is_a_line_of_json_with_its_time_and_process(tmp_path, monkeypatch):
    monkeypatch.setenv("OPFORGE_LOG", str(tmp_path / "log"))
    emit("miss", op="relu", reasons=["it has changed"], path=tmp_path)
    emit("hit", op="re\nlu")
    first, second = events(tmp_path / "log")
    assert first["event"] == "miss" and first["reasons"] == ["it has changed"] and first["pid"] == os.getpid()
    assert first["path"] == str(tmp_path) and second["op"] == "re\nlu" and second["time"] >= first["time"]
    assert os.stat(tmp_path / "log").st_mode & 0o777 == 0o600


@pytest.mark.parametrize("target", ["-", "stderr"])
def test_a_dash_writes_to_stderr(monkeypatch, capfd, target):
    monkeypatch.setenv("OPFORGE_LOG", target)
    emit("hit", op="relu")
    out, err = capfd.readouterr()
    assert out == "" and json.loads(err)["op"] == "relu"


@pytest.mark.parametrize("name", ["missing/log", "", "file/log"])
def test_a_log_that_cannot_be_written_is_ignored(tmp_path, monkeypatch, name):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OPFORGE_LOG", str(tmp_path / name) + ("/" if not name else ""))
    emit("hit", op="relu")
    assert sorted(os.listdir(tmp_path)) == ["file"]


def test_a_full_disk_is_ignored(monkeypatch):
    monkeypatch.setenv("OPFORGE_LOG", "/dev/full")
    emit("hit", op="relu")


def test_a_closed_stderr_is_ignored(tmp_path):
    code = "import os; os.close(2); from opforge.foundation.events import emit; emit('hit'); print('done')"
    assert child_processes.run_python(code, env={"OPFORGE_LOG": "-"}) == "done\n"


def test_a_pipe_without_a_reader_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "log")
    code = "from opforge.foundation.events import emit; emit('hit'); print('done')"
    assert child_processes.run_python(code, env={"OPFORGE_LOG": str(tmp_path / "log")}, timeout=3) == "done\n"


def test_events_of_many_writers_do_not_mix(tmp_path, monkeypatch):
    monkeypatch.setenv("OPFORGE_LOG", str(tmp_path / "log"))
    threads = [
        threading.Thread(target=lambda n=n: [emit("miss", op=str(n), reasons=["x" * 2000]) for _ in range(40)])
        for n in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(events(tmp_path / "log")) == 240
