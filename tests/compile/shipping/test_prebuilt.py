"""What was built elsewhere: found by what it runs on, with no compiler here, and as the policy says."""

from __future__ import annotations

import pytest
from support import sample_ops, text_files

from opforge.builders.lookup import device_requirements
from opforge.builders.lookup.finder import find
from opforge.builders.spec import targets
from opforge.builders.spec.description import describe
from opforge.builders.toolchains import nvcc
from opforge.cache.transfer import layer
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
    """Build, put the entry into a layer, and go to a machine whose store is empty and that has the layer."""
    entry = builder.build()
    layer.add(str(folder / "layer"), entry, describe(builder.spec()).key)
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(folder / "elsewhere"))
    monkeypatch.setenv("OPFORGE_CACHE_LAYERS", str(folder / "layer"))
    return entry


@pytest.fixture
def relu(tmp_path, monkeypatch):
    cls = sample_ops.plain_op(tmp_path / "src")
    ship(cls("cpu:x86-64"), tmp_path, monkeypatch)
    return cls


def test_a_prebuilt_is_preferred(relu, tmp_path):
    assert relu("cpu:x86-64").build().origin == str(tmp_path / "layer")


def test_a_prebuilt_is_ignored_on_demand(relu, monkeypatch):
    monkeypatch.setenv("OPFORGE_PREBUILT", "ignore")
    assert relu("cpu:x86-64").build().origin == "built"


def test_where_a_prebuilt_is_required_nothing_is_compiled_and_each_reason_is_told(relu, tmp_path, monkeypatch):
    monkeypatch.setenv("OPFORGE_PREBUILT", "require")
    assert relu("cpu:x86-64").load().value() == 1
    sample_ops.set_value(tmp_path / "src", 2)
    with pytest.raises(PrebuiltRequiredError) as refused:
        relu("cpu:x86-64").load()
    assert "value.h" in str(refused.value) and str(tmp_path / "layer") in str(refused.value)
    answer = relu("cpu:x86-64").is_compatible()
    assert not answer and "OPFORGE_PREBUILT=require" in str(answer)


def test_a_policy_that_is_none_is_refused(relu, monkeypatch):
    monkeypatch.setenv("OPFORGE_PREBUILT", "maybe")
    with pytest.raises(SettingError, match="expected prefer, require or ignore"):
        relu("cpu:x86-64").build()


def test_device_code_is_found_by_what_it_runs_on_with_no_compiler_here(tmp_path, monkeypatch):
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
    monkeypatch.setattr(device_requirements, "driver_version", lambda: (13, 0))
    here = []
    monkeypatch.setattr(targets, "present", lambda device: tuple(here) if device == "cuda" else ())
    for device, fits in (("sm_86", True), ("sm_90", True), ("sm_120", True), ("sm_75", False)):
        here[:] = [device]
        entry, rejected = find(cls().spec())
        assert (entry and entry.key) == (built.key if fits else None)
        assert fits or any("and the cuda device here is sm_75" in skipped.reason for skipped in rejected)
    told = explain.explain_op(Selected("twice", None, lambda: cls, True), False, "")
    assert not told["hit"] and "CUDA_HOME" in told["problem"], "without a compiler too it is told why none fits"
    assert any("and the cuda device here is sm_75" in one["reason"] for one in told["rejected"])
    here[:] = ["sm_86"]
    assert explain.explain_op(Selected("twice", None, lambda: cls, True), False, "")["path"]
    assert cls().load().origin == str(tmp_path / "layer")
    assert find(cls("cuda:sm_80").spec(), exact=True).entry is None, "what is to be shipped is built for just that"
