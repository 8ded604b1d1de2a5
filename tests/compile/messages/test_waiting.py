"""What a program notices of a build that it waits for."""

from __future__ import annotations

import fcntl
import os
import re
import struct
import subprocess
import sys
import termios
import time
from types import SimpleNamespace

import nbclient
import nbformat
import pytest
from support import child_processes, sample_ops, text_files

import opforge
from opforge.builders import load_op
from opforge.builders.waiting import build_line, expected_time
from opforge.cache.layout import Layout
from opforge.errors import BuildForbiddenError, OpNotFoundError, SettingError

SLOW = """
import opforge
from opforge.builders.waiting import build_line
build_line.SILENT_SECONDS = build_line.REFRESH_SECONDS = 0.05
build_line.SILENT_SECONDS_OF_LINES = build_line.SECONDS_BETWEEN_LINES = 0.05
print("loaded", opforge.load("value", "value.cpp", signatures={}, abi="c").value())
"""
VALUE = sample_ops.EXPORT + " int value() { return 7; }\n"


def printed_by(folder, code, writer, reader):
    """Runs code whose standard error is `writer`. Returns what it wrote there, to its output, and its exit status."""
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=folder,
        env=child_processes.environment(),
        stdout=subprocess.PIPE,
        stderr=writer,
        text=True,
    )
    os.close(writer)
    printed = b""
    try:
        while part := os.read(reader, 4096):
            printed += part
    except OSError:  # Linux: the other end of the terminal is closed
        pass
    os.close(reader)
    return printed.decode(), process.communicate(timeout=60)[0], process.returncode


@pytest.mark.parametrize("place", ["terminal", "narrow terminal"])
def test_a_build_that_takes_long_shows_one_line_that_is_replaced_and_removed(tmp_path, place):
    text_files.write(tmp_path, "value.cpp", VALUE)
    reader, writer = os.openpty()
    if place == "narrow terminal":
        fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("4H", 24, 30, 0, 0))
    printed, output, status = printed_by(tmp_path, SLOW, writer, reader)
    assert (output, status) == ("loaded 7\n", 0)
    lines = printed.split("\r")
    assert lines[0] == "" and lines[1].startswith("opforge: building value: ")
    assert "s of about 3 s" in lines[1] if place != "narrow terminal" else max(map(len, lines)) == 29, lines
    assert lines[-2].strip() == "" and lines[-1] == "" and "\n" not in printed, "the line is removed"


def test_a_build_in_a_pipe_adds_a_line_now_and_then_and_one_at_its_end(tmp_path):
    text_files.write(tmp_path, "value.cpp", VALUE)
    reader, writer = os.pipe()
    printed, output, status = printed_by(tmp_path, SLOW, writer, reader)
    assert (output, status) == ("loaded 7\n", 0)
    *during, end = printed.splitlines()
    assert during and all(line.startswith("opforge: building value: ") for line in during), printed
    assert re.fullmatch(r"opforge: built value in \d+ s", end) and "\r" not in printed


def test_a_build_in_a_pipe_that_fails_or_is_silenced(tmp_path):
    text_files.write(tmp_path, "value.cpp", "#include <regex>\n#error no\n")  # it fails after the first line is due
    reader, writer = os.pipe()
    printed, _output, status = printed_by(tmp_path, SLOW, writer, reader)
    assert status == 1 and re.search(r"^opforge: value was not built, after \d+ s$", printed, re.MULTILINE), printed
    text_files.write(tmp_path, "value.cpp", VALUE)
    reader, writer = os.pipe()
    silent = "import logging; logging.getLogger('opforge').setLevel(logging.ERROR)\n"
    assert printed_by(tmp_path, silent + SLOW, writer, reader) == ("", "loaded 7\n", 0)


