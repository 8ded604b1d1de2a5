"""What goes wrong on a machine: processes that are killed, files that are damaged, and processes that build at once."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest
from support import child_processes, gate, polling, sample_ops, text_files

pytestmark = [
    pytest.mark.compile,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for processes in /proc"),
]
LOAD = """
import logging, os, sys, opforge
logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s", stream=sys.stdout)
op = opforge.load("plain", [os.environ["FOLDER"] + "/plain.cpp"], abi="c")
print(op.value(), op.origin)
"""


def load(folder, **changes):
    """Loads the op in another process; returns the lines that it prints, the last of which is value and origin."""
    return child_processes.run_python(LOAD, env={"FOLDER": str(folder), **changes}).splitlines()


def start(folder, **changes):
    return child_processes.start_python(LOAD, env={"FOLDER": str(folder), **changes})


@pytest.fixture
def gated(tmp_path):
    """An op whose compiler waits at a closed gate."""
    path = tmp_path / "op"
    sample_ops.plain_op(path, source=gate.SOURCE, value=5)
    gate.close_gate(path)
    return path


@pytest.fixture
def entry(folder, own_store):
    """The folder of the op's entry in the store."""
    assert load(folder) == ["1 built"]
    (entry,) = (own_store / "v2" / "entries").iterdir()
    return entry


def test_a_killed_build_leaves_no_compiler_and_the_next_load_builds(gated, own_store):
    builder = start(gated)
    polling.wait_for(lambda: child_processes.compilers_in(gated), reason="no compiler has started")
    builder.kill()
    builder.communicate()
    polling.wait_for(lambda: not child_processes.matching(gated), reason="a compiler is left")
    gate.open_gate(gated)
    assert load(gated) == ["5 built"] and load(gated) == ["5 cache"]
    assert os.listdir(own_store / "v2" / "staging") == []


def test_of_eight_processes_one_builds(gated, own_store):
    """The others have the op when it is there: their lock is that of the plan."""
    processes = [start(gated) for _number in range(8)]
    polling.wait_for(lambda: child_processes.compilers_in(gated), reason="no compiler has started")
    gate.open_gate(gated)
    outputs = sorted(process.communicate(timeout=100)[0].split()[-1] for process in processes)
    assert outputs == ["built", *["cache"] * 7]
    assert len(os.listdir(own_store / "v2" / "entries")) == 1


def test_a_wait_says_who_holds_the_lock_and_ends_in_time(gated):
    builder = start(gated)
    polling.wait_for(lambda: child_processes.compilers_in(gated), reason="no compiler has started")
    waiter = start(gated, OPFORGE_LOCK_TIMEOUT="0.2")
    _out, err = waiter.communicate(timeout=60)
    assert waiter.returncode == 1 and "LockTimeoutError" in err and f"process {builder.pid}" in err
    gate.open_gate(gated)
    assert builder.communicate(timeout=60)[0] == "5 built\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk: run the tests as root")
