"""Lists of any length are printed as they are read."""

from __future__ import annotations

import json

import pytest

from opforge.cli import output


def interrupted():
    yield ("a", 1)
    raise RuntimeError("the next one is not there yet")


def test_each_line_is_printed_as_soon_as_its_row_is_known(capsys):
    with pytest.raises(RuntimeError):
        output.show_table(("NAME", "SIZE"), interrupted())
    assert capsys.readouterr().out == "NAME\tSIZE\na\t1\n"


def test_on_a_terminal_a_long_list_is_several_tables(capsys, monkeypatch):
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    monkeypatch.setattr(output, "ROWS_OF_A_TABLE", 2)
    output.show_table(("NAME", "SIZE"), ((f"n{number}", number) for number in range(5)))
    lines = capsys.readouterr().out.splitlines()
    assert sum("NAME" in line for line in lines) == 3
    assert [line.split()[0] for line in lines if line.startswith("n")] == ["n0", "n1", "n2", "n3", "n4"]


@pytest.mark.parametrize("values", [[], [1], [{"a": [1, {}]}, "two\nlines", None]])
def test_a_list_that_is_printed_value_by_value_is_the_json_of_the_whole(values, capsys):
    output.emit_json_list(iter(values))
    printed = capsys.readouterr().out
    assert printed == json.dumps(values, indent=2) + "\n"
