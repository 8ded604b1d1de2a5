"""Each format of a store that was shipped is read, or refused with its reason: copies of `support/store/formats`."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil

import pytest
from support import sample_ops
from support.store.fake_store import ME

import opforge
from opforge.builders.declaration.op_spec import root_paths
from opforge.cache.records.entry import with_record_key
from opforge.cache.store import NO_RECORD, Store
from opforge.errors import PrebuiltRequiredError
from opforge.fast_path.library import READ_FORMATS

FORMATS = os.path.join(os.path.dirname(sample_ops.__file__), "store", "formats")
NUMBERS = sorted(int(name.partition("-")[2]) for name in os.listdir(FORMATS) if name.startswith("record-"))


def copy_of(name, tmp_path):
    """Copies a folder of a format as it would be on disk: a checkout has other modes."""
    copy = tmp_path / "copy"
    shutil.copytree(os.path.join(FORMATS, name), copy)
    for folder, _folders, files in os.walk(copy):
        os.chmod(folder, 0o755)
        for file in files:
            os.chmod(os.path.join(folder, file), 0o500 if file.endswith(".so") else 0o600)
    return copy


@pytest.fixture(params=NUMBERS)
def shipped(request, tmp_path):
    """A copy of the folder of a format of records."""
    return copy_of(f"record-{request.param}", tmp_path)


@pytest.fixture
def without_compiler(monkeypatch, tmp_path):
    """No compiler is on PATH, and no flags are set."""
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("CXX", "CXXFLAGS", "CPPFLAGS", "LDFLAGS"):
        monkeypatch.delenv(name, raising=False)


def builder_of(folder):
    """Returns the builder of the op, as it was declared when the format was shipped."""
    cls = sample_ops.builder_class(
        folder / "op",
        "value",
        abi="c",
        extra_compile_args=["-nostdinc", "-ffreestanding"],
        extra_link_args=["-nostdlib", "-Wl,-z,noseparate-code"],
        signatures={"value": (ctypes.c_int, [])},
    )
    return cls("cpu:x86-64")


def needs_its_processor():
    if os.uname().machine != "x86_64":
        pytest.skip("the libraries are for x86-64")


def test_every_format_that_is_read_has_a_folder_here():
    assert [*READ_FORMATS] == NUMBERS


def test_an_entry_in_a_layer_is_found_and_loaded_without_a_compiler(shipped, without_compiler, monkeypatch):
    needs_its_processor()
    monkeypatch.setenv("OPFORGE_CACHE_LAYERS", str(shipped / "layer"))
    op = builder_of(shipped).load()
    assert op.origin == str(shipped / "layer") and op.value() == 7


def test_an_entry_in_the_users_store_is_found_by_its_plan_and_by_its_description(
    shipped, without_compiler, monkeypatch
):
    needs_its_processor()
    builder, (plan,) = builder_of(shipped), os.listdir(shipped / "store" / "v2" / "plans")
    store = Store(str(shipped / "store"), ME)
    match, rejected = store.get(plan, root_paths(builder.spec(), {}))
    assert match is not None, rejected
    assert match.entry.build()["components"]["op"] == match.entry.record["op"] == "value"
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(shipped / "store"))
    os.chmod(shipped / "store", 0o700)
    entry = builder.build()  # `load` would return what another test of this process has loaded
    assert entry.origin == "cache" and ctypes.CDLL(entry.library).value() == 7


def test_an_entry_whose_source_has_changed_is_rejected(shipped, without_compiler, monkeypatch):
    needs_its_processor()
    header = shipped / "op" / "value.h"
    header.write_text("#define VALUE 8\n")
    monkeypatch.setenv("OPFORGE_CACHE_LAYERS", str(shipped / "layer"))
    monkeypatch.setenv("OPFORGE_PREBUILT", "require")
    with pytest.raises(PrebuiltRequiredError, match=re.escape(f"{header} has changed")):
        builder_of(shipped).load()


def test_the_record_of_a_format_that_is_not_read_is_rejected(shipped, without_compiler, monkeypatch):
    needs_its_processor()
    (folder,) = (shipped / "layer" / "v2" / "entries").iterdir()
    record = json.loads((folder / "record.json").read_text())
    (folder / "record.json").write_text(json.dumps(with_record_key({**record, "format": READ_FORMATS.stop})))
    monkeypatch.setenv("OPFORGE_CACHE_LAYERS", str(shipped / "layer"))
    assert find_rejected(builder_of(shipped)) == [(str(folder), NO_RECORD)]


def find_rejected(builder):
    """Returns what a look-up without a result rejected."""
    builder.trace = []
    with pytest.raises(opforge.errors.ToolchainNotFoundError):
        builder.build()
    return [tuple(entry) for entry in builder.trace if "copy" in entry.where]
