"""What compilers say of an op that they build all the same: told once, and kept with the entry."""

from __future__ import annotations

import json

from click.testing import CliRunner
from support import sample_ops

from opforge.cli.inspect import command

WARNED = f"{sample_ops.EXPORT} int value() {{ int unused; return 1; }}\n"


def test_a_warning_is_logged_once_and_kept_with_the_entry(tmp_path, warnings_of_the_cache):
    cls = sample_ops.plain_op(tmp_path, source=WARNED + "#warning look here\n", extra_compile_args=["-Wall"])
    entry = cls().build()
    place = f"{tmp_path}/plain.cpp"
    told = f"plain: built with 2 warnings, the first of them: {place}:2: #warning look here [-Wcpp]. All that the"
    assert [one.startswith(told) for one in warnings_of_the_cache()] == [True]
    assert warnings_of_the_cache()[0].endswith(f"opforge inspect {entry.folder}")
    assert cls().build().origin == "cache" and len(warnings_of_the_cache()) == 1
    shown = CliRunner().invoke(command, [entry.folder]).stdout
    assert "output of the compilers\n" in shown and f"{place}:1:" in shown and "unused variable 'unused'" in shown
    (file,) = json.loads(CliRunner().invoke(command, [entry.key, "--json"]).stdout)["files"]
    assert "[1/2]" not in file["entry"]["said"] and "look here" in file["entry"]["said"]


def test_an_op_without_warnings_says_nothing(tmp_path, warnings_of_the_cache):
    entry = sample_ops.plain_op(tmp_path)().build()
    assert warnings_of_the_cache() == [] and entry.manifest()["built"]["said"] == ""
    assert "output of the compilers" not in CliRunner().invoke(command, [entry.folder]).stdout
