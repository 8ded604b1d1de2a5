"""Images with fixed times, mounted at one place in turn: their files' stamps repeat, their contents count."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time

import pytest
from support import child_processes, sample_ops

from opforge.accelerator.entry_points import entry_points
from opforge.cache.filesystem.disk import Disk
from opforge.foundation import settings
from opforge.foundation.files import changed_path, stamp_of

pytestmark = [pytest.mark.compile, pytest.mark.timeout(180)]
KINDS = ["loop", "overlay", "fuse", "ext4"]
LOAD = """
import os
from support import sample_ops
op = sample_ops.builder_class(os.environ["FOLDER"], "plain", abi="c")().load()
print(op.value(), op.origin)
"""


class Images:
    """Mounts one image of files at a time, always at the same place, as a container's runtime does."""

    def __init__(self, folder, kind):
        self.folder, self.kind, self.place = folder, kind, folder / "image"
        self.place.mkdir()
        self._mounted, self._count = [], 0

    def show(self, files):
        """Mounts an image of these files, given as name -> text, in place of the one before; returns its folder."""
        self.close()
        content, image = self.folder / "content", self.folder / f"{self._count}.squashfs"
        self._count += 1
        for name, text in files.items():
            path = content / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text), path.chmod(0o755)
        self._make(content, image)
        shutil.rmtree(content)
        if self.kind == "fuse":
            self._mount(self.place, "squashfuse", "-o", "allow_other", image, self.place)
        elif self.kind in ("loop", "ext4"):  # ext4 can be written
            self._mount(self.place, "mount", "-o", "loop", image, self.place)
        else:
            lower = self.folder / "lower"
            lower.mkdir(exist_ok=True)
            self._mount(lower, "mount", "-o", "loop", image, lower)
            disk = self.folder / "disk"
            disk.mkdir(exist_ok=True)
            self._mount(disk, "mount", "-t", "tmpfs", "none", disk)
            (disk / "upper").mkdir(), (disk / "work").mkdir()
            layers = f"lowerdir={lower},upperdir={disk}/upper,workdir={disk}/work"
            self._mount(self.place, "mount", "-t", "overlay", "-o", layers, "none", self.place)
        return self.place

    def _make(self, content, image):
        """Makes the image of a folder, with fixed times."""
        if self.kind != "ext4":
            self._run("mksquashfs", content, image, "-all-time", "1000", "-mkfs-time", "1000", "-quiet", "-no-progress")
            return
        self._run("mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-d", content, image, "4M")
        paths = ["/", *(f"/{path.relative_to(content)}" for path in sorted(content.rglob("*")))]
        lines = [f"set_inode_field {path} {time} 1000" for path in paths for time in ("ctime", "mtime")]
        (self.folder / "commands").write_text("\n".join(lines) + "\n")
        self._run("debugfs", "-w", "-f", self.folder / "commands", image)

    def close(self):
        while self._mounted:
            subprocess.run(["umount", self._mounted.pop()], check=True)

    def _mount(self, place, *command):
        self._run(*command)
        self._mounted.append(place)

    def _run(self, *command):
        if shutil.which(command[0]) is None:
            pytest.skip(f"needs {command[0]} (apt install squashfs-tools squashfuse e2fsprogs)")
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"cannot mount an image here: {(done.stderr or done.stdout).strip()}")


ONE_KIND = pytest.mark.parametrize(
    "images",
    [
        "loop",
        *(pytest.param(kind, marks=pytest.mark.long("the stamps below are of each kind")) for kind in KINDS[1:]),
    ],
    indirect=True,
)


