"""The contract of all toolchains, for each installed one: it identifies itself, it builds, and no check aborts."""

from __future__ import annotations

import os
import platform
import shutil
import sys

import pytest
from support import child_processes, sample_ops, text_files
from support.compilers.installed_compilers import (
    HOSTS,
    select,
    skip_if_missing,
    skip_if_zig_is_slow,
    toolchain_of,
)
from support.gpu import triton_parts

from opforge.accelerator.target import Target
from opforge.builders import toolchains
from opforge.builders.planner import make_plan
from opforge.builders.toolchains import find_toolchain, host, zig
from opforge.builders.toolchains.toolchain import Toolchain
from opforge.cache.current_store import current_store
from opforge.errors import BuilderError, OpIncompatibleError
from opforge.testing import ToolchainContract

pytestmark = pytest.mark.compile


PLAIN = 'extern "C" __attribute__((visibility("default"))) int value() { return 1; }'
KERNEL = "__kernel void twice(__global float* x) { x[get_global_id(0)] *= 2; }"
BUILDS = {
    "g++": ({"plain.cpp": PLAIN}, "cpu"),
    "clang++": ({"plain.cpp": PLAIN}, "cpu"),
    "zig": ({"plain.cpp": PLAIN}, "cpu:x86-64-v2" if platform.machine() == "x86_64" else "cpu"),
    "nvcc": ({"plain.cu": PLAIN}, "cuda:sm_90"),
    "hipcc": ({"plain.cu": PLAIN}, "hip:gfx90a"),
    "opencl": ({"plain.cpp": PLAIN, "twice.cl": KERNEL}, "opencl"),
}
"""Compiler -> sources of plain functions, and the target that the contract builds them for."""


class TestContract(ToolchainContract):
    @pytest.fixture(autouse=True, params=[*HOSTS, *sorted(toolchains.TOOLCHAINS.keys() - {"host", "sycl"})])
    def compiler(self, request, missing_compilers, monkeypatch, tmp_path):
        self.name, self.folder = request.param, tmp_path / "op"
        if self.name != "opencl":
            select(monkeypatch, missing_compilers, self.name)
        if self.name == "zig" and request.function.__name__ == "test_what_it_builds_is_found_again":
            skip_if_zig_is_slow()
        self.device = BUILDS[self.name][1].partition(":")[0] if self.name in BUILDS else "cuda"
        self.other_device = "cuda" if self.device == "cpu" else "cpu"

    def make_toolchain(self):
        return toolchain_of(self.name)

    def make_builder(self):
        if self.name == "triton":
            return triton_parts.scale_op(self.folder)("cuda:sm_90")
        files, target = BUILDS[self.name]
        self.folder.mkdir(exist_ok=True)
        for file, source in files.items():
            text_files.write(self.folder, file, source)
        attributes = {"abi": "c", "sources": list(files), "devices": [self.device]}
        return sample_ops.builder_class(self.folder, "plain", **attributes)(target, portable=self.name == "zig")


OFTEN = ("g++", "zig")
"""One with the system's C++ runtime, and one with its own."""
RARELY = pytest.mark.long("compiles torch's headers with one compiler more")


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in OFTEN else RARELY) for name in HOSTS])
def test_a_failed_check_raises_in_python_and_does_not_abort(name, missing_compilers, monkeypatch, relu_folder):
    select(monkeypatch, missing_compilers, name)
    if name == "zig":
        skip_if_zig_is_slow()
    source = relu_folder / "relu.cpp"
    source.write_text(
        source.read_text().replace(
            "Tensor y =",
            "torch::stable::parallel_for(0, x.numel(), 1, [&](int64_t, int64_t) {\n"
            '    if (x.numel() == 3) throw std::runtime_error("from a worker"); });\n  Tensor y =',
        )
    )
    output = child_processes.run_with_torch(
        "import os, torch\n"
        "from support import sample_ops\n"
        "folder = os.environ['FOLDER']; name = os.path.basename(folder)\n"
        "cls = sample_ops.builder_class(folder, name, sources=['relu.cpp'])\n"
        "op = cls(portable=os.environ['COMPILER'] == 'zig').load()\n"
        "assert op.relu(torch.tensor([-1.0, 2.0])).tolist() == [0.0, 2.0]\n"
        "for wrong in (torch.ones(2, dtype=torch.int64), torch.ones(3)):\n"
        "    try:\n        op.relu(wrong)\n"
        "    except RuntimeError as error:\n        print('error:', error)\n",
        env={"FOLDER": str(relu_folder), "COMPILER": name},
        timeout=280,
    )
    first, second = output.strip().splitlines()
    assert "relu: float32 expected" in first
    assert "from a worker" in second


