"""What lies in a project beside plain files, and two processes that pack it at once."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading

import pytest
from support.kernels.projects import python_project
from support.text_files import write

from opforge.errors import PackError
from opforge.packages.form import digests, metadata
from opforge.packages.pack import run as packing
from opforge.packages.pack import source_files
from opforge.packages.pack.run import Options, pack
from opforge.packages.sources import reading


def packed(folder, **more):
    return pack(reading.read(str(folder)), str(folder), Options(tried=False, **more))


@pytest.mark.timeout(60)
def test_what_is_no_plain_file_is_refused(tmp_path):
    """A folder behind a link would be left out, and a pipe would be read for ever."""
    python_project(tmp_path)
    os.mkdir(tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", tmp_path / "python" / "folder")
    os.symlink("__init__.py", tmp_path / "python" / "again.py")
    os.mkfifo(tmp_path / "python" / "pipe.py")
    with pytest.raises(PackError) as error:
        packed(tmp_path)
    for text in ("folder is a link", "again.py is a link", "pipe.py is not a file"):
        assert text in str(error.value)


@pytest.mark.timeout(60)
def test_a_pipe_among_the_sources_is_refused(tmp_path):
    python_project(tmp_path)
    with (tmp_path / "kernel.toml").open("a") as file:
        file.write('[op]\nsources = ["pipe.cpp"]\n')
    os.mkfifo(tmp_path / "pipe.cpp")
    with pytest.raises(PackError, match=r"pipe\.cpp is not a file"):
        source_files.read(reading.read(str(tmp_path)))


def test_no_environment_and_nothing_hidden_is_among_the_sources(tmp_path):
    write(tmp_path, "kernel.toml", 'name = "acme/x1"\nversion = "1"\nlicense = "MIT"\n[op]\nsources = ["x.cpp"]\n')
    for path in ("x.cpp", "include/x.h", ".venv/include/torch.h", ".cache/old.cpp", "env/pyvenv.cfg", "env/lib/a.h"):
        write(tmp_path / os.path.dirname(path), os.path.basename(path), "")
    assert sorted(source_files.read(reading.read(str(tmp_path)))) == ["include/x.h", "x.cpp"]


def test_names_that_differ_by_case_alone_are_refused(tmp_path):
    """On other systems they are one file."""
    python_project(tmp_path)
    for name in ("Part.py", "part.py"):
        write(tmp_path / "python", name, "")
    with pytest.raises(PackError, match=r"part\.py and Part\.py are one file on other systems: rename one"):
        packed(tmp_path)


@pytest.mark.parametrize("name", ["größe.py", "a:b.py", "a\\b.py", "end."])
def test_a_name_that_other_systems_do_not_have_is_refused(tmp_path, name):
    python_project(tmp_path)
    write(tmp_path / "python", name, "")
    with pytest.raises(PackError, match=r"in a package|does not stay inside"):
        packed(tmp_path)


def test_what_was_packed_before_or_a_killed_process_left_does_not_make_the_tree_dirty(tmp_path, monkeypatch):
    python_project(tmp_path)
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", "first")):
        subprocess.run(["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True)
    first = packed(tmp_path)
    with monkeypatch.context() as patch:  # a process that is killed removes nothing
        patch.setattr(packing.shutil, "rmtree", lambda *_arguments, **_more: None)
        patch.setattr(packing.write, "place", lambda *_arguments: os.getpgid(-1))
        with pytest.raises(OSError):
            packed(tmp_path)
    second = packed(tmp_path)
    assert not second[0].metadata.kernel.dirty and first[0].digest == second[0].digest
    (left,) = sorted({*os.listdir(tmp_path / "build")} - {"checks.json", "torch-universal"})
    os.utime(tmp_path / "build" / left, (0, 0))
    write(tmp_path, "new.txt", "")
    assert packed(tmp_path)[0].metadata.kernel.dirty
    assert left not in os.listdir(tmp_path / "build"), "after a day it is removed"


def test_two_processes_that_pack_at_once_leave_one_whole_package(tmp_path, monkeypatch):
    python_project(tmp_path)
    packed(tmp_path)
    barrier, errors = threading.Barrier(4), []
    place = packing.write.place

    def together(*arguments):
        barrier.wait()
        return place(*arguments)

    monkeypatch.setattr(packing.write, "place", together)

    def work():
        try:
            packed(tmp_path)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert sorted(os.listdir(tmp_path)) == ["build", "kernel.toml", "python"]
    variant = tmp_path / "build" / "torch-universal"
    assert digests.problems(str(variant), metadata.read(str(variant)).files) == []


def test_a_link_in_the_place_of_a_variant_stays(tmp_path):
    python_project(tmp_path)
    packed(tmp_path)
    variant = tmp_path / "build" / "torch-universal"
    shutil.move(variant, tmp_path / "own")
    os.symlink(tmp_path / "own", variant)
    with pytest.raises(PackError, match="exists, and opforge pack did not write it"):
        packed(tmp_path)
    assert sorted(os.listdir(tmp_path / "own")) == ["__init__.py", "_ops.py", "metadata.json"]
