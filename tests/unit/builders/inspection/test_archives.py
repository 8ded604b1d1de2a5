"""The files that thin archives name, of whatever lengths their tables are."""

import os
import subprocess

import pytest
from support import text_files

from opforge.builders.inspection import archives


@pytest.mark.parametrize("length", range(1, 5))
def test_the_members_of_a_thin_archive_are_found_whatever_the_length_of_its_tables(tmp_path, length):
    """Names of up to 15 bytes are in the headers, longer ones in a table, and those of symbols in another one."""
    names = [f"{'x' * number}.o" for number in (length, 12 + length, 20 + length, 30)]
    for number, name in enumerate(names):
        text_files.write(tmp_path, "member.s", f".globl {'s' * (length + number)}\n{'s' * (length + number)}:\n")
        subprocess.run(["as", "member.s", "-o", name], cwd=tmp_path, check=True)
    subprocess.run(["ar", "rcsT", "thin.a", *names], cwd=tmp_path, check=True)
    path = str(tmp_path / "thin.a")
    assert archives.files_of_link([], [path], [], lists_inputs=True) == {
        path,
        *(os.path.join(tmp_path, name) for name in names),
    }