def test_a_portable_library_needs_no_cxx_runtime_and_an_old_glibc(missing_compilers, relu_folder):
    skip_if_missing(missing_compilers, "zig")
    skip_if_zig_is_slow()
    cls = sample_ops.builder_class(relu_folder, relu_folder.name, sources=["relu.cpp"])
    record = cls("cpu:x86-64-v2", portable=True).build().record
    assert not any("stdc++" in library or "gcc" in library for library in record["needs"])
    assert "GLIBCXX" not in record["floors"]
    assert tuple(map(int, record["floors"]["GLIBC"].split("."))) <= (2, 28)
    assert "torch_call_dispatcher" in record["shims"], "the functions of torch that it calls are recorded"


def test_a_device_without_a_toolchain_is_an_error_that_names_the_others(tmp_path):
    text_files.write(tmp_path, "scale.cpp", "")
    cls = sample_ops.builder_class(tmp_path, "scale", abi="c", sources=["scale.cpp"], devices=["npu"])
    with pytest.raises(OpIncompatibleError, match="no toolchain for npu; it has one for cpu, cuda, hip, xpu, opencl"):
        cls("npu:910b").build()


def test_a_builder_may_name_a_toolchain_for_another_device(tmp_path):
    text_files.write(tmp_path, "scale.cpp", 'extern "C" __attribute__((visibility("default"))) int one() { return 1; }')

    class Npu(host.HostToolchain):
        def target_problem(self, device, arch):
            return None

        def target_flags(self, device, arch):
            return ()

    cls = sample_ops.builder_class(tmp_path, "scale", abi="c", sources=["scale.cpp"], devices=["npu"])
    sys.modules[cls.__module__].Npu = Npu
    cls.toolchain = f"{cls.__module__}:Npu"
    assert cls(Target("npu", ("910b",))).load().one() == 1


def test_a_toolchain_that_lacks_methods_is_refused_before_it_is_made(tmp_path):
    text_files.write(tmp_path, "scale.cpp", "")

    class Half(Toolchain):
        def identity(self):
            return ()

    cls = sample_ops.builder_class(tmp_path, "scale", abi="c", sources=["scale.cpp"], devices=["npu"])
    sys.modules[cls.__module__].Half = Half
    cls.toolchain = f"{cls.__module__}:Half"
    missing = "environment, flags, programs, search_folders, steps, target_flags, target_problem"
    with pytest.raises(BuilderError, match=f"its toolchain Half has no method {missing}. Define them as"):
        cls(Target("npu", ("910b",))).load()


def test_the_path_of_a_sysroot_is_in_no_key(tmp_path, monkeypatch):
    keys = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        for child in ("usr", "lib", "lib64"):
            if os.path.isdir(f"/{child}"):
                os.symlink(f"/{child}", folder / child)
        monkeypatch.setenv("OPFORGE_SYSROOT", str(folder))
        cls = sample_ops.plain_op(tmp_path / "src")
        builder = cls(portable=True)
        keys.append(make_plan(builder.spec(), find_toolchain(builder.spec(), current_store())).key)
        assert builder.load().value() == 1
    assert keys[0] == keys[1]


def test_a_library_for_another_processor_runs_in_an_emulator(missing_compilers, tmp_path):
    skip_if_missing(missing_compilers, "zig")
    if not os.environ.get("TEST_ZIG"):
        pytest.skip("zig builds its libraries for aarch64 first, which takes minutes: set TEST_ZIG=1 to wait")
    if not shutil.which("qemu-aarch64") or not os.path.isdir("/usr/aarch64-linux-gnu"):
        pytest.skip("needs an emulator and its libc (apt install qemu-user libc6-arm64-cross)")
    import subprocess

    entry = sample_ops.plain_op(tmp_path, value=7)("cpu:aarch64", portable=True).build()
    assert entry.record["machine"] == "aarch64"
    program_source = (
        "#include <dlfcn.h>\n#include <stdio.h>\nint main(int n, char** a) { void* h = dlopen(a[1], RTLD_NOW);"
    )
    program_source += ' printf("%d", h ? ((int (*)(void))dlsym(h, "value"))() : -1); }\n'
    main = text_files.write(tmp_path, "main.c", program_source)
    program = str(tmp_path / "main")
    subprocess.run([zig.find(), "cc", "-target", "aarch64-linux-gnu.2.28", main, "-o", program], check=True)
    command = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", program, entry.library]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "7"