def test_a_full_disk_is_an_error(folder, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=700,size=16k", "none", disk], capture_output=True)
    if done.returncode:
        pytest.skip(f"cannot mount a disk here: {done.stderr.decode().strip()}")
    try:
        process = start(folder, OPFORGE_CACHE_DIR=str(disk / "store"))
        _out, err = process.communicate(timeout=60)
    finally:
        subprocess.run(["umount", "-l", disk], check=True)
    assert process.returncode == 1 and "the disk is full. Free some space" in err


def library_of(entry):
    (path,) = entry.glob("*.so")
    path.chmod(0o700)
    return path


def cut(entry):
    os.truncate(library_of(entry), 4096)


def flipped(entry):
    path = library_of(entry)
    content = bytearray(path.read_bytes())
    content[-100] ^= 16
    path.write_bytes(content)


def another_ops(entry):
    """Puts the library of another op in place, whole and with its own record's size in doubt."""
    folder = entry.parent.parent.parent / "another"
    sample_ops.plain_op(folder, name="other", value=6)
    other = sample_ops.builder_class(folder, "other", abi="c")().build()
    shutil.copy(other.library, library_of(entry))


@pytest.mark.parametrize("damage", [cut, flipped, another_ops], ids=lambda damage: damage.__name__)
def test_a_damaged_library_is_set_aside_and_built_again(folder, entry, own_store, damage):
    damage(entry)
    warning, result = load(folder)
    assert result == "1 built"
    assert warning.startswith(f"WARNING The cache entry {entry} is damaged: ") and "It was set aside in " in warning
    assert load(folder) == ["1 cache"]
    assert len(os.listdir(own_store / "v2" / "quarantine")) == 1


def test_an_entry_is_used_in_the_folder_alone_that_its_record_names(folder, entry, own_store):
    sample_ops.set_value(folder, 2)
    assert load(folder) == ["2 built"]
    (other,) = [path for path in entry.parent.iterdir() if path != entry]
    entry.rename(entry.with_name("kept"))
    other.rename(entry)
    entry.with_name("kept").rename(other)
    assert load(folder)[-1] == "2 built"
    sample_ops.set_value(folder, 1)
    assert load(folder)[-1].startswith("1 ")


def pipe(path):
    os.mkfifo(path)


def device(path):
    path.symlink_to("/dev/zero")


def terabytes(path):
    with path.open("wb") as file:
        file.truncate(1 << 42)


def damaged_json(path):
    path.write_text('{"format": [[[')


@pytest.mark.parametrize("put", [pipe, device, terabytes, damaged_json], ids=lambda put: put.__name__)
def test_whatever_lies_in_place_of_a_file_is_neither_waited_for_nor_read_without_bound(folder, entry, own_store, put):
    files = [path for path in own_store.rglob("*") if path.suffix == ".json"]
    assert len(files) >= 2
    for path in files:
        path.unlink()
        put(path)
    assert load(folder)[-1].startswith("1 ")
    assert load(folder)[-1].startswith("1 ")


def test_a_record_that_was_changed_is_a_damage(folder, entry):
    path = entry / "record.json"
    record = json.loads(path.read_text())
    record["inputs"]["files"] = record["inputs"]["files"][:-1]
    path.chmod(0o600)
    path.write_text(json.dumps(record))
    sample_ops.set_value(folder, 3)
    assert load(folder)[-1] == "3 built"


# -- what opforge writes and removes -----------------------------------------------------------------------------------


def test_files_have_mode_0600_and_folders_0700_whatever_the_umask(folder, own_store):
    old = os.umask(0)
    try:
        assert load(folder) == ["1 built"]
    finally:
        os.umask(old)
    for path in [own_store, *own_store.rglob("*")]:
        mode = path.stat().st_mode & 0o777
        assert mode & 0o077 == 0, (path, oct(mode))


def test_files_of_a_layer_become_readable_once_they_are_complete(declared, tmp_path):
    words = ["build-ops", "plain_ops:Plain", "--out", str(tmp_path / "layer")]
    done = child_processes.run_command(*words, **declared)
    assert done.returncode == 0, done.stderr
    for path in (tmp_path / "layer").rglob("*"):
        assert path.stat().st_mode & 0o044 == 0o044 and path.stat().st_mode & 0o022 == 0


def test_what_is_removed_is_the_stores_own_and_no_link_is_followed(folder, entry, own_store, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "years").write_text("of work")
    (own_store / "v2" / "staging" / "old").symlink_to(tmp_path / "thesis")
    os.link(tmp_path / "thesis" / "years", own_store / "v2" / "staging" / "second-name")
    for words in (["gc", "--all"], ["rm", "--all"]):
        child_processes.run_command(*words)
    assert (tmp_path / "thesis" / "years").read_text() == "of work"


def test_a_store_behind_a_link_works_and_one_with_a_link_inside_is_refused(folder, tmp_path, own_store):
    own_store.mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(own_store)
    assert load(folder, OPFORGE_CACHE_DIR=str(tmp_path / "link")) == ["1 built"]
    (own_store / "v2" / "entries").rename(tmp_path / "elsewhere")
    (own_store / "v2" / "entries").symlink_to(tmp_path / "elsewhere")
    before = sorted(os.listdir(tmp_path / "elsewhere"))
    process = start(folder)
    _out, err = process.communicate(timeout=60)
    assert process.returncode == 1 and "link" in err
    assert sorted(os.listdir(tmp_path / "elsewhere")) == before


def test_a_folder_that_holds_other_files_is_no_store(folder, tmp_path):
    text_files.write(tmp_path / "home", "letter", "dear")
    process = start(folder, OPFORGE_CACHE_DIR=str(tmp_path / "home"))
    _out, err = process.communicate(timeout=60)
    assert process.returncode == 1 and "CacheDirError" in err
    assert os.listdir(tmp_path / "home") == ["letter"]


def test_a_folder_that_others_may_write_is_refused_with_the_reason_and_left_alone(folder, own_store):
    own_store.mkdir(mode=0o700)
    own_store.chmod(0o777)
    process = start(folder)
    _out, err = process.communicate(timeout=60)
    assert process.returncode == 1 and "CacheDirError" in err and "written by everybody" in err
    assert own_store.stat().st_mode & 0o777 == 0o777 and os.listdir(own_store) == []


def test_a_library_is_loaded_from_where_it_was_checked(folder, entry):
    """The library that is opened is the file that was compared: a name that leads elsewhere is not followed."""
    library = library_of(entry)
    evil = library.with_name("evil.so")
    source = text_files.write(folder, "evil.cpp", f"{sample_ops.EXPORT} int value() {{ return 666; }}\n")
    subprocess.run(["g++", "-shared", "-fPIC", source, "-o", evil], check=True)
    library.unlink()
    library.symlink_to(evil)
    assert load(folder)[-1] == "1 built"
