"""Every toolchain that this machine has keeps the same promises: it builds, says who it is, and lets no check abort."""

from __future__ import annotations

import os
import shutil
import sys

import pytest
from support import child_processes, sample_ops, text_files
from support.compilers.installed_compilers import DEVICES, HOSTS, has_libcxx, made, needs, use

from opforge.accelerator.target import Target
from opforge.builders import toolchains
from opforge.builders.planner import make_plan
from opforge.builders.toolchains import find_toolchain, host, zig
from opforge.cache.current import current_store
from opforge.errors import OpIncompatibleError

pytestmark = pytest.mark.compile


@pytest.mark.parametrize("name", [*HOSTS, *sorted(toolchains.TOOLCHAINS.keys() - {"host", "sycl"})])
def test_it_says_who_it_is_without_a_path(name, missing_compilers, monkeypatch, tmp_path):
    if name != "opencl":
        use(monkeypatch, missing_compilers, name)
    found = made(name)
    told = dict(found.identity())
    assert any("version" in key and value for key, value in told.items())
    assert not any(str(value).startswith("/") for value in told.values()), told
    assert found.programs() and all(os.path.isabs(path) and stamp for path, stamp in found.programs().items())
    assert dict(made(name).identity()) == told


@pytest.mark.parametrize("name", HOSTS)
def test_it_refuses_a_device_that_is_not_its_own(name, missing_compilers, monkeypatch):
    use(monkeypatch, missing_compilers, name)
    assert "for the CPU, not for cuda" in made(name).target_problem("cuda", ("sm_90",))


@pytest.mark.parametrize("name", [*DEVICES, "triton"])
def test_a_device_compiler_refuses_the_cpu(name, missing_compilers):
    needs(missing_compilers, name)
    assert "not for cpu" in made(name).target_problem("cpu", ("x86-64",))


@pytest.mark.parametrize("name", HOSTS)
def test_a_failed_check_is_an_error_in_python_and_no_abort(name, missing_compilers, monkeypatch, tmp_path, relu_folder):
    use(monkeypatch, missing_compilers, name)
    if name == "zig" and not os.environ.get("TEST_ZIG") and not has_libcxx():
        pytest.skip("zig builds its libc++ first, which takes minutes: set TEST_ZIG=1 to wait for it")
    source = relu_folder / "relu.cpp"
    source.write_text(
        source.read_text().replace(
            "Tensor y =",
            "torch::stable::parallel_for(0, x.numel(), 1, [&](int64_t, int64_t) {\n"
            '    if (x.numel() == 3) throw std::runtime_error("from a worker"); });\n  Tensor y =',
        )
    )
    told = child_processes.run_python(
        "import os, torch\n"
        "from support import sample_ops\n"
        "folder = os.environ['FOLDER']; name = os.path.basename(folder)\n"
        "cls = sample_ops.builder_class(folder, name, sources=['relu.cpp'])\n"
        "op = cls(portable=os.environ['COMPILER'] == 'zig').load()\n"
        "assert op.relu(torch.tensor([-1.0, 2.0])).tolist() == [0.0, 2.0]\n"
        "for wrong in (torch.ones(2, dtype=torch.int64), torch.ones(3)):\n"
        "    try:\n        op.relu(wrong)\n"
        "    except RuntimeError as error:\n        print('told:', error)\n",
        env={"FOLDER": str(relu_folder), "COMPILER": name},
        timeout=280,
    )
    first, second = told.strip().splitlines()
    assert "relu: float32 expected" in first
    assert "from a worker" in second


def test_a_portable_library_asks_for_no_cxx_runtime_and_an_old_glibc(missing_compilers, relu_folder):
    needs(missing_compilers, "zig")
    if not os.environ.get("TEST_ZIG") and not has_libcxx():
        pytest.skip("zig builds its libc++ first, which takes minutes: set TEST_ZIG=1 to wait for it")
    cls = sample_ops.builder_class(relu_folder, relu_folder.name, sources=["relu.cpp"])
    binary = cls("cpu:x86-64-v2", portable=True).build().binary
    assert not any("stdc++" in one or "gcc" in one for one in binary["needs"])
    assert "GLIBCXX" not in binary["floors"]
    assert tuple(map(int, binary["floors"]["GLIBC"].split("."))) <= (2, 28)
    assert "torch_call_dispatcher" in binary["shims"], "what it asks of torch is on record"


def test_no_toolchain_for_a_device_says_which_there_are(tmp_path):
    text_files.write(tmp_path, "scale.cpp", "")
    cls = sample_ops.builder_class(tmp_path, "scale", abi="c", sources=["scale.cpp"], devices=["npu"])
    with pytest.raises(OpIncompatibleError, match="no toolchain for npu; it has one for cpu, cuda, hip, xpu, opencl"):
        cls("npu:910b").build()


def test_a_target_that_nobody_builds_has_no_toolchain_but_a_builder_may_bring_one(tmp_path):
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


def test_a_sysroot_is_known_by_what_is_in_it_and_not_by_its_place(tmp_path, monkeypatch):
    toolchain_keys = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        for part in ("usr", "lib", "lib64"):
            if os.path.isdir(f"/{part}"):
                os.symlink(f"/{part}", folder / part)
        monkeypatch.setenv("OPFORGE_SYSROOT", str(folder))
        cls = sample_ops.plain_op(tmp_path / "src")
        builder = cls(portable=True)
        toolchain_keys.append(make_plan(builder.spec(), find_toolchain(builder.spec(), current_store())).key)
        assert builder.load().value() == 1
    assert toolchain_keys[0] == toolchain_keys[1]


def test_code_for_another_processor_runs_there(missing_compilers, tmp_path):
    needs(missing_compilers, "zig")
    if not os.environ.get("TEST_ZIG"):
        pytest.skip("zig builds its libraries for aarch64 first, which takes minutes: set TEST_ZIG=1 to wait")
    if not shutil.which("qemu-aarch64") or not os.path.isdir("/usr/aarch64-linux-gnu"):
        pytest.skip("needs an emulator and its libc (apt install qemu-user libc6-arm64-cross)")
    import subprocess

    entry = sample_ops.plain_op(tmp_path, value=7)("cpu:aarch64", portable=True).build()
    assert entry.binary["machine"] == "aarch64"
    calls = "#include <dlfcn.h>\n#include <stdio.h>\nint main(int n, char** a) { void* h = dlopen(a[1], RTLD_NOW);"
    calls += ' printf("%d", h ? ((int (*)(void))dlsym(h, "value"))() : -1); }\n'
    main = text_files.write(tmp_path, "main.c", calls)
    program = str(tmp_path / "main")
    subprocess.run([zig.find(), "cc", "-target", "aarch64-linux-gnu.2.28", main, "-o", program], check=True)
    command = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", program, entry.library]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "7"
