"""opforge's files that shape plans: one stamp if a wheel's list names them, and otherwise each its own."""

from __future__ import annotations

import base64
import hashlib
import os

import pytest

from opforge.builders.lookup.own_code import Code


@pytest.fixture
def wheel(tmp_path):
    """An installed package with two files, and what is compared of them."""
    package, info = tmp_path / "site" / "forge", tmp_path / "site" / "forge-1.0.dist-info"
    package.mkdir(parents=True), info.mkdir()
    files = []
    for name in ("a.py", "b.py"):
        (package / name).write_text(f"{name}\n")
        digest = base64.urlsafe_b64encode(hashlib.sha256(f"{name}\n".encode()).digest()).decode().rstrip("=")
        files.append((str(package / name), f"forge/{name},sha256={digest},5\n"))
    (info / "RECORD").write_text("".join(line for _path, line in files))
    return Wheel([path for path, _line in files], str(package), info / "RECORD")


class Wheel:
    def __init__(self, files, package, record):
        self.files, self.package, self.record = files, package, record

    def compared(self):
        return [path for path, _stamp in Code(self.files, self.package).stamps()]


def test_the_list_of_a_wheel_stands_for_its_files(wheel):
    assert wheel.compared() == [str(wheel.record)]
    before = Code(wheel.files, wheel.package)
    os.utime(wheel.record, (5, 5))  # as an upgrade does
    assert before.stamps() != Code(wheel.files, wheel.package).stamps()


def test_an_edited_file_of_a_wheel_is_compared_itself(wheel):
    code = Code(wheel.files, wheel.package)
    with open(wheel.files[1], "a") as file:
        file.write("edited")
    assert wheel.compared() == wheel.files
    stamps = code.stamps()  # those from before the edit: the next process sees it
    assert [path for path, _stamp in stamps] == wheel.files and stamps != Code(wheel.files, wheel.package).stamps()


def test_without_a_list_or_with_two_each_file_is_compared(wheel):
    other = wheel.record.parent.parent / "forge-2.0.dist-info"
    other.mkdir()
    (other / "RECORD").write_text(wheel.record.read_text())
    assert wheel.compared() == wheel.files
    wheel.record.unlink()
    wheel.record.parent.rmdir()
    assert wheel.compared() == [str(other / "RECORD")]
    (other / "RECORD").unlink()
    assert wheel.compared() == wheel.files
    other.rmdir()
    assert wheel.compared() == wheel.files


def test_a_file_that_the_list_does_not_name_is_compared(wheel, tmp_path):
    (tmp_path / "toolchain.py").write_text("another package's")
    wheel.files.append(str(tmp_path / "toolchain.py"))
    assert wheel.compared() == wheel.files
