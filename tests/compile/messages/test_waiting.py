"""What a program notices of a build that it waits for."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import sys
import termios

import pytest
from support import child_processes, sample_ops, text_files

import opforge
from opforge.builders.waiting import build_notices as waiting
from opforge.errors import BuildForbiddenError, OpNotFoundError, SettingError

SLOW = """
import opforge
from opforge.builders.waiting import build_notices as waiting
waiting.SILENT_SECONDS = waiting.REFRESH_SECONDS = 0.05
print("loaded", opforge.load("value", "value.cpp", signatures={}, abi="c").value())
"""


@pytest.mark.parametrize("place", ["terminal", "narrow terminal", "pipe", "notebook"])
def test_a_build_that_takes_long_shows_one_line_that_is_replaced_and_removed(tmp_path, place):
    text_files.write(tmp_path, "value.cpp", sample_ops.EXPORT + " int value() { return 7; }\n")
    reader, writer = os.openpty() if "terminal" in place else os.pipe()
    if place == "narrow terminal":
        fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("4H", 24, 30, 0, 0))
    start = (
        "import sys, types; sys.modules['ipykernel'] = types.ModuleType('ipykernel')\n" if place == "notebook" else ""
    )
    command = [sys.executable, "-c", start + SLOW]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=child_processes.environment(), stdout=subprocess.PIPE, stderr=writer, text=True
    )
    os.close(writer)
    printed = b""
    try:
        while part := os.read(reader, 4096):
            printed += part
    except OSError:  # Linux: the other end of the terminal is closed
        pass
    os.close(reader)
    assert process.communicate(timeout=60)[0] == "loaded 7\n" and process.returncode == 0
    lines = printed.decode().split("\r")
    if place == "pipe":
        assert printed == b""
    else:
        assert lines[0] == "" and lines[1].startswith("opforge: building value: ")
        assert "s of about 3 s" in lines[1] if place != "narrow terminal" else max(map(len, lines)) == 29, lines
        assert lines[-2].strip() == "" and lines[-1] == "" and "\n" not in printed.decode(), "the line is removed"


def test_verbose_prints_why_an_op_is_built_and_its_steps_in_words(tmp_path, warnings_of_the_cache):
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
    assert waiting.UNIT_SECONDS > 0
