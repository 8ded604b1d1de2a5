"""Units of small ops, and compiler commands that are run without opforge."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest


def test_the_units_of_an_op_share_no_name(tmp_path):
    from benchmarks import commands

    names = [commands.write_unit("plain_relu.cpp", str(tmp_path), number) for number in (1, 2)]
    assert names == ["unit1.cpp", "unit2.cpp"]
    assert "void bench_relu1(" in (tmp_path / "unit1.cpp").read_text()
    assert "* 0.5f" in (tmp_path / "unit1.cpp").read_text()
    commands.write_unit("plain_relu.cpp", str(tmp_path), 2, "7.0f")
    assert "void bench_relu2(" in (tmp_path / "unit2.cpp").read_text()
    assert "* 7.0f" in (tmp_path / "unit2.cpp").read_text()


def test_the_error_of_a_failed_command_has_its_output(tmp_path):
    from benchmarks.commands import run_in_order
    from benchmarks.scratch import ChildError

    step = SimpleNamespace(argv=(sys.executable, "-c", "import sys; sys.exit('no such header')"))
    with pytest.raises(ChildError, match=r"exited with 1: no such header"):
        run_in_order(str(tmp_path), [step])


def test_commands_run_in_their_folder_one_after_another(tmp_path):
    from benchmarks.commands import run_in_order

    code = "open('order', 'a').write('{}')"
    steps = [SimpleNamespace(argv=(sys.executable, "-c", code.format(letter))) for letter in "abc"]
    elapsed = run_in_order(str(tmp_path), steps)
    assert (tmp_path / "order").read_text() == "abc"
    assert elapsed.wall > 0
    assert elapsed.cpu >= 0
