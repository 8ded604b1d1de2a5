"""Sizes, ages and tables as they are printed, sizes and ages as they are typed."""

from __future__ import annotations

import os
import re
import sys

import click
import pytest
from click.testing import CliRunner

from opforge.cli import group, output, units


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536 * 1024, "1.5 MiB"),
        (5 << 40, "5.0 TiB"),
        (1 << 60, "1048576.0 TiB"),
    ],
)
def test_size_texts(size, text):
    assert output.size_text(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(-3, "0 s"), (0.9, "0 s"), (59, "59 s"), (60, "1 min"), (7200, "2 h"), (1e6, "11 d")]
)
def test_age_texts(seconds, text):
    assert output.age_text(seconds) == text


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("512", 512), ("2GiB", 2 << 30), ("2G", 2 << 30), ("500MB", 500_000_000), ("1.5 kib", 1536), ("7b", 7)],
)
def test_sizes_are_parsed(text, size):
    assert units.SIZE(text) == size


@pytest.mark.parametrize(
    ("text", "age"), [("30d", 2592000), ("12h", 43200), ("90min", 5400), ("45s", 45), ("2w", 1209600)]
)
def test_ages_are_parsed(text, age):
    assert units.AGE(text) == age


@pytest.mark.parametrize("text", ["", "-1", "1e3", "GiB", "1 2", "nan", "inf"])
def test_text_that_is_no_size_or_age_is_refused(text):
    with pytest.raises(click.BadParameter, match=f"{re.escape(repr(text))} is not a size: expected a number with B"):
        units.SIZE(text)
    with pytest.raises(click.BadParameter, match=f"{re.escape(repr(text))} is not an age: expected a number with s"):
        units.AGE(text)


def test_a_table_in_a_pipe_has_one_line_a_row(capsys):
    output.show_table(("A", "B"), [("a\tb", "c\nd"), (1, "")])
    assert capsys.readouterr().out == "A\tB\na b\tc d\n1\t\n"


def test_a_table_on_a_terminal_leaves_out_what_does_not_fit(capsys, monkeypatch):
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    output.show_table(("A", "PATH"), [("a", "p" * 20)], optional="PATH")
    assert "p" * 20 in capsys.readouterr().out
    output.show_table(("A", "PATH"), [("a", "p" * 90)], optional="PATH")
    narrow = capsys.readouterr()
    assert "ppp" not in narrow.out and "left out" not in narrow.out
    assert narrow.err == "note: PATH does not fit and is left out: use a pipe or --json to see it\n"


def test_markup_in_a_cell_is_text(capsys, monkeypatch):
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    output.show_table(("A",), [("[bold]x[/bold]",)])
    assert "[bold]x[/bold]" in capsys.readouterr().out


def test_states_have_colours_on_a_terminal_and_nothing_else_has(capsys, monkeypatch):
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    for name, value in (("TERM", "xterm-256color"), ("FORCE_COLOR", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    rows = [("ready", "cached"), ("failed", "unusable"), ("cached", "buildable"), ("x", "unknown state")]
    output.show_table(("OP", "STATE"), rows)
    colored = capsys.readouterr().out
    for color, state in ((32, "cached"), (31, "unusable"), (36, "buildable")):
        assert f"\x1b[{color}m{state}" in colored
    assert not any(f"m{text}" in colored for text in ("ready", "failed", "unknown state"))
    monkeypatch.setenv("NO_COLOR", "1")
    output.show_table(("OP", "STATE"), rows)
    assert "\x1b[3" not in capsys.readouterr().out


@pytest.mark.parametrize("parse", [units.SIZE, units.AGE])
def test_a_number_that_is_too_large_is_refused(parse):
    with pytest.raises(click.BadParameter, match="is too large"):
        parse("9" * 400)


@pytest.mark.parametrize(("terminal", "shown"), [("dumb", "\nops\n"), ("xterm", "\n\x1b[1mops\x1b[0m\n")])
def test_a_dumb_terminal_gets_no_escapes(monkeypatch, terminal, shown):
    monkeypatch.setenv("TERM", terminal)
    command = click.Command("command", callback=lambda: output.heading("ops"))
    assert CliRunner().invoke(command, color=True).output == shown


@pytest.mark.parametrize(
    "words",
    [("compile-commands", "-o", "PATH")],
    ids=["compile-commands"],
)
@pytest.mark.parametrize("kind", ["pipe", "stream"])
def test_a_device_or_a_pipe_is_not_replaced_by_a_file(tmp_path, words, kind):
    path = tmp_path / "out"
    os.mkfifo(path) if kind == "pipe" else path.symlink_to("/proc/self/fd/1")
    before = os.lstat(path)[:2]
    done = CliRunner().invoke(group, [word.replace("PATH", str(path)) for word in words])
    assert done.exit_code == 2 and f"'{path}' is a device or a pipe: expected a file." in done.output
    assert os.lstat(path)[:2] == before


def chunks_of(reader):
    """Yields all that a terminal was sent, in as many reads as it takes, and closes it."""
    with open(reader, "rb", buffering=0) as file:
        while True:
            try:
                chunk = file.read(1 << 16)
            except OSError:  # how Linux ends what a closed terminal was sent
                return
            if not chunk:
                return
            yield chunk.decode()


@pytest.mark.parametrize("no_color", ["", "1"])
def test_no_escape_is_written_with_no_color(monkeypatch, no_color):
    """rich and click leave bold and dim in, which are escapes too."""
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", "xterm-256color")
    reader, writer = os.openpty()
    with open(writer, "w", encoding="utf-8") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        output.heading("Title")
        output.show_table(("STATE", "PATH"), [("built", "x")], optional="PATH")
    written = "".join(chunks_of(reader))
    assert "Title" in written and "built" in written and ("\x1b" in written) == (not no_color), written