def test_a_short_build_in_a_pipe_prints_nothing(tmp_path):
    text_files.write(tmp_path, "value.cpp", VALUE)
    short = "\n".join(line for line in SLOW.splitlines() if "SECONDS" not in line)
    reader, writer = os.pipe()
    assert printed_by(tmp_path, short, writer, reader) == ("", "loaded 7\n", 0)
    assert (build_line.SILENT_SECONDS_OF_LINES, build_line.SECONDS_BETWEEN_LINES) == (10, 60)


def test_a_process_that_waits_for_the_build_of_another_adds_no_lines_in_a_pipe(capsys, monkeypatch):
    monkeypatch.setattr(build_line, "SILENT_SECONDS_OF_LINES", 0.01)
    with build_line.BuildLine("value", 3.0):
        time.sleep(0.1)
    assert capsys.readouterr() == ("", "")
    with build_line.BuildLine("value", 3.0) as line:
        line.begins()
        time.sleep(0.1)
    assert capsys.readouterr().err.splitlines()[0] == "opforge: building value: 0 s of about 3 s"


class Notebook(nbclient.NotebookClient):
    """Executes a notebook, and keeps the messages of its kernel."""

    def process_message(self, msg, cell, cell_index):
        self.messages = [*getattr(self, "messages", []), msg]
        return super().process_message(msg, cell, cell_index)


def test_a_build_in_a_notebook_has_one_output_that_is_replaced_and_emptied(tmp_path, monkeypatch):
    text_files.write(tmp_path, "value.cpp", VALUE)
    cell = nbformat.v4.new_code_cell(SLOW)
    notebook = Notebook(nbformat.v4.new_notebook(cells=[cell]), timeout=120, resources={"metadata": {"path": tmp_path}})
    notebook.execute(env=child_processes.environment())
    shown = [message for message in notebook.messages if message["msg_type"] not in ("status", "execute_input")]
    kinds = [message["msg_type"] for message in shown]
    assert kinds[0] == "display_data" and set(kinds[1:-1]) == {"update_display_data"} and kinds[-1] == "stream", kinds
    texts = [message["content"]["data"]["text/plain"] for message in shown[:-1]]
    assert all(text.startswith("opforge: building value: ") for text in texts[:-1]) and texts[-1] == ""
    # What is saved:
    replaced, printed = cell.outputs
    assert replaced["data"] == {"text/plain": ""}
    assert printed == {"output_type": "stream", "name": "stdout", "text": "loaded 7\n"}


@pytest.mark.parametrize(("abi", "seconds"), [("torch", 24), ("torch-stable", 3), ("c", 3)])
def test_the_first_estimate_is_by_what_a_source_includes(tmp_path, abi, seconds):
    plan = SimpleNamespace(op="value", target="cpu:x86-64", sources=["value.cpp"], abi=abi)
    assert expected_time.weights([plan], Layout(str(tmp_path))) == [seconds]


def test_the_next_estimate_is_what_the_last_build_took(tmp_path, own_store):
    source = sample_ops.EXPORT + " int value() { return VALUE; }\n"
    builder = sample_ops.plain_op(tmp_path, source=f"#include <iostream>\n#define VALUE 1\n{source}")
    first = builder().build()
    text_files.write(tmp_path, "plain.cpp", f"#define VALUE 2\n{source}")
    second = builder().build()
    plan = SimpleNamespace(op="plain", target=str(builder().target), sources=["plain.cpp"], abi="c")
    assert first.record["seconds"] != second.record["seconds"]
    assert expected_time.weights([plan], Layout(str(own_store))) == [second.record["seconds"]]


