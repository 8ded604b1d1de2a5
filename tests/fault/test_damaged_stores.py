"""Stores that are damaged, removed, or filled with noise: every load builds again or finds an intact entry."""

from __future__ import annotations

import os
import random
import shutil

import pytest
from support import child_processes, sample_ops, text_files

pytestmark = [pytest.mark.compile, pytest.mark.timeout(90)]
LOAD = """
import logging, os, sys
from support import sample_ops
logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s", stream=sys.stdout)
op = sample_ops.builder_class(os.environ["FOLDER"], "plain", abi="c")().load()
print(op.value(), op.origin)
"""


@pytest.fixture
def op_class(tmp_path):
    """The class of an op."""
    return sample_ops.plain_op(tmp_path / "op", value=5)


@pytest.fixture
def entry(op_class):
    """The op's entry."""
    return op_class().build()


def load(tmp_path):
    """Loads the op in another process; returns what it prints."""
    return child_processes.run_python(LOAD, env={"FOLDER": str(tmp_path / "op")}, timeout=30).splitlines()


def truncate(entry):
    os.chmod(entry.library, 0o700)
    os.truncate(entry.library, 4096)


def zero(entry):
    os.chmod(entry.library, 0o700)
    with open(entry.library, "r+b") as file:
        file.write(bytes(os.path.getsize(entry.library)))


def flip_bit(entry):
    os.chmod(entry.library, 0o700)
    with open(entry.library, "r+b") as file:
        file.seek(-100, 2)
        byte = file.read(1)[0]
        file.seek(-100, 2)
        file.write(bytes([byte ^ 0x10]))


def empty(entry):
    os.chmod(entry.library, 0o700)
    os.truncate(entry.library, 0)


def library_as_folder(entry):
    os.unlink(entry.library)
    os.mkdir(entry.library)


def library_as_link(entry):
    os.rename(entry.library, entry.library + ".real")
    os.symlink(entry.library + ".real", entry.library)


def library_as_pipe(entry):
    os.unlink(entry.library)
    os.mkfifo(entry.library)


def library_of_another_op(entry):
    other = sample_ops.plain_op(os.path.dirname(entry.folder) + "-other", name="other", value=6)().build()
    os.unlink(entry.library)
    shutil.copy(other.library, entry.library)


def no_library(entry):
    os.unlink(entry.library)


def no_record(entry):
    os.unlink(os.path.join(entry.folder, "record.json"))
    os.chmod(entry.library, 0o700)
    os.truncate(entry.library, 1)


def entry_as_file(entry):
    shutil.rmtree(entry.folder)
    text_files.write(os.path.dirname(entry.folder), os.path.basename(entry.folder), "")


def entry_as_link_to_another(entry):
    other = sample_ops.plain_op(os.path.dirname(entry.folder) + "-other", name="other", value=6)().build()
    shutil.rmtree(entry.folder)
    os.symlink(other.folder, entry.folder)


def writable_by_others(entry):
    os.chmod(entry.library, 0o572)


DAMAGES = [
    truncate,
    zero,
    flip_bit,
    empty,
    library_as_folder,
    library_as_link,
    library_as_pipe,
    library_of_another_op,
    no_library,
    no_record,
    entry_as_file,
    entry_as_link_to_another,
    writable_by_others,
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_entry_is_set_aside_reported_and_built_again(op_class, entry, tmp_path, damage, own_store):
    damage(entry)
    *warnings, result = load(tmp_path)
    assert result == "5 built"
    (warning,) = warnings
    assert warning.startswith(f"WARNING The cache entry {entry.folder} is damaged: ")
    assert "It was set aside in " in warning
    again = op_class().build()
    assert (again.origin, again.key) == ("cache", entry.key)
    assert len(os.listdir(own_store / "v2" / "quarantine")) == 1


def test_a_loaded_op_can_be_used_after_its_store_is_removed(op_class, own_store):
    builder = op_class()
    op = builder.load()
    shutil.rmtree(own_store)
    assert op.value() == 5
    assert builder.load().value() == 5
    assert op_class().load().value() == 5


def test_a_store_that_is_removed_between_two_loads_is_made_again(entry, own_store, tmp_path):
    shutil.rmtree(own_store)
    assert load(tmp_path) == ["5 built"]


def test_random_noise_in_the_store_crashes_no_load(entry, own_store, tmp_path):
    chance = random.Random(7)
    for _round in range(12):
        walked = os.walk(own_store / "v2")
        files = sorted(os.path.join(parent, name) for parent, _folders, names in walked for name in names)
        for path in chance.sample(files, min(3, len(files))):
            os.chmod(path, 0o600)
            size = os.path.getsize(path)
            with open(path, "r+b") as file:
                file.seek(chance.randrange(size + 1))
                file.write(chance.randbytes(chance.randrange(1, 40)))
        assert sample_ops.plain_op(tmp_path / "op", value=5)().build().key == entry.key
    assert load(tmp_path)[-1].startswith("5 ")


def test_a_store_behind_a_link_works(tmp_path, monkeypatch):
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(tmp_path / "link"))
    cls = sample_ops.plain_op(tmp_path / "op", value=5)
    assert cls().load().value() == 5
    assert cls().build().origin == "cache"


LOAD_VARIANT = """
import os
from support import sample_ops
macros = {"VARIANT": os.environ["VARIANT"]}
op = sample_ops.builder_class(os.environ["FOLDER"], "plain", abi="c", define_macros=macros)().load()
print(op.value(), op.origin)
"""


def load_variant(tmp_path, variant):
    env = {"FOLDER": str(tmp_path / "op"), "VARIANT": str(variant)}
    return child_processes.run_python(LOAD_VARIANT, env=env, timeout=30).strip()


@pytest.mark.parametrize("as_layer", [False, True])
def test_swapped_entries_do_not_load_as_each_other(own_store, tmp_path, monkeypatch, as_layer):
    source = f"{sample_ops.EXPORT} int value() {{ return VARIANT; }}\n"
    sample_ops.plain_op(tmp_path / "op", source=source)
    assert [load_variant(tmp_path, variant) for variant in (5, 6)] == ["5 built", "6 built"]
    entries = own_store / "v2" / "entries"
    first, second = sorted(entries.iterdir())
    for old, new in ((first, tmp_path / "aside"), (second, first), (tmp_path / "aside", second)):
        os.rename(old, new)
    if as_layer:
        monkeypatch.setenv("OPFORGE_CACHE_LAYERS", str(own_store))
        monkeypatch.setenv("OPFORGE_CACHE_DIR", str(tmp_path / "own"))
    assert [load_variant(tmp_path, variant) for variant in (5, 6)] == ["5 built", "6 built"]
    assert [load_variant(tmp_path, variant) for variant in (5, 6)] == ["5 cache", "6 cache"]
