"""Stores that something has happened to: a damaged entry, a full disk, a disk that allows no execution."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess

import pytest
from support import child_processes, sample_ops, text_files

import opforge
from opforge.cache.transfer import layer
from opforge.errors import BuildResourceError, CacheDirError, LoadError

pytestmark = [pytest.mark.compile, pytest.mark.timeout(90)]


@pytest.fixture
def op(tmp_path):
    """The class of a built op, and its entry."""
    cls = sample_ops.plain_op(tmp_path / "op", value=5)
    return cls, cls().build()


def truncate(entry):
    os.chmod(entry.library, 0o700)
    os.truncate(entry.library, 4096)


def zero(entry):
    os.chmod(entry.library, 0o700)
    with open(entry.library, "r+b") as file:
        file.write(bytes(os.path.getsize(entry.library)))


def flip(entry):
    os.chmod(entry.library, 0o700)
    with open(entry.library, "r+b") as file:
        file.seek(-100, 2)
        byte = file.read(1)[0]
        file.seek(-100, 2)
        file.write(bytes([byte ^ 0x10]))


def empty(entry):
    os.chmod(entry.library, 0o700)
    os.truncate(entry.library, 0)


def as_folder(entry):
    os.unlink(entry.library)
    os.mkdir(entry.library)


def as_link(entry):
    os.rename(entry.library, entry.library + ".real")
    os.symlink(entry.library + ".real", entry.library)


def as_pipe(entry):
    os.unlink(entry.library)
    os.mkfifo(entry.library)


def as_another_ops_file(entry):
    other = sample_ops.plain_op(os.path.dirname(entry.folder) + "-other", name="other", value=6)().build()
    os.unlink(entry.library)
    shutil.copy(other.library, entry.library)


def no_library(entry):
    os.unlink(entry.library)


def no_manifest(entry):
    os.unlink(os.path.join(entry.folder, "manifest.json"))
    os.chmod(entry.library, 0o700)
    os.truncate(entry.library, 1)


def entry_as_file(entry):
    shutil.rmtree(entry.folder)
    text_files.write(os.path.dirname(entry.folder), os.path.basename(entry.folder), "")


def entry_as_link_to_another(entry):
    other = sample_ops.plain_op(os.path.dirname(entry.folder) + "-other", name="other", value=6)().build()
    shutil.rmtree(entry.folder)
    os.symlink(other.folder, entry.folder)


def writable_by_the_group(entry):
    os.chmod(entry.library, 0o570)


HARMS = [
    truncate,
    zero,
    flip,
    empty,
    as_folder,
    as_link,
    as_pipe,
    as_another_ops_file,
    no_library,
    no_manifest,
    entry_as_file,
    entry_as_link_to_another,
    writable_by_the_group,
]
LOAD = """
import logging, os, sys
logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s", stream=sys.stdout)
op = sample_ops.builder_class(os.environ["FOLDER"], "plain", abi="c")().load()
print(op.value(), op.origin)
"""


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)
def test_a_damaged_entry_is_set_aside_reported_and_built_again(op, tmp_path, harm, own_store):
    _cls, entry = op
    harm(entry)
    lines = child_processes.run_python(LOAD, env={"FOLDER": str(tmp_path / "op")}, timeout=30).splitlines()
    assert lines[-1] == "5 built"
    (warning,) = lines[:-1]
    assert (
        warning.startswith(f"WARNING The cache entry {entry.folder} is damaged: ") and "It was set aside in " in warning
    )
    assert child_processes.run_python(LOAD, env={"FOLDER": str(tmp_path / "op")}).splitlines() == ["5 cache"]
    assert len(os.listdir(own_store / "v1" / "quarantine")) == 1


def test_what_a_process_has_loaded_stays_when_its_entry_goes(op, own_store):
    cls, _entry = op
    builder = cls()
    loaded = builder.load()
    shutil.rmtree(own_store)
    assert loaded.value() == 5
    assert builder.load().value() == 5
    assert cls().load().value() == 5


def test_a_store_that_is_removed_between_two_loads_is_made_again(op, own_store, tmp_path):
    shutil.rmtree(own_store)
    assert child_processes.run_python(LOAD, env={"FOLDER": str(tmp_path / "op")}).splitlines() == ["5 built"]


def test_random_noise_all_over_the_store_is_never_a_crash(op, own_store, tmp_path):
    import random

    _cls, entry = op
    chance = random.Random(7)
    for _round in range(12):
        files = [os.path.join(at, name) for at, _folders, names in os.walk(own_store / "v1") for name in names]
        for path in chance.sample(files, min(3, len(files))):
            os.chmod(path, 0o600)
            size = os.path.getsize(path)
            with open(path, "r+b") as file:
                file.seek(chance.randrange(size + 1))
                file.write(chance.randbytes(chance.randrange(1, 40)))
        assert sample_ops.plain_op(tmp_path / "op", value=5)().build().key == entry.key
    assert (
        child_processes.run_python(LOAD, env={"FOLDER": str(tmp_path / "op")}, timeout=30)
        .splitlines()[-1]
        .startswith("5 ")
    )


# -- no space ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def mounted(tmp_path):
    """A function that mounts a tmpfs with options and gives its path."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a small tmpfs: run the tests as root")
    made = []

    def mount(options):
        path = tmp_path / f"mount{len(made)}"
        path.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"mode=700,{options}", "none", path], capture_output=True)
        if done.returncode:
            pytest.skip(f"cannot mount a tmpfs here: {done.stderr.decode().strip()}")
        made.append(path)
        return path

    yield mount
    for path in made:
        subprocess.run(["umount", "-l", path], check=True)


