"""Porting takes work in proportion to the size of a file, reads regular files only, and shows where it is."""

from __future__ import annotations

import os
import sys

import pytest
from click.testing import CliRunner

pytest.importorskip("libcst", reason="pip install 'opforge[port]'")

from opforge.cli import group, messages
from opforge.errors import PortError
from opforge.port import files
from opforge.port.files import port_file, python_files
from opforge.port.rewriting import port_text

REPEATED = {
    "a variable that is moved": ("import torch\ndef f(x):\n", "    x = x.cuda()\n"),
    "a device in a variable": ("import torch\ndef f():\n", "    d = 'cuda'\n    x = torch.ones(3, device=d)\n"),
    "a device of unknown use": ("import torch\n", "x = 'cuda'\n"),
    "a comparison": ("import torch\ndef f(d):\n", "    if d == 'cuda': torch.ones(3, device=d)\n"),
    "an import": ("", "import torch\ntorch.cuda.synchronize()\n"),
    "an index": ("import torch\ndef f():\n", "    i = i + 1\n    torch.cuda.synchronize(i)\n"),
    "a statement of the module": ("import torch\n", "x = torch.cuda.current_device()\n"),
    "a function": ("import torch\n", "def f():\n    torch.cuda.synchronize()\n"),
    "an argument": ("import torch\nf(\n", "    'cuda',\n", ")\n"),
    "a line that is kept": ("import torch\n", "torch.cuda.synchronize()  # opforge: keep\n"),
}


def calls(text):
    """Returns how many functions are called to port a module."""
    count = 0

    def see(_frame, event, _argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(see)
    try:
        findings = port_text(text).findings
    finally:
        sys.setprofile(None)
    return count, len(findings)


@pytest.mark.parametrize("name", REPEATED)
def test_four_times_the_code_takes_four_times_the_work(name):
    start, line, *end = REPEATED[name]
    calls(start + line + "".join(end))  # imports and tables are made once
    (few, few_findings), (many, many_findings) = (calls(start + line * count + "".join(end)) for count in (15, 60))
    assert many < 4.4 * few
    assert few_findings == many_findings == 0 or many_findings > 3 * few_findings


def test_a_pipe_and_a_device_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.py")
    os.symlink("/dev/zero", tmp_path / "zeros.py")
    for path in (tmp_path / "pipe.py", tmp_path / "zeros.py", "/dev/zero", "/dev/null"):
        assert list(python_files([str(path)])) == [str(path)]
        expected = str(PortError(str(path), "it is not a regular file", "Name a Python file or a folder"))
        assert port_file(str(path), write=True).problem == expected


def test_a_huge_file_is_refused_unread(tmp_path):
    with open(tmp_path / "huge.py", "w") as file:
        file.truncate(1 << 40)
    problem = port_file(str(tmp_path / "huge.py"), write=True).problem
    assert f"it has {1 << 40} bytes, and at most {files.MAX_BYTES} are read. Exclude the file, or split it." in problem


def test_a_terminal_shows_which_file_is_in_progress(tmp_path, monkeypatch):
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text("import torch\ntorch.cuda.synchronize()\n")
    quiet = CliRunner().invoke(group, ["port", "--check", str(tmp_path)])
    assert quiet.stderr == ""
    monkeypatch.setattr(messages, "shows_progress", lambda: True)
    monkeypatch.setenv("COLUMNS", "200")
    done = CliRunner().invoke(group, ["port", "--check", str(tmp_path)])
    assert done.stdout == quiet.stdout
    assert [part for part in done.stderr.split("\r") if part] == [  # click leaves the escape out here
        f"1 of 2: {tmp_path / 'a.py'}",
        f"2 of 2: {tmp_path / 'b.py'}",
    ]
