"""Which files the system's package manager or a wheel lists."""

from __future__ import annotations

import os
import pathlib
import time

import pytest
from support import fake_disk, text_files

from opforge.cache.filesystem import packages
from opforge.cache.filesystem.disk import Disk
from opforge.cache.filesystem.packages import PackageFiles


class Machine:
    """A folder with databases of packages and files that they may list."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "inc").mkdir()
        for name in ("a.h", "b.h"):
            text_files.write(folder, f"inc/{name}", "")

    def path(self, name):
        return str(self.folder / name)

    def dpkg(self, *names, diversions=""):
        os.makedirs(self.folder / "dpkg" / "info", exist_ok=True)
        text_files.write(self.folder, "dpkg/status", str(time.monotonic_ns()))
        paths = [self.path(name) for name in names]
        paths += {str(folder) for path in paths for folder in pathlib.Path(path).parents}
        text_files.write(self.folder, "dpkg/info/x.list", "".join(f"{path}\n" for path in paths))
        text_files.write(self.folder, "dpkg/diversions", diversions)

    def listed(self, *names, kept=""):
        if kept:
            os.makedirs(self.path(kept), exist_ok=True)
        files = PackageFiles(fake_disk.LaterDisk(), kept and self.path(kept))
        result = [name for name in names if files.find(self.path(name))]
        files.save()
        return result


@pytest.fixture
def machine(tmp_path, monkeypatch):
    for name, folder in (("DPKG", "dpkg"), ("APK", "apk"), ("PACMAN", "pacman")):
        monkeypatch.setattr(packages, name, str(tmp_path / folder))
    return Machine(tmp_path)


def test_only_files_that_dpkg_lists_are_a_packages(machine):
    assert machine.listed("inc/a.h", "inc/b.h") == []
    machine.dpkg("inc", "inc/a.h")
    assert machine.listed("inc/a.h", "inc/b.h") == ["inc/a.h"]


def test_a_diverted_file_is_not_the_packages(machine):
    machine.dpkg("inc/a.h", diversions=f"{machine.path('inc/a.h')}\n{machine.path('inc/a.h.distrib')}\n:\n")
    assert machine.listed("inc/a.h") == []


def test_apks_database_is_read(machine):
    (machine.folder / "apk").mkdir()
    text = f"P:x\nF:{machine.path('inc')[1:]}\nR:a.h\nZ:Q1x\n\n"
    text_files.write(machine.folder, "apk/installed", text)
    assert machine.listed("inc/a.h", "inc/b.h") == ["inc/a.h"]


def test_pacmans_database_is_read(machine):
    (machine.folder / "pacman" / "x-1").mkdir(parents=True)
    text = f"%FILES%\n{machine.path('inc')[1:]}/\n{machine.path('inc/a.h')[1:]}\n\n%BACKUP%\n"
    text_files.write(machine.folder, "pacman/x-1/files", text)
    assert machine.listed("inc/a.h", "inc/b.h") == ["inc/a.h"]


def test_a_file_behind_a_link_that_no_package_lists_is_nobodys(machine):
    """update-alternatives makes such links, and switches them."""
    (machine.folder / "current").symlink_to("inc")
    machine.dpkg("inc", "inc/a.h")
    assert machine.listed("current/a.h") == []
    machine.dpkg("inc", "inc/a.h", "current")
    assert machine.listed("current/a.h") == ["current/a.h"]


def test_a_link_to_a_file_must_be_listed_too(machine):
    os.symlink("a.h", machine.path("inc/link.h"))
    machine.dpkg("inc/a.h")
    assert machine.listed("inc/link.h") == []
    machine.dpkg("inc/a.h", "inc/link.h")
    assert machine.listed("inc/link.h") == ["inc/link.h"]


def test_links_in_a_circle_lead_nowhere(machine):
    os.symlink("b", machine.path("a"))
    os.symlink("a", machine.path("b"))
    machine.dpkg("a", "b")
    assert machine.listed("a/x.h") == []


@pytest.mark.skipif(not os.path.islink("/lib") or not os.path.isdir("/var/lib/dpkg/info"), reason="needs a merged /usr")
def test_both_spellings_of_a_merged_usr_are_the_same_file():
    files = PackageFiles(Disk())
    ends = f"/lib/{os.uname().machine}-linux-gnu/libc.so.6"
    paths = map(os.fsdecode, packages._listed_paths(files.database))
    libc = next(path for path in paths if path.removeprefix("/usr") == ends)
    below_usr = libc if libc.startswith("/usr") else "/usr" + libc
    assert files.find(below_usr) and files.find(below_usr.removeprefix("/usr"))


def test_answers_are_kept_for_one_state_of_the_database(machine, monkeypatch):
    machine.dpkg("inc/a.h")
    assert machine.listed("inc/a.h", "inc/b.h", kept="kept") == ["inc/a.h"]
    read, listed_paths = [], packages._listed_paths
    monkeypatch.setattr(packages, "_listed_paths", lambda database: read.append(database) or listed_paths(database))
    assert machine.listed("inc/a.h", "inc/b.h", kept="kept") == ["inc/a.h"]
    assert read == []
    machine.dpkg("inc/b.h")
    assert machine.listed("inc/a.h", "inc/b.h", kept="kept") == ["inc/b.h"]
    assert len(read) == 1


def test_a_file_where_no_package_has_any_is_answered_without_the_lists(machine, monkeypatch, tmp_path_factory):
    """The sources of an op, which are new in each build: the lists have a hundred thousand lines."""
    machine.dpkg("inc/a.h")
    monkeypatch.setattr(packages, "_top", lambda path: path.rpartition("/")[0])
    for name in ("old.h", "new.h"):
        text_files.write(machine.folder, f"other/{name}", "")
    assert machine.listed("inc/a.h", "other/old.h", kept="kept") == ["inc/a.h"]
    read, listed_paths = [], packages._listed_paths
    monkeypatch.setattr(packages, "_listed_paths", lambda database: read.append(database) or listed_paths(database))
    assert machine.listed("other/new.h", kept="kept") == [] and not read
    assert machine.listed("inc/b.h", kept="kept") == [] and read
    machine.dpkg("inc/a.h", "other/new.h")
    assert machine.listed("other/new.h", kept="kept") == ["other/new.h"]


@pytest.mark.parametrize(("path", "top"), [("/usr/include/a/b.h", "/usr/include"), ("/tmp/x", "/tmp/x"), ("/x", "/x")])
def test_packages_are_grouped_by_two_folders(path, top):
    assert packages._top(path) == top


@pytest.mark.parametrize("text", ["", "[]", "{", '{"state": 1}', '["", [[], 0, []]]'])
def test_a_damaged_file_of_answers_is_ignored(machine, text):
    machine.dpkg("inc/a.h")
    text_files.write(machine.folder, "kept/packages.json", text)
    assert machine.listed("inc/a.h", "inc/b.h", kept="kept") == ["inc/a.h"]


def test_a_database_that_has_just_changed_is_read_each_time(machine, monkeypatch):
    """A second change within one tick of a coarse clock would not change its stamp."""
    monkeypatch.setattr(fake_disk, "LaterDisk", Disk)
    machine.dpkg("inc/a.h")
    machine.listed("inc/a.h", kept="kept")
    assert os.listdir(machine.path("kept")) == []


def wheel(machine, name, *files):
    folder = machine.folder / "site" / f"{name}.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    text_files.write(folder, "RECORD", "".join(f"{file},sha256=x,1\n" for file in files))
    for file in files:
        os.makedirs(machine.folder / "site" / os.path.dirname(file), exist_ok=True)
        text_files.write(machine.folder / "site", file, "")


def test_the_wheel_that_lists_a_file_is_found(machine):
    wheel(machine, "torch-2.13.0", "torch/include/t.h")
    wheel(machine, "nvidia_cuda_cccl-13.0", "nvidia/cu13/include/c.h")
    wheel(machine, "nvidia_cuda_crt-13.0", "nvidia/cu13/include/r.h")
    text_files.write(machine.folder, "site/torch/include/copied.h", "")
    files = PackageFiles(Disk())
    owners = {
        name: files.find(machine.path(f"site/{name}")) for name in ("torch/include/t.h", "torch/include/copied.h")
    }
    assert [owner and owner.package for owner in owners.values()] == ["torch-2.13.0.dist-info", None]
    crt = files.find(machine.path("site/nvidia/cu13/include/r.h"))
    assert crt and crt.stamp_file == machine.path("site/nvidia_cuda_crt-13.0.dist-info/RECORD")
    assert files.is_in_wheels(machine.path("site/nvidia/cu13")) and not files.is_in_wheels(machine.path("inc"))


def test_a_file_of_a_wheel_that_is_a_link_is_nobodys(machine):
    wheel(machine, "torch-2.13.0", "torch/t.h")
    os.unlink(machine.path("site/torch/t.h"))
    os.symlink(machine.path("inc/a.h"), machine.path("site/torch/t.h"))
    assert machine.listed("site/torch/t.h") == []


def test_a_file_of_a_wheel_behind_a_linked_folder_is_nobodys(machine):
    wheel(machine, "torch-2.13.0", "torch/inc/t.h", "torch/inc/u.h")
    os.rename(machine.path("site/torch/inc"), machine.path("elsewhere"))
    os.symlink(machine.path("elsewhere"), machine.path("site/torch/inc"))
    assert machine.listed("site/torch/inc/t.h", "site/torch/inc/u.h") == []


@pytest.mark.parametrize("folder", ["/", "//", "/no-such-folder", "//no-such-folder"])
def test_the_search_for_wheels_ends_at_the_root_however_it_is_spelled(machine, folder):
    files = PackageFiles(Disk())
    assert files.find(os.path.join(folder, "value.h")) is None
    assert not files.is_in_wheels(folder)