BIG = sample_ops.PLAIN_SOURCE + "".join(
    f'extern "C" int f{number}(int x) {{ return x * {number} + (x << 3); }}\n' for number in range(400)
)


@pytest.mark.parametrize("pages", [8, 12, 16, 20, 24, 28, 32, 40])
def test_a_full_disk_is_called_so_wherever_it_strikes_and_nothing_is_left(tmp_path, mounted, monkeypatch, pages):
    """Each size lets the build come a little further: build file, object, library, entry, manifest."""
    store = mounted(f"size={pages * 4}k")
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(store))
    cls = sample_ops.plain_op(tmp_path / "op", source=BIG)
    try:
        cls().build()
    except BuildResourceError as error:
        assert "the disk is full. Free some space, or set OPFORGE_CACHE_DIR to another disk." in str(error)
    staging = store / "v1" / "staging"
    assert not staging.exists() or os.listdir(staging) == []
    assert [name for at, _folders, names in os.walk(store) for name in names if name.endswith(".tmp")] == []


def test_a_disk_that_is_full_when_the_source_of_an_inline_op_is_written_says_so(mounted, monkeypatch):
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(mounted("size=64k")))
    with pytest.raises(BuildResourceError, match="inline: the build stopped: the disk is full"):
        opforge.load_inline("inline", "//" + "x" * 100_000, abi="c")


def test_a_layer_on_a_full_disk_says_so_and_holds_no_part_of_the_entry(tmp_path, mounted):
    folder = mounted("size=32k")
    entry = sample_ops.plain_op(tmp_path / "op", source=BIG)().build()
    with pytest.raises(CacheDirError, match=r"it cannot be written \(No space left on device\). Choose another folder"):
        layer.add(str(folder / "layer"), entry, "description")
    assert os.listdir(folder / "layer" / "v1" / "entries") == []
    assert os.listdir(folder / "layer" / "v1" / "descriptions" / "description") == []


def test_a_disk_that_is_full_before_anything_is_made_says_so(tmp_path, mounted, monkeypatch):
    store = mounted("size=64k,nr_inodes=4")
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(store / "store"))
    with pytest.raises(CacheDirError, match=r"it cannot be written \(No space left on device\). Set OPFORGE_CACHE_DIR"):
        sample_ops.plain_op(tmp_path / "op")().build()


def test_once_there_is_space_again_the_op_builds(tmp_path, mounted, monkeypatch):
    store = mounted("size=64k")
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(store))
    cls = sample_ops.plain_op(tmp_path / "op", source=BIG)
    with pytest.raises(BuildResourceError):
        cls().load()
    subprocess.run(["mount", "-o", "remount,size=8m", store], check=True)
    assert cls().load().value() == 1


LIMITED = """
import os, resource
from opforge.errors import OpforgeError, BuildResourceError
resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))
try:
    sample_ops.builder_class(os.environ["FOLDER"], "plain", abi="c")().load()
except BuildResourceError as error:
    print("refused", os.listdir(os.path.join(os.environ["OPFORGE_CACHE_DIR"], "v1", "staging")))
    print(error)
"""


def test_a_limit_on_file_sizes_is_a_matter_of_resources(tmp_path):
    sample_ops.plain_op(tmp_path / "op", source=BIG)
    said = child_processes.run_python(LIMITED, env={"FOLDER": str(tmp_path / "op")}, preexec_fn=ignore_xfsz)
    assert said.startswith("refused []\nplain: the build stopped: "), said


def ignore_xfsz():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def test_a_disk_without_execution_says_what_to_set(tmp_path, mounted, monkeypatch):
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(mounted("size=8m,noexec")))
    with pytest.raises(
        LoadError, match=r"failed to map segment.*mounted noexec: set OPFORGE_CACHE_DIR to one that allows"
    ):
        sample_ops.plain_op(tmp_path / "op", value=171717)().load()  # a result not loaded yet


def test_a_read_only_disk_serves_hits_and_says_what_to_set_for_builds(tmp_path, mounted, monkeypatch):
    from opforge.errors import CacheDirError

    store = mounted("size=8m")
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


def test_a_store_reached_through_a_link_works(tmp_path, monkeypatch):
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(tmp_path / "link"))
    cls = sample_ops.plain_op(tmp_path / "op", value=5)
    assert cls().load().value() == 5
    assert cls().build().origin == "cache"
