"""A plan is made from a spec and a toolchain alone: no process, no content of a file, no store."""

from __future__ import annotations

import platform
import subprocess

import pytest
from support import sample_ops
from support.compilers.installed_compilers import skip_if_missing

from opforge.builders.cpu.adam import CPUAdamBuilder
from opforge.builders.cuda.fused_adam import FusedAdamBuilder
from opforge.builders.declaration.abi import TORCH_HEADERS
from opforge.builders.facade import flags
from opforge.builders.planner import make_plan
from opforge.builders.toolchains import find_toolchain
from opforge.builders.triton.softmax import TritonSoftmaxBuilder
from opforge.cache.current_store import current_store
from opforge.cache.filesystem.disk import Disk
from opforge.errors import OpIncompatibleError

BUILDERS = {
    "g++": lambda: CPUAdamBuilder(),
    "zig": lambda: CPUAdamBuilder(portable=True),
    "nvcc": lambda: FusedAdamBuilder("cuda:sm_90a"),
    "triton": lambda: TritonSoftmaxBuilder("cuda:sm_90"),
}


@pytest.mark.parametrize("compiler", BUILDERS)
def test_planning_starts_no_process_and_reads_no_content(compiler, missing_compilers, monkeypatch):
    skip_if_missing(missing_compilers, compiler)
    spec = BUILDERS[compiler]().spec()
    toolchain = find_toolchain(spec, current_store())

    def refuse(*_arguments, **_options):
        raise AssertionError("planning must not do this")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    monkeypatch.setattr(Disk, "digest", refuse)
    plan = make_plan(spec, toolchain)
    assert plan.op == spec.name and plan.toolchain


def test_nvcc_finds_the_facade_before_torch_and_needs_no_library_of_torchs_for_cuda(tmp_path, missing_compilers):
    skip_if_missing(missing_compilers, "nvcc")
    (tmp_path / "op.cu").touch()
    builder = sample_ops.builder_class(tmp_path, "op", abi="torch-facade", devices=["cuda"], sources=["op.cu"])
    spec = builder("cuda:sm_90").spec()
    plan = make_plan(spec, find_toolchain(spec, current_store()))
    at = plan.device_flags.index("-isystem")
    assert plan.device_flags[at + 1] == TORCH_HEADERS and set(flags.OF_NVCC) <= set(plan.device_flags)
    assert plan.stubs == ("libtorch_cpu.so",) and "-lcudart_static" in plan.link_flags


def test_a_target_that_the_compiler_cannot_build_for_is_refused_before_planning(tmp_path):
    cls = sample_ops.plain_op(tmp_path)
    other = {"x86_64": "aarch64", "aarch64": "x86-64"}
    spec = cls(f"cpu:{other[platform.machine()]}").spec()
    with pytest.raises(OpIncompatibleError, match="compiles for"):
        find_toolchain(spec, current_store())
