"""Files of `opforge port`: which ones are found, and what stays when they are written."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("libcst", reason="pip install 'opforge[port]'")

from opforge.errors import PortError
from opforge.port import files
from opforge.port.files import port_file, python_files
from opforge.port.rewriting import port_text

BEFORE = "import torch\n\n\ndef f(x):\n    x.cuda()\n"
AFTER = "import torch\nfrom opforge import get_accelerator\n\n\ndef f(x):\n    x.to(get_accelerator().device_name())\n"
END = "\x0c\n# end  \n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (BEFORE.encode(), AFTER.encode()),
        (BEFORE.replace("\n", "\r\n").encode(), AFTER.replace("\n", "\r\n").encode()),
        (b"\xef\xbb\xbf" + BEFORE.encode(), b"\xef\xbb\xbf" + AFTER.encode()),
        (("# -*- coding: latin-1 -*-\n# é\n" + BEFORE).encode("latin-1"),
         ("# -*- coding: latin-1 -*-\n# é\n" + AFTER).encode("latin-1")),
        (BEFORE.rstrip("\n").encode(), AFTER.rstrip("\n").encode()),
        ((BEFORE.replace("    ", "\t") + END).encode(), (AFTER.replace("    ", "\t") + END).encode()),
    ],
    ids=["plain", "CRLF", "BOM", "latin-1", "no last newline", "tabs"],
)  # fmt: skip
def test_encoding_and_newlines_are_kept(tmp_path, before, after):
    path = tmp_path / "a.py"
    path.write_bytes(before)
    assert port_file(str(path), write=True).changes == 1
    assert path.read_bytes() == after


def test_mixed_newlines_are_kept_on_unchanged_lines(tmp_path):
    path = tmp_path / "a.py"
    path.write_bytes(b"import torch\r\n\r\ndef f(x):\n    x.cuda()\r\n    y = 1\n")
    port_file(str(path), write=True)
    assert path.read_bytes().endswith(b"\r\n\r\ndef f(x):\n    x.to(get_accelerator().device_name())\r\n    y = 1\n")


def test_the_mode_is_kept_and_no_temporary_file_remains(tmp_path):
    path = tmp_path / "a.py"
    path.write_text(BEFORE)
    path.chmod(0o751)
    port_file(str(path), write=True)
    assert path.stat().st_mode & 0o777 == 0o751 and os.listdir(tmp_path) == ["a.py"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_that_root_ports_keeps_its_owner(tmp_path):
    path = tmp_path / "a.py"
    path.write_text(BEFORE)
    os.chown(path, 12345, 23456)
    port_file(str(path), write=True)
    assert path.read_text() == AFTER and (path.stat().st_uid, path.stat().st_gid) == (12345, 23456)


def test_a_file_without_changes_is_not_written(tmp_path):
    path = tmp_path / "a.py"
    path.write_text(AFTER)
    before = path.stat()
    assert port_file(str(path), write=True).changes == 0
    assert path.stat().st_mtime_ns == before.st_mtime_ns and path.stat().st_ino == before.st_ino


def test_nothing_is_written_unless_requested(tmp_path):
    path = tmp_path / "a.py"
    path.write_text(BEFORE)
    result = port_file(str(path), write=False)
    assert (result.before, result.text) == (BEFORE, AFTER) and path.read_text() == BEFORE


def test_a_symlink_stays_and_its_target_is_ported(tmp_path):
    path, link = tmp_path / "a.py", tmp_path / "link.py"
    path.write_text(BEFORE)
    link.symlink_to(path)
    port_file(str(link), write=True)
    assert link.is_symlink() and path.read_text() == AFTER


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"x = 'cuda\n", "cannot be ported: line 1"),
        (b"# cuda \xff\n", "its encoding cannot be read"),
        (b"# -*- coding: klingon -*-\n# cuda\n", "its encoding cannot be read"),
        (b"x = 'cuda'\x00\n", "cannot be ported"),
        (b"# coding: rot13\n# cuda\n", "its encoding cannot be read"),
    ],
)
def test_a_file_that_is_not_python_is_reported_and_unchanged(tmp_path, content, problem):
    path = tmp_path / "a.py"
    path.write_bytes(content)
    result = port_file(str(path), write=True)
    assert problem in result.problem and str(path) in result.problem and path.read_bytes() == content


def test_a_missing_file_is_reported(tmp_path):
    assert "No such file or directory" in port_file(str(tmp_path / "a.py"), write=True).problem


def test_a_read_only_file_is_reported_and_unchanged(tmp_path, monkeypatch):
    path = tmp_path / "a.py"
    path.write_text(BEFORE)
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write whatever the mode says
    assert "it is not writable" in port_file(str(path), write=True).problem and path.read_text() == BEFORE


def test_a_file_that_changes_while_it_is_ported_is_not_overwritten(tmp_path, monkeypatch):
    path = tmp_path / "a.py"
    path.write_text(BEFORE)
    real = files.port_text

    def edit_and_port(text, name):
        path.write_text(BEFORE + "# mine\n")
        return real(text, name)

    monkeypatch.setattr(files, "port_text", edit_and_port)
    assert "it was changed while it was being ported" in port_file(str(path), write=True).problem
    assert path.read_text() == BEFORE + "# mine\n" and os.listdir(tmp_path) == ["a.py"]


def test_folders_are_walked_in_order_without_hidden_linked_and_excluded_files(tmp_path):
    for name in ("b.py", "a.py", "a.txt", "sub/c.py", ".hidden/d.py", "__pycache__/e.py", "env/lib/f.py", "old/g.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "env/pyvenv.cfg").write_text("")
    (tmp_path / "link.py").symlink_to(tmp_path / "a.py")
    os.mkfifo(tmp_path / "pipe.py")  # opening it would block forever
    names = [os.path.relpath(path, tmp_path) for path in python_files([str(tmp_path)], exclude=["old"])]
    assert names == ["a.py", "b.py", "sub/c.py"]
    names = [os.path.relpath(path, tmp_path) for path in python_files([str(tmp_path)], exclude=["*/sub/*", "b.*"])]
    assert names == ["a.py", "old/g.py"]


@pytest.mark.parametrize("pattern", ["old/", "src/old", "./src/old/", "{cwd}/src/old"])
@pytest.mark.parametrize("root", [".", "{cwd}"])
def test_a_folder_is_excluded_however_its_path_is_written(tmp_path, monkeypatch, root, pattern):
    for name in ("old/a.py", "old/src/old/b.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    monkeypatch.chdir(tmp_path / "old")  # the folder above has the name too, and is not meant
    files_left = python_files([root.format(cwd=os.getcwd())], exclude=[pattern.format(cwd=os.getcwd())])
    assert [os.path.relpath(path) for path in files_left] == ["a.py"]
    assert [*python_files(["."], exclude=["*/old/*.py"])] == ["./a.py"]


def test_an_unreadable_folder_is_an_error_unless_it_is_excluded(tmp_path, monkeypatch):
    (tmp_path / "closed").mkdir()
    scandir = os.scandir

    def deny(path):
        if path == str(tmp_path / "closed"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", deny)
    with pytest.raises(
        PortError, match=r"closed cannot be ported: Permission denied\. Make it readable, or exclude it"
    ):
        list(python_files([str(tmp_path)]))
    assert list(python_files([str(tmp_path)], exclude=["closed"])) == []


def test_a_file_named_twice_is_ported_once(tmp_path):
    path = tmp_path / "script"
    path.write_text("")
    assert list(python_files([str(path), str(tmp_path / "." / "script")])) == [str(path)]


def test_notebooks_and_missing_paths_are_errors(tmp_path):
    (tmp_path / "a.ipynb").write_text("{}")
    with pytest.raises(PortError, match=r"it is a notebook\. Export it as a script: only Python files are ported\."):
        list(python_files([str(tmp_path / "a.ipynb")]))
    with pytest.raises(PortError, match="there is no such file or folder"):
        list(python_files([str(tmp_path / "nowhere")]))


def test_python_that_libcst_cannot_parse_is_an_error():
    with pytest.raises(PortError, match=r"m\.py cannot be ported: the parser libcst cannot read it .*\. Put spaces"):
        port_text("import torch\n\nnot(lambda: x).is_cuda\n", "m.py")
