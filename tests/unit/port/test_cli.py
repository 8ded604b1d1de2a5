"""The command line of `opforge port`."""

from __future__ import annotations

import importlib.util
import json
import subprocess

import pytest
from click.testing import CliRunner

pytest.importorskip("libcst", reason="pip install 'opforge[port]'")

from opforge.cli import group

BEFORE = "import torch\n\n\ndef f(x):\n    x.cuda()\n    print('cuda')\n"
AFTER = BEFORE.replace("torch\n", "torch\nfrom opforge import get_accelerator\n", 1).replace(
    "x.cuda()", "x.to(get_accelerator().device_name())"
)
LEFT = "'cuda' -- a string that may or may not be a device: its use here does not show which"


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text(BEFORE)
    (tmp_path / "b.py").write_text("x = 1\n")
    return tmp_path / "a.py"


def run(*arguments):
    return CliRunner().invoke(group, ["port", *arguments])


def test_files_are_changed_in_place_and_what_is_left_is_listed(script):
    result = run("a.py", "b.py")
    assert result.exit_code == 0 and script.read_text() == AFTER
    assert result.stdout.splitlines() == [
        "a.py: 1 change",
        f"a.py:7:11: left: {LEFT}",
        "2 files: 1 place changed in 1, 1 left to you",
    ]
    assert AFTER.splitlines()[6][10:16] == "'cuda'"


def test_a_second_run_changes_nothing(script):
    run("a.py")
    result = run("a.py")
    assert result.exit_code == 0 and script.read_text() == AFTER
    assert result.stdout.splitlines()[-1] == "1 file: 0 places changed in 0, 1 left to you"


def test_check_lists_and_fails_without_writing(script):
    result = run("--check", ".")
    assert result.exit_code == 1 and script.read_text() == BEFORE
    assert result.stdout.splitlines() == [
        "./a.py:5:5: converted: x.cuda() -> x.to(get_accelerator().device_name())",
        f"./a.py:6:11: left: {LEFT}",
        "2 files: 1 place would change in 1, 1 left to you",
    ]


def test_check_succeeds_if_there_is_no_vendor_reference(script):
    script.write_text(AFTER.replace("print('cuda')", "print('cuda')  # opforge: keep"))
    result = run("--check", "a.py")
    assert result.exit_code == 0 and result.stdout == "1 file: 0 places would change in 0, 0 left to you\n"


def test_the_diff_can_be_applied(script):
    result = run("--diff", "a.py", "b.py")
    assert result.exit_code == 0 and script.read_text() == BEFORE
    assert f"a.py:6:11: left: {LEFT}" in result.stderr
    subprocess.run(["git", "apply", "-p0", "-"], input=result.stdout, text=True, check=True, cwd=script.parent)
    assert script.read_text() == AFTER


def test_a_diff_does_not_split_lines_at_form_feeds_and_unicode_separators(script):
    odd = "\x0c\n# \x85 \u2028 \x1c\n"
    script.write_text(BEFORE + odd)
    result = run("--diff", "a.py")
    subprocess.run(["git", "apply", "-p0", "-"], input=result.stdout, text=True, check=True, cwd=script.parent)
    assert script.read_text() == AFTER + odd


def test_a_diff_of_a_file_without_a_final_newline_can_be_applied(script):
    script.write_text(BEFORE.rstrip("\n"))
    result = run("--diff", "a.py")
    subprocess.run(["git", "apply", "-p0", "-"], input=result.stdout, text=True, check=True, cwd=script.parent)
    assert script.read_text() == AFTER.rstrip("\n")


def test_json_has_the_findings_the_totals_and_the_diff(script):
    result = run("--json", "--check", ".")
    document = json.loads(result.stdout)
    assert result.exit_code == 1 and document["written"] is False
    assert document["total"] == {"files": 2, "changes": 1, "left": 1, "failed": 0}
    (file,) = document["files"]
    assert (file["path"], file["changes"], file["left"], file["problem"]) == ("./a.py", 1, 1, "")
    assert file["findings"][0] == {
        "line": 5,
        "column": 5,
        "kind": "converted",
        "text": "x.cuda()",
        "message": "x.to(get_accelerator().device_name())",
    }
    document = json.loads(run("--json", "--diff", "a.py").stdout)
    assert document["files"][0]["diff"].startswith("--- a.py\n+++ a.py\n@@")
    assert json.loads(run("--json", "a.py").stdout)["written"] is True and script.read_text() == AFTER


def test_a_file_that_does_not_parse_does_not_stop_the_others(script):
    (script.parent / "0.py").write_text("cuda = (\n")
    result = run(".")
    assert result.exit_code == 1 and script.read_text() == AFTER
    assert result.stderr.startswith("error: ./0.py cannot be ported: line ")
    assert result.stdout.splitlines()[-1] == "3 files: 1 place changed in 1, 1 left to you, 1 failed"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--check", "--diff", "a.py"], "--check and --diff exclude each other"),
        (["nowhere.py"], "'nowhere.py' does not exist"),
        (["--exclude", "*.py", "."], "there is no Python file in ."),
        ([], "Missing argument 'PATH...'"),
    ],
)
def test_wrong_usage_is_rejected_without_writing(script, arguments, message):
    result = run(*arguments)
    assert result.exit_code == 2 and message in result.stderr and script.read_text() == BEFORE


def test_without_libcst_the_error_names_the_extra(script, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "libcst" else real(name))
    result = run("a.py")
    assert result.exit_code == 1 and result.stderr == (
        "error: opforge port needs the package 'libcst', which is not installed."
        " Install it with: pip install 'opforge[port]'.\n"
    )
