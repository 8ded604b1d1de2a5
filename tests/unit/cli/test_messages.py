"""Errors, hints, warnings and notes of commands: one style, -q and -v, and names that are near."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner
from support import child_processes
from support.bench import bench_runs

from opforge.cli import COMMANDS, group
from opforge.foundation.settings import misspelt


@pytest.fixture(autouse=True)
def level():
    """The logger's level as it was."""
    logger = logging.getLogger("opforge")
    before = logger.level
    yield
    logger.setLevel(before)


def run(*words):
    return CliRunner().invoke(group, words)


def leaves(command, path=()):
    """Yields the words of every command that is no group."""
    for name in command.list_commands(None):
        child = command.get_command(None, name)
        if hasattr(child, "commands") or name in ("cache",):
            yield from leaves(child, (*path, name))
        else:
            yield (*path, name), child


def test_every_command_has_quiet_and_verbose():
    commands = dict(leaves(group))
    assert len(commands) > len(COMMANDS)
    for path, command in commands.items():
        options = {name for param in command.params for name in param.opts}
        assert {"-q", "--quiet", "-v", "--verbose"} <= options, path


def test_the_advice_of_an_error_is_a_hint(tmp_path):
    done = run("inspect", str(tmp_path / "no" / "such"))
    assert done.exit_code == 1 and done.stderr == (
        f"error: {tmp_path}/no/such cannot be inspected: there is no such file or folder.\nhint: Correct the path\n"
    )
    assert "Traceback" in run("inspect", "-v", str(tmp_path / "no" / "such")).stderr


def test_wrong_usage_begins_as_all_errors_do():
    assert "\nerror: No such option" in run("report", "--jsn").stderr


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        (
            "OPFORGE_PREBUILD",
            "require",
            "OPFORGE_PREBUILD is not a variable of opforge's, and is ignored. Did you mean ",
        ),
        (
            "OPFORGE_CACHE_LAYERS",
            "FOLDER/prebuild",
            "The layer FOLDER/prebuild, which OPFORGE_CACHE_LAYERS names, does",
        ),
    ],
)
def test_a_setting_that_does_nothing_is_a_warning_unless_quiet(tmp_path, monkeypatch, name, value, text):
    (tmp_path / "prebuilt").mkdir()
    monkeypatch.setenv(name, value.replace("FOLDER", str(tmp_path)))
    done = run("cache", "path")
    near = "OPFORGE_PREBUILT?" if "PREBUILD" in name else f"does not exist. Did you mean {tmp_path}/prebuilt?"
    assert done.exit_code == 0 and done.stderr.startswith("warning: " + text.replace("FOLDER", str(tmp_path)))
    assert done.stderr.endswith(near + "\n")
    assert run("cache", "path", "-q").stderr == "" and run("cache", "path", "--json").stderr == ""


def test_a_file_in_a_layers_place_is_named_as_one(tmp_path, monkeypatch):
    (tmp_path / "layer.tar").touch()
    monkeypatch.setenv("OPFORGE_CACHE_LAYERS", f"{tmp_path}/layer.tar")
    text = f"The layer {tmp_path}/layer.tar, which OPFORGE_CACHE_LAYERS names, is not a folder."
    assert run("cache", "path").stderr == f"warning: {text}\n"


def test_a_layer_that_cannot_be_read_or_is_none_is_named(tmp_path, monkeypatch):
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "ops" / "v1").mkdir(parents=True)
    (tmp_path / "new").mkdir()  # its ops come later
    layers = ":".join(f"{tmp_path}/{name}" for name in ("loop", "ops", "new"))
    monkeypatch.setenv("OPFORGE_CACHE_LAYERS", layers)
    begin = f"warning: The layer {tmp_path}"
    assert run("cache", "path").stderr.splitlines() == [
        f"{begin}/loop, which OPFORGE_CACHE_LAYERS names, cannot be read (Too many levels of symbolic links).",
        f"{begin}/ops, which OPFORGE_CACHE_LAYERS names, holds other files, and no ops of this format.",
    ]


def test_a_process_warns_once_when_something_is_not_in_the_cache(monkeypatch, caplog):
    monkeypatch.setattr(misspelt, "_warned", set())
    monkeypatch.setenv("OPFORGE_PREBUILD", "require")
    monkeypatch.setenv("OPFORGE_BENCH_LONG", "1")  # another program's
    misspelt.warn_of_useless_settings()
    misspelt.warn_of_useless_settings()
    assert caplog.messages == [
        "OPFORGE_PREBUILD is not a variable of opforge's, and is ignored. Did you mean OPFORGE_PREBUILT?"
    ]


@pytest.mark.parametrize("changes", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=["", "NO_COLOR", "dumb"])
def test_labels_have_colours_on_a_terminal_that_has_them(tmp_path, changes):
    reader, writer = os.openpty()
    env = child_processes.environment(**{"TERM": "xterm", "NO_COLOR": None, **changes})
    command = [sys.executable, "-m", "opforge", "inspect", str(tmp_path / "no" / "such")]
    process = subprocess.Popen(command, env=env, stderr=writer)
    os.close(writer)
    assert process.wait(timeout=60) == 1
    printed = os.read(reader, 4096)
    os.close(reader)
    assert (b"\x1b[31m\x1b[1merror:\x1b[0m" in printed) is not bool(changes) and b"cannot be inspected" in printed


def on_terminal(*arguments, **changes):
    """Returns what `opforge` prints on a terminal, on both streams."""
    reader, writer = os.openpty()
    env = child_processes.environment(**{"TERM": "xterm", "NO_COLOR": None, **changes})
    process = subprocess.Popen([sys.executable, "-m", "opforge", *arguments], env=env, stdout=writer, stderr=writer)
    os.close(writer)
    printed = b""
    with contextlib.suppress(OSError):  # the end of what was printed
        while part := os.read(reader, 1 << 16):
            printed += part
    os.close(reader)
    assert process.wait(timeout=60) == 0
    return printed.decode()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "goal 0.5: \x1b[32mmet"),
        ({"NO_COLOR": ""}, "goal 0.5: \x1b[32mmet"),
        ({"NO_COLOR": "1"}, "goal 0.5: met"),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, "goal 0.5: met"),
        ({"TERM": "dumb"}, "goal 0.5: met"),
    ],
)
def test_verdicts_have_colours_on_a_terminal_that_has_them(tmp_path, changes, text):
    path = bench_runs.write(tmp_path / "run.json", bench_runs.run(bench_runs.result(goals={"copy": 0.5})))
    assert text in on_terminal("bench", "--from", path, **changes)


@pytest.mark.parametrize(("arguments", "term", "shown"), [([], "xterm", 1), ([], "dumb", 0), (["-q"], "xterm", 0)])
def test_a_line_of_progress_is_replaced_on_a_terminal_that_can(tmp_path, arguments, term, shown):
    (tmp_path / "plain.py").write_text("x = 1\n")
    printed = on_terminal("port", *arguments, str(tmp_path), TERM=term)
    assert printed.count("1 of 1: ") == shown and ("\x1b[K" in printed) is bool(shown)