def test_verbose_prints_why_an_op_is_built_and_its_steps_in_words(tmp_path, precompiled, warnings_of_the_cache):
    builder = sample_ops.stable_op(tmp_path, "vrelu")()
    builder.load(verbose=True)
    lines = warnings_of_the_cache()
    why = "because it was not built yet with these flags and this compiler"
    assert lines[0] == f"vrelu: building it for {builder.target}, {why}"
    steps = {line.partition(": ")[2].partition(": ")[2] for line in lines[1:-1]}
    assert steps == {"prepared the link to libtorch_cpu.so", "compiled vrelu.cpp", "linked vrelu"}
    assert all(line.startswith(f"vrelu: step {number} of 3: ") for number, line in enumerate(lines[1:-1], 1))
    assert lines[-1].startswith("vrelu: built, /")
    changed = sample_ops.plain_op(tmp_path / "plain")
    changed().build()
    sample_ops.set_value(tmp_path / "plain", 2)
    changed().load(verbose=True)
    reason = f": {tmp_path}/plain/value.h has changed"
    assert any("because no stored op fits: " in line and reason in line for line in warnings_of_the_cache())


def test_a_build_is_an_error_inside_no_builds_and_a_stored_op_is_not(tmp_path):
    first, second = sample_ops.plain_op(tmp_path / "a"), sample_ops.plain_op(tmp_path / "b", value=2)
    first().build()
    with opforge.no_builds():
        assert first().load().value() == 1
        with (
            opforge.no_builds(),
            pytest.raises(BuildForbiddenError, match=r"opforge.no_builds\(\) forbids building one"),
        ):
            second().load()
        with pytest.raises(BuildForbiddenError, match=r"Build it before, with opforge\.prepare or build-ops"):
            second().build()
    assert second().load().value() == 2


def test_prepare_builds_what_it_is_called_with_and_loads_nothing(tmp_path):
    first, second = (
        sample_ops.plain_op(tmp_path / "a", name="first"),
        sample_ops.plain_op(tmp_path / "b", name="second"),
    )
    opforge.prepare([first, second()])
    with opforge.no_builds():
        assert first().load().origin == second().load().origin == "cache"


@pytest.mark.parametrize("name", ["CPULion", "CPULionBuilder", "cpu_lion"])
def test_prepare_takes_names(builds_are_shared, name):
    opforge.prepare([name])
    with opforge.no_builds():
        opforge.prepare([name])
    with pytest.raises(OpNotFoundError, match="Did you mean 'CPULionBuilder'"):
        opforge.prepare(["CPULionn"])
    with pytest.raises(SettingError, match=r"ops='CPULion' cannot be used: expected a list of ops: \['CPULion'\]"):
        opforge.prepare("CPULion")
    with pytest.raises(SettingError, match=r"ops=5 cannot be used: expected a list of ops: \[5\]"):
        opforge.prepare(5)


def test_of_many_ranks_only_the_one_that_builds_says_that_the_others_wait(tmp_path, monkeypatch):
    said: list[str] = []
    monkeypatch.setattr(expected_time, "warn_if_ranks_wait", lambda op, _seconds: said.append(op))
    spec = sample_ops.plain_op(tmp_path)().spec()
    first, second = (load_op.build(spec) for _rank in range(2))  # the second finds it once it has the lock
    assert first.key == second.key and said == ["plain"]


def test_a_terminal_shows_nothing_of_a_build_that_another_process_makes(monkeypatch):
    shown: list[str] = []
    place = SimpleNamespace(delays=(0.01, 0.01), show=shown.append, end=shown.append)
    monkeypatch.setattr(build_line, "_place", lambda: place)
    with build_line.BuildLine("value", 3.0):
        time.sleep(0.1)
    assert shown == []


def test_a_build_while_other_ranks_wait_is_a_warning(tmp_path, caplog, monkeypatch):
    distributed = pytest.importorskip("torch.distributed", reason="pip install torch")
    builder = sample_ops.plain_op(tmp_path)
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/ranks", rank=0, world_size=1)
    try:
        builder().build()
        assert caplog.messages == [], "there is no other rank"
        monkeypatch.setattr(distributed, "get_world_size", lambda: 2)
        sample_ops.plain_op(tmp_path / "other", value=2)().build()
    finally:
        distributed.destroy_process_group()
    (text,) = caplog.messages
    assert text.startswith("plain: a build of about ") and "opforge.prepare or build-ops" in text
    assert expected_time.UNIT_SECONDS > 0