@pytest.fixture(params=KINDS)
def images(request, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount images: run the tests as root")
    (tmp_path / "images").mkdir()
    images = Images(tmp_path / "images", request.param)
    yield images
    images.close()


def load(folder, **names):
    return child_processes.run_python(LOAD, env={"FOLDER": str(folder), **names}).split()


@ONE_KIND
def test_a_header_in_another_image_is_built_from(images):
    files = {"plain.cpp": sample_ops.PLAIN_SOURCE, "value.h": "#define VALUE 1\n"}
    folder = images.show(files)
    assert load(folder) == ["1", "built"]
    time.sleep(2.1)  # what was made just before is not remembered
    assert load(folder) == load(folder) == ["1", "cache"]
    before = os.stat(folder / "value.h")
    images.show({**files, "value.h": "#define VALUE 2\n"})
    after = os.stat(folder / "value.h")
    assert (before.st_size, before.st_ctime_ns) == (after.st_size, after.st_ctime_ns)
    # So is the device, unless something else mounts an image at this moment.
    assert images.kind not in ("loop", "ext4") or before.st_ino == after.st_ino
    assert load(folder) == ["2", "built"]
    images.show(files)
    assert load(folder) == ["1", "cache"]


@ONE_KIND
def test_another_images_compiler_builds_again(images, tmp_path):
    sample_ops.plain_op(tmp_path / "op", source=f"{sample_ops.EXPORT} int value() {{ return NUMBER; }}\n")
    script = '#!/bin/sh\nexec g++ -DNUMBER={} "$@"\n'
    folder = images.show({"c++": script.format(3)})
    assert load(tmp_path / "op", CXX=f"{folder}/c++") == ["3", "built"]
    time.sleep(2.1)
    assert load(tmp_path / "op", CXX=f"{folder}/c++") == ["3", "cache"]
    images.show({"c++": script.format(4)})
    assert load(tmp_path / "op", CXX=f"{folder}/c++") == ["4", "built"]


def test_the_stamps_of_files_folders_and_links_differ_between_images(images):
    stamps = []
    for text, target in (("int a;", "x"), ("int b;", "y")):
        folder = images.show({"sub/file.h": text, f"sub/{target}": "same"})
        stamps.append([Disk().stamp(f"{folder}/sub/{name}") for name in ("", "file.h")])
        stamps[-1] += [Disk().flat_stamps([f"{folder}/sub/file.h"]), stamp_of(f"{folder}/sub/file.h")]
        files = {"sub/file.h": stamps[0][3]}
        assert changed_path(str(folder), files) == ("sub/file.h" if target == "y" else "")
    assert all(first != second for first, second in zip(*stamps, strict=True))


def test_the_stamps_of_what_a_link_leads_to_differ_between_images(images, tmp_path):
    stamps = []
    (tmp_path / "link.h").symlink_to(images.place / "file.h")
    (tmp_path / "links").symlink_to(images.place)
    for text in ("int a;", "int b;"):
        images.show({"file.h": text})
        paths = [str(tmp_path / "link.h"), str(tmp_path / "links" / "file.h")]
        stamps.append([[Disk().flat_stamps([path]), Disk().stamp(path)] for path in paths])
    assert all(first != second for first, second in zip(*stamps, strict=True))


def test_the_entry_points_of_another_image_are_found(images, monkeypatch):
    def package(name):
        point = f"[opforge.sources]\n{name} = package:{name}\n"
        return {"p-1.dist-info/METADATA": "Name: p\nVersion: 1\n", "p-1.dist-info/entry_points.txt": point}

    os.makedirs(settings.cache_dir(), mode=0o700, exist_ok=True)  # the index is in it
    monkeypatch.setattr(sys, "path", [str(images.show(package("one")))])
    assert [point.name for point in entry_points("opforge.sources")] == ["one"]
    assert [point.name for point in entry_points("opforge.sources")] == ["one"]
    images.show(package("two"))
    assert [point.name for point in entry_points("opforge.sources")] == ["two"]


SETTING = "from opforge.foundation import settings; print(settings.lock_timeout())"


def test_the_settings_file_of_another_image_is_read(images):
    for number in ("11", "22"):
        folder = images.show({"opforge/config.toml": f"lock_timeout = {number}\n"})
        for _process in range(2):  # the second one remembers it
            assert child_processes.run_python(SETTING, env={"XDG_CONFIG_HOME": str(folder)}).strip() == f"{number}.0"
