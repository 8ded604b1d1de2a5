"""Disks that are full, read-only, or allow no execution: an error that names the problem, and nothing left behind."""

from __future__ import annotations

import os
import resource
import signal
import subprocess

import pytest
from support import child_processes, sample_ops
from support.store.fake_store import ME

import opforge
from opforge.cache import layer
from opforge.errors import BuildResourceError, CacheDirError, LoadError

pytestmark = [pytest.mark.compile, pytest.mark.timeout(90)]
BIG = sample_ops.PLAIN_SOURCE + "".join(
    f'extern "C" int f{number}(int x) {{ return x * {number} + (x << 3); }}\n' for number in range(400)
)


@pytest.mark.parametrize("pages", [8, 12, 16, 20, 24, 28, 32, 40])
def test_a_full_disk_is_reported_at_every_step_and_nothing_is_left(tmp_path, mount_tmpfs, monkeypatch, pages):
    """With each size the build fails at a later step: build file, object, library, record, entry."""
    store = mount_tmpfs(f"size={pages * 4}k")
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(store))
    cls = sample_ops.plain_op(tmp_path / "op", source=BIG)
    try:
        cls().build()
    except BuildResourceError as error:
        assert "the disk is full. Free some space, or set OPFORGE_CACHE_DIR to another disk." in str(error)
    staging = store / "v2" / "staging"
    assert not staging.exists() or os.listdir(staging) == []
    assert [name for _parent, _folders, names in os.walk(store) for name in names if name.endswith(".tmp")] == []


def test_a_full_disk_is_reported_when_an_inline_source_is_written(mount_tmpfs, monkeypatch):
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(mount_tmpfs("size=64k")))
    with pytest.raises(BuildResourceError, match="inline: the build stopped: the disk is full"):
        opforge.load_inline("inline", "//" + "x" * 100_000, abi="c")


def test_a_layer_on_a_full_disk_holds_no_part_of_the_entry(tmp_path, mount_tmpfs):
    folder = mount_tmpfs("size=32k")
    entry = sample_ops.plain_op(tmp_path / "op", source=BIG)().build()
    with pytest.raises(CacheDirError, match=r"it cannot be written \(No space left on device\). Choose another folder"):
        layer.add(str(folder / "layer"), entry, "description", ME)
    assert os.listdir(folder / "layer" / "v2" / "entries") == []
    assert os.listdir(folder / "layer" / "v2" / "descriptions" / "description") == []


def test_a_disk_that_is_full_before_the_store_is_made_is_reported(tmp_path, mount_tmpfs, monkeypatch):
    disk = mount_tmpfs("size=64k,nr_inodes=4")
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(disk / "store"))
    with pytest.raises(CacheDirError, match=r"it cannot be written \(No space left on device\). Set OPFORGE_CACHE_DIR"):
        sample_ops.plain_op(tmp_path / "op")().build()


def test_the_op_is_built_once_there_is_space_again(tmp_path, mount_tmpfs, monkeypatch):
    store = mount_tmpfs("size=64k")
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(store))
    cls = sample_ops.plain_op(tmp_path / "op", source=BIG)
    with pytest.raises(BuildResourceError):
        cls().load()
    subprocess.run(["mount", "-o", "remount,size=8m", store], check=True)
    assert cls().load().value() == 1


LIMITED = """
import os, resource
from support import sample_ops
from support.store.fake_store import ME
from opforge.errors import BuildResourceError
resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))
try:
    sample_ops.builder_class(os.environ["FOLDER"], "plain", abi="c")().load()
except BuildResourceError as error:
    print("refused", os.listdir(os.path.join(os.environ["OPFORGE_CACHE_DIR"], "v2", "staging")))
    print(error)
"""


def test_a_limit_on_file_sizes_is_a_resource_error(tmp_path):
    sample_ops.plain_op(tmp_path / "op", source=BIG)
    output = child_processes.run_python(LIMITED, env={"FOLDER": str(tmp_path / "op")}, preexec_fn=ignore_xfsz)
    assert output.startswith("refused []\nplain: the build stopped: "), output


def ignore_xfsz():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def test_on_a_disk_without_execution_the_error_names_the_variable_to_set(tmp_path, mount_tmpfs, monkeypatch):
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(mount_tmpfs("size=8m,noexec")))
    with pytest.raises(LoadError, match=r"failed to map segment.*mounted noexec: set OPFORGE_CACHE_DIR, or TMPDIR"):
        sample_ops.plain_op(tmp_path / "op", value=171717)().load()  # a library that this process has not loaded


def test_a_read_only_disk_serves_hits_and_names_the_variable_to_set_for_builds(tmp_path, mount_tmpfs, monkeypatch):
    store = mount_tmpfs("size=8m")
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(store))
    cls = sample_ops.plain_op(tmp_path / "op", value=5)
    cls().build()
    subprocess.run(["mount", "-o", "remount,ro", store], check=True)
    assert cls().load().value() == 5
    sample_ops.set_value(tmp_path / "op", 6)
    with pytest.raises(
        CacheDirError, match=r"it cannot be written \(Read-only file system\). Set OPFORGE_CACHE_DIR to a folder"
    ):
        cls().load()
