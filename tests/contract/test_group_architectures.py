"""Groups for different architectures, compiled by nvcc: the library holds exactly those of each source."""

from __future__ import annotations

import os
from collections import defaultdict

import pytest
from support import sample_ops, text_files
from support.compilers.installed_compilers import skip_if_missing

import opforge
from opforge.builders.inspection.examine import examine
from opforge.builders.load_op import find

pytestmark = [pytest.mark.compile, pytest.mark.usefixtures("builds_are_shared")]
KERNEL = """\
__global__ void @NAME@_kernel(float* x) { x[threadIdx.x] *= FACTOR; }
extern "C" void @NAME@(float* x) { @NAME@_kernel<<<1, 32>>>(x); }
"""
HOST = """\
extern "C" void older(float*); extern "C" void newer(float*);
extern "C" __attribute__((visibility("default"))) void scale(float* x, int is_new) { (is_new ? newer : older)(x); }
"""
OLDER = {"sources": ["older.cu"], "architectures": ["8.0", "8.6"], "define_macros": {"FACTOR": "2"}}
NEWER = {
    "sources": ["newer.cu"],
    "architectures": ["9.0a"],
    "define_macros": {"FACTOR": "3"},
    "extra_compile_args": {"cuda": ["--use_fast_math"]},
}


@pytest.fixture
def op(missing_compilers, tmp_path):
    skip_if_missing(missing_compilers, "nvcc")
    text_files.write(tmp_path, "host.cpp", HOST)
    for name in ("older", "newer"):
        text_files.write(tmp_path, f"{name}.cu", KERNEL.replace("@NAME@", name))
    return sample_ops.builder_class(
        tmp_path, "scale", abi="c", devices=["cuda"], sources=["host.cpp"], groups=[OLDER, NEWER]
    )


def architectures_of_kernels(path):
    """Returns the architectures of a library's code for the kernels `older` and `newer`, and of its PTX."""
    held, report = defaultdict(set), examine(path)
    for kernel in report["kernels"]:
        held["older" if "older" in kernel["name"] else "newer"].add(kernel["arch"])
    return dict(held), {image["arch"] for image in report["images"] if image["kind"] == "PTX"}


def test_the_library_holds_exactly_the_architectures_of_each_source(op, tmp_path):
    entry = op("cuda:sm_120").build()
    assert architectures_of_kernels(entry.library) == ({"older": {"sm_80", "sm_86"}, "newer": {"sm_90a"}}, set())
    assert entry.record["target"] == "cuda:sm_80+sm_86+sm_90a", "whatever the target names"
    older, newer = entry.build()["components"]["groups"]
    assert "--use_fast_math" in newer["device_flags"] and "--use_fast_math" not in older["device_flags"]
    assert find(op("cuda:sm_120").spec()).entry.key == entry.key

    text_files.write(tmp_path, "newer.cu", KERNEL.replace("@NAME@", "newer") + "// edited\n")
    assert sorted(op().build().build()["reused"]) == ["compile host.cpp", "compile older.cu"]


def test_load_compiles_groups_for_cuda(op, tmp_path):
    groups = [{**group, "sources": [str(tmp_path / group["sources"][0])]} for group in (OLDER, NEWER)]
    loaded = opforge.load(sample_ops.unique_name("scale"), tmp_path / "host.cpp", groups=groups)
    assert loaded.__entry__.record["target"] == "cuda:sm_80+sm_86+sm_90a"
    assert os.path.exists(loaded.path) and callable(loaded.scale)
