"""Entries that were built on another machine: found without a compiler, and used as OPFORGE_PREBUILT says."""

from __future__ import annotations

import pytest
from support import sample_ops, text_files
from support.store.fake_store import ME

from opforge.accelerator.vendors import nvidia
from opforge.builders.declaration import machine
from opforge.builders.declaration.description import description_key
from opforge.builders.load_op import find
from opforge.builders.toolchains import nvcc
from opforge.cache import layer
from opforge.cli.cache import explain
from opforge.cli.selection import Selected
from opforge.errors import PrebuiltRequiredError, SettingError, ToolchainNotFoundError

CUDA = """\
#include <cuda_runtime.h>
__global__ void kernel(float* x) { x[threadIdx.x] *= 2; }
extern "C" __attribute__((visibility("default"))) int twice(float* x) {
  kernel<<<1, 32>>>(x);
  return cudaGetLastError();
}
"""


def ship(builder, folder, monkeypatch):
    """Builds, adds the entry to a layer, and continues with that layer and an empty store, as on another machine."""
    entry = builder.build()
    layer.add(str(folder / "layer"), entry, description_key(builder.spec()), ME)
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(folder / "elsewhere"))
    monkeypatch.setenv("OPFORGE_CACHE_LAYERS", str(folder / "layer"))
    return entry


@pytest.fixture
def prebuilt(tmp_path, monkeypatch):
    """The builder class of an op with a prebuilt entry for cpu:x86-64."""
    cls = sample_ops.plain_op(tmp_path / "src")
    ship(cls("cpu:x86-64"), tmp_path, monkeypatch)
    return cls


def test_a_prebuilt_entry_is_preferred(prebuilt, tmp_path):
    assert prebuilt("cpu:x86-64").build().origin == str(tmp_path / "layer")


def test_prebuilt_entries_are_ignored_on_request(prebuilt, monkeypatch):
    monkeypatch.setenv("OPFORGE_PREBUILT", "ignore")
    assert prebuilt("cpu:x86-64").build().origin == "built"


def test_if_prebuilt_entries_are_required_the_error_has_each_reason_and_nothing_is_compiled(
    prebuilt, tmp_path, monkeypatch
):
    monkeypatch.setenv("OPFORGE_PREBUILT", "require")
    assert prebuilt("cpu:x86-64").load().value() == 1
    sample_ops.set_value(tmp_path / "src", 2)
    with pytest.raises(PrebuiltRequiredError) as error:
        prebuilt("cpu:x86-64").load()
    assert "value.h" in str(error.value) and str(tmp_path / "layer") in str(error.value)
    compatibility = prebuilt("cpu:x86-64").is_compatible()
    assert not compatibility and "OPFORGE_PREBUILT=require" in str(compatibility)


def test_a_file_of_the_makers_machine_that_a_flag_names_is_not_compared(tmp_path, monkeypatch):
    script = text_files.write(tmp_path, "machine/exports", "{ global: value; local: *; };\n")
    cls = sample_ops.plain_op(tmp_path / "src", extra_link_args=[f"-Wl,--version-script={script}"])
    ship(cls("cpu:x86-64"), tmp_path, monkeypatch)
    text_files.write(tmp_path, "machine/exports", "{ global: *; };\n")
    assert cls("cpu:x86-64").build().origin == str(tmp_path / "layer"), "docs/cache.md says so"


def test_an_unknown_policy_is_an_error(prebuilt, monkeypatch):
    monkeypatch.setenv("OPFORGE_PREBUILT", "maybe")
    with pytest.raises(SettingError, match="expected prefer, require or ignore"):
        prebuilt("cpu:x86-64").build()


def test_device_code_is_found_by_the_devices_that_run_it_without_a_compiler(tmp_path, monkeypatch):
    try:
        nvcc.find()
    except ToolchainNotFoundError as error:
        pytest.skip(str(error))
    text_files.write(tmp_path, "twice.cu", CUDA)
    cls = sample_ops.builder_class(
        tmp_path, sample_ops.unique_name("twice"), abi="c", sources=["twice.cu"], devices=["cuda"]
    )
    built = ship(cls("cuda:sm_80+sm_90+ptx"), tmp_path, monkeypatch)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "gone"))
    monkeypatch.setattr(nvidia, "driver_version", lambda: (13, 0))
    present = []
    monkeypatch.setattr(machine, "present", lambda device: tuple(present) if device == "cuda" else ())
    for device, fits in (("sm_86", True), ("sm_90", True), ("sm_120", True), ("sm_75", False)):
        present[:] = [device]
        entry, rejected = find(cls().spec())
        assert (entry and entry.key) == (built.key if fits else None)
        assert fits or any("but the cuda device here is sm_75" in skipped.reason for skipped in rejected)
    explanation = explain.explain_op(Selected("twice", None, lambda: cls, True), False, "")
    assert not explanation["hit"]
    assert "CUDA_HOME" in explanation["problem"], "the reasons are known without a compiler too"
    assert any("but the cuda device here is sm_75" in skipped["reason"] for skipped in explanation["rejected"])
    present[:] = ["sm_86"]
    assert explain.explain_op(Selected("twice", None, lambda: cls, True), False, "")["path"]
    assert cls().load().origin == str(tmp_path / "layer")
    assert find(cls("cuda:sm_80").spec(), exact=True).entry is None, "exact: for another target"
