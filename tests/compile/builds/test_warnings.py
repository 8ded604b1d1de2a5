"""Warnings of compilers: they are logged once, and kept with the entry."""

from __future__ import annotations

import json

from click.testing import CliRunner
from support import sample_ops

from opforge.cli.inspect import command

SOURCE_WITH_WARNING = f"{sample_ops.EXPORT} int value() {{ int unused; return 1; }}\n"


def test_a_warning_is_logged_once_and_kept_with_the_entry(tmp_path, warnings_of_the_cache):
    cls = sample_ops.plain_op(
        tmp_path, source=SOURCE_WITH_WARNING + "#warning look here\n", extra_compile_args=["-Wall"]
    )
    entry = cls().build()
    source = f"{tmp_path}/plain.cpp"
    (message,) = warnings_of_the_cache()
    assert message.startswith(
        f"plain: built with 2 warnings, the first of them: {source}:2: #warning look here [-Wcpp]. All that the"
    )
    assert message.endswith(f"opforge inspect {entry.folder}")
    assert cls().build().origin == "cache" and len(warnings_of_the_cache()) == 1
    shown = CliRunner().invoke(command, [entry.folder]).stdout
    assert "output of the compilers\n" in shown and f"{source}:1:" in shown and "unused variable 'unused'" in shown
    (file,) = json.loads(CliRunner().invoke(command, [entry.key, "--json"]).stdout)["files"]
    assert "[1/2]" not in file["entry"]["said"] and "look here" in file["entry"]["said"]


def test_nothing_is_logged_for_an_op_without_warnings(tmp_path, warnings_of_the_cache):
    entry = sample_ops.plain_op(tmp_path)().build()
    assert warnings_of_the_cache() == [] and entry.build()["output"] == ""
    assert "output of the compilers" not in CliRunner().invoke(command, [entry.folder]).stdout
