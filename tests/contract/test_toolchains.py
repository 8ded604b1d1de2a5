"""Every toolchain that this machine has keeps the same promises: it builds, says who it is, and lets no check abort."""

from __future__ import annotations

import importlib
import json
import os
import shutil

import fakes
import pytest

from opforge.accelerator.target import Target
from opforge.builders import toolchains
from opforge.builders.opened import current_store
from opforge.builders.toolchains import host, nvcc, triton, zig
from opforge.cache.disk import Disk
from opforge.cache.layout import Layout
from opforge.errors import CompileError, OpIncompatibleError, ToolchainError, ToolchainNotFoundError

pytestmark = pytest.mark.compile
KERNEL = """\
#include "scale.h"
#include <cuda_runtime.h>
__global__ void scale_kernel(float* x, int64_t n, float by) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i < n) x[i] *= by;
}
extern "C" __attribute__((visibility("default"))) int scale(float* x, int64_t n, float by, void* stream) {
  scale_kernel<<<(n + 255) / 256, 256, 0, static_cast<cudaStream_t>(stream)>>>(x, n, by);
  return static_cast<int>(cudaGetLastError());
}
"""
HEADER = '#include <cstdint>\nextern "C" int scale(float* x, int64_t n, float by, void* stream);\n'
FACE = """\
#include "scale.h"
#include <cuda_runtime.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>
using torch::stable::Tensor;
void scale_(Tensor x, double by) {
  STD_TORCH_CHECK(x.scalar_type() == torch::headeronly::ScalarType::Float, "scale_: float32 expected");
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(x.get_device(), &stream));
  const int code = scale(static_cast<float*>(x.mutable_data_ptr()), x.numel(), static_cast<float>(by), stream);
  STD_TORCH_CHECK(code == cudaSuccess, "scale_: ", cudaGetErrorString(static_cast<cudaError_t>(code)));
}
STABLE_TORCH_LIBRARY(@NAME@, m) { m.def("scale_(Tensor(a!) x, float by) -> ()"); }
STABLE_TORCH_LIBRARY_IMPL(@NAME@, CUDA, m) { m.impl("scale_", TORCH_BOX(&scale_)); }
"""
OPENCL = '__kernel void twice(__global float* x) {\n  x[get_global_id(0)] *= 2; // "quoted" \\\n}\n'
READS_OPENCL = """\
extern "C" const char opforge_cl_twice[];
extern "C" __attribute__((visibility("default"))) const char* source() { return opforge_cl_twice; }
"""
HOSTS = ("g++", "clang++", "zig")
DEVICES = {"nvcc": "cuda:sm_80+sm_90a+ptx", "hipcc": "hip:gfx90a"}
INSTALL = {
    "g++": "apt install g++",
    "clang++": "apt install clang",
    "zig": "pip install ziglang",
    "hipcc": "apt install hipcc",
}


@pytest.fixture(scope="session")
def places():
    """What is on this machine: name -> why it is not, empty where it is."""
    missing = {name: "" if shutil.which(name) else INSTALL[name] for name in ("g++", "clang++", "hipcc")}
    for name, find in (("zig", zig.find), ("nvcc", nvcc.find), ("triton", triton.find)):
        try:
            find()
            missing[name] = ""
        except ToolchainNotFoundError as error:
            missing[name] = str(error)
    return missing


def needs(places, name):
    if places[name]:
        pytest.skip(f"{name} is not here: {places[name]}")


def made(name):
    if name in HOSTS:
        layout, disk = Layout(current_store().layout.root), Disk()
        return zig.ZigToolchain(layout, disk, os.uname().machine) if name == "zig" else host.HostToolchain(layout, disk)
    module, _, attribute = toolchains.TOOLCHAINS[name].partition(":")
    return getattr(importlib.import_module(module), attribute)(current_store().layout, Disk())


def use(monkeypatch, places, name):
    needs(places, name)
    if name in ("g++", "clang++"):
        monkeypatch.setenv("CXX", name)


@pytest.mark.parametrize("name", [*HOSTS, *sorted(toolchains.TOOLCHAINS.keys() - {"host", "sycl"})])
def test_it_says_who_it_is_without_a_path(name, places, monkeypatch, tmp_path):
    if name != "opencl":
        use(monkeypatch, places, name)
    found = made(name)
    told = dict(found.identity())
    assert any("version" in key and value for key, value in told.items())
    assert not any(str(value).startswith("/") for value in told.values()), told
    assert found.programs() and all(os.path.isabs(path) and stamp for path, stamp in found.programs().items())
    assert dict(made(name).identity()) == told


@pytest.mark.parametrize("name", HOSTS)
def test_it_refuses_a_device_that_is_not_its_own(name, places, monkeypatch):
    use(monkeypatch, places, name)
    assert "for the CPU, not for cuda" in made(name).objection("cuda", ("sm_90",))


@pytest.mark.parametrize("name", [*DEVICES, "triton"])
def test_a_device_compiler_refuses_the_cpu(name, places):
    needs(places, name)
    assert "not for cpu" in made(name).objection("cpu", ("x86-64",))


@pytest.mark.parametrize("name", HOSTS)
def test_a_failed_check_is_an_error_in_python_and_no_abort(name, places, monkeypatch, tmp_path, relu_folder):
    use(monkeypatch, places, name)
    if name == "zig" and not os.environ.get("TEST_ZIG") and not _has_libcxx():
        pytest.skip("zig builds its libc++ first, which takes minutes: set TEST_ZIG=1 to wait for it")
    source = relu_folder / "relu.cpp"
    source.write_text(
        source.read_text().replace(
            "Tensor y =",
            "torch::stable::parallel_for(0, x.numel(), 1, [&](int64_t, int64_t) {\n"
            '    if (x.numel() == 3) throw std::runtime_error("from a worker"); });\n  Tensor y =',
        )
    )
    told = fakes.python(
        "import os, torch, fakes\n"
        "folder = os.environ['FOLDER']; name = os.path.basename(folder)\n"
        "cls = fakes.builder_class(folder, name, sources=['relu.cpp'])\n"
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


def _has_libcxx():
    """Whether zig has built the libc++ of this machine's processor before."""
    folder = os.environ.get("ZIG_GLOBAL_CACHE_DIR") or os.path.expanduser("~/.cache/zig")
    return any("libc++.a" in files for _at, _folders, files in os.walk(folder))


@pytest.mark.parametrize("name", DEVICES)
def test_a_kernel_and_its_face_become_one_library(name, places, tmp_path):
    needs(places, name)
    op = fakes.fresh("scale")
    for file, text in (("scale.cu", KERNEL), ("face.cpp", FACE.replace("@NAME@", op)), ("scale.h", HEADER)):
        fakes.write(tmp_path, file, text)
    attributes = {"sources": ["scale.cu", "face.cpp"], "devices": ["cuda", "hip"]}
    builder = fakes.builder_class(tmp_path, op, **attributes)(DEVICES[name])
    entry = builder.obtain()
    assert entry.binary["target"] == DEVICES[name]
    assert {"opforge_describe", "opforge_register"} <= set(entry.binary["exports"])
    assert ("libtorch_cuda.so" if name == "nvcc" else "libtorch_hip.so") in entry.binary["needs"]
    assert not any("cudart" in one for one in entry.binary["needs"]), "the runtime is linked in"
    read = {(root, path) for root, path, *_ in entry.manifest()["inputs"]["files"]}
    assert {("own", "scale.cu"), ("own", "face.cpp"), ("own", "scale.h")} <= read
    assert str(tmp_path) not in str(entry.manifest()["components"])
    assert builder.find().origin == "cache"
    fakes.write(tmp_path, "scale.h", HEADER + "// changed\n")
    assert builder.find() is None, "the header that both quote is one of its inputs"


@pytest.mark.parametrize("name", DEVICES)
def test_a_plain_kernel_loads_without_a_device_and_a_launch_says_no(name, places, tmp_path):
    needs(places, name)
    op = fakes.fresh("plain")
    fakes.write(tmp_path, "scale.cu", KERNEL)
    fakes.write(tmp_path, "scale.h", HEADER)
    cls = fakes.builder_class(tmp_path, op, abi="c", sources=["scale.cu"], devices=["cuda", "hip"])
    loaded = cls(DEVICES[name].replace("+sm_90a+ptx", "")).load()
    assert loaded.origin == "built"
    if not os.path.exists("/dev/nvidiactl") and not os.path.exists("/dev/kfd"):
        assert loaded.scale(None, 10, None, None) != 0


@pytest.mark.parametrize("name", DEVICES)
def test_an_error_names_the_file_and_the_line_that_somebody_wrote(name, places, tmp_path):
    needs(places, name)
    fakes.write(tmp_path, "wrong.cu", '#include "wrong.h"\n')
    header = fakes.write(tmp_path, "wrong.h", "#include <cuda_runtime.h>\n\ncudaNoSuch_t y;\n")
    cls = fakes.builder_class(tmp_path, "wrong", abi="c", sources=["wrong.cu"], devices=["cuda", "hip"])
    with pytest.raises(CompileError) as refused:
        cls(DEVICES[name]).obtain()
    assert f"compile wrong.cu failed: {header}:3" in str(refused.value)
    assert ">    3 | cudaNoSuch_t y;" in str(refused.value)


def test_a_source_for_cuda_is_loaded_as_torch_would(places, tmp_path, monkeypatch):
    needs(places, "nvcc")
    import opforge

    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0+PTX")
    kernel, _ = fakes.write(tmp_path, "scale.cu", KERNEL), fakes.write(tmp_path, "scale.h", HEADER)
    loaded = opforge.load(fakes.fresh("own"), kernel, extra_cuda_cflags=["-lineinfo"])
    manifest = os.path.join(os.path.dirname(loaded.path), "manifest.json")
    with open(manifest) as file:
        plan = json.load(file)["components"]
    assert plan["target"] == "cuda:sm_90+ptx" and "-lineinfo" in plan["device_flags"]


def test_opencl_sources_are_in_the_library_as_they_are(tmp_path):
    fakes.write(tmp_path, "twice.cl", OPENCL)
    fakes.write(tmp_path, "face.cpp", READS_OPENCL)
    op = fakes.fresh("twice")
    cls = fakes.builder_class(tmp_path, op, abi="c", sources=["twice.cl", "face.cpp"], devices=["opencl"])
    entry = cls().obtain()
    assert entry.binary["needs"][0] == "libOpenCL.so.1"
    with open(entry.library, "rb") as file:
        assert OPENCL.encode() in file.read()
    fakes.write(tmp_path, "twice.cl", OPENCL + "// more\n")
    assert cls().find() is None


def test_a_portable_library_asks_for_no_cxx_runtime_and_an_old_glibc(places, relu_folder):
    needs(places, "zig")
    if not os.environ.get("TEST_ZIG") and not _has_libcxx():
        pytest.skip("zig builds its libc++ first, which takes minutes: set TEST_ZIG=1 to wait for it")
    cls = fakes.builder_class(relu_folder, relu_folder.name, sources=["relu.cpp"])
    binary = cls("cpu:x86-64-v2", portable=True).obtain().binary
    assert not any("stdc++" in one or "gcc" in one for one in binary["needs"])
    assert "GLIBCXX" not in binary["floors"]
    assert tuple(map(int, binary["floors"]["GLIBC"].split("."))) <= (2, 28)
    assert "aoti_torch_empty_like" in binary["shims"] or binary["shims"], "what it asks of torch is on record"


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("cuda:sm_20", "does not know sm_20 (compute capability 2.0); it knows sm_"),
        ("cuda:sm_990a", "does not know sm_990a (compute capability 99.0a)"),
    ],
)
def test_an_architecture_that_nvcc_does_not_know_is_named_with_those_it_does(target, says, places, tmp_path):
    needs(places, "nvcc")
    fakes.write(tmp_path, "scale.cu", KERNEL)
    cls = fakes.builder_class(tmp_path, "scale", abi="c", sources=["scale.cu"], devices=["cuda"])
    with pytest.raises(OpIncompatibleError) as refused:
        cls(target).obtain()
    assert says in str(refused.value)


def test_no_toolchain_for_a_device_says_which_there_are(tmp_path):
    fakes.write(tmp_path, "scale.cpp", "")
    cls = fakes.builder_class(tmp_path, "scale", abi="c", sources=["scale.cpp"], devices=["npu"])
    with pytest.raises(OpIncompatibleError, match="no toolchain for npu; it has one for cpu, cuda, hip, xpu, opencl"):
        cls("npu:910b").obtain()


# -- compilers that are only pretended ---------------------------------------------------------------------------------


@pytest.fixture
def bin(tmp_path, monkeypatch):
    """A folder that is all of PATH but for the system's tools, and no other way to a device compiler."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    for name in ("CUDA_HOME", "CUDA_PATH", "ROCM_HOME", "ROCM_PATH", "HIP_PATH", "CMPLR_ROOT", "ONEAPI_ROOT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(nvcc, "_packaged", list)
    return folder


NVCC = """\
top="$(dirname "$(dirname "$0")")"
case "$*" in
  *--version*) echo "Cuda compilation tools, release 14.2, V14.2.@BUILD@";;
  *--list-gpu*) echo "compute_90 sm_90 compute_150 sm_150";;
  *-E*) @HOST@;;
  *--dryrun*sm_150z*) exit 1;;
  *--dryrun*) printf '#$ TOP=%s\\n#$ CICC_PATH=%s\\n#$ INCLUDES="-I%s/include"\\n' "$top" "$top" "$top" >&2;;
esac
"""


def fake_nvcc(folder, build="1", host="exit 0"):
    fakes.compiler(folder, "nvcc", NVCC.replace("@BUILD@", build).replace("@HOST@", host))
    return made("nvcc")


def test_another_version_of_a_compiler_is_another_toolchain(bin):
    first = fake_nvcc(bin)
    assert first.release == "14.2" and first.objection("cuda", ("sm_90", "sm_150a", "ptx")) is None
    assert "does not know sm_150z" in first.objection("cuda", ("sm_150z",))
    second = fake_nvcc(bin, build="22")
    assert first.identity() != second.identity()


def test_a_host_compiler_that_nvcc_refuses_is_named_with_the_way_out(bin):
    words = "unsupported GNU version! gcc versions later than 15 are not supported!"
    refusing = fake_nvcc(bin, host=f"echo 'x.h:1:2: error: #error -- {words} Use at your own risk' >&2; exit 1")
    said = refusing.objection("cuda", ("sm_90",))
    assert f"nvcc 14.2 does not take {refusing.host.argv[0]}: {words}; set NVCC_CCBIN" in said


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("exit 1", "ended with 1: it said nothing"),
        ("echo 'fatal: broken' >&2; exit 3", "ended with 3: fatal: broken"),
        ("echo unheard of", "names no release, but says 'unheard of'"),
    ],
)
def test_an_nvcc_that_does_not_work_is_said_to(body, says, bin):
    fakes.compiler(bin, "nvcc", body)
    with pytest.raises(ToolchainError) as refused:
        made("nvcc").identity()
    assert says in str(refused.value) and "Set CUDA_HOME" in str(refused.value)


def test_a_compiler_that_hangs_is_given_up(bin, monkeypatch):
    from opforge.builders.toolchains import identity

    monkeypatch.setattr(identity, "PATIENCE", 0.2)
    fakes.compiler(bin, "nvcc", "exec sleep 30")
    with pytest.raises(ToolchainError, match="gave no answer"):
        made("nvcc").identity()


@pytest.mark.parametrize(
    ("name", "program", "how"),
    [
        ("nvcc", "CUDA", "pip install nvidia-cuda-nvcc"),
        ("sycl", "SYCL", "setvars.sh"),
        ("hipcc", "HIP", "apt install hipcc"),
    ],
)
def test_a_compiler_that_is_not_here_says_how_to_get_it(name, program, how, tmp_path, monkeypatch, bin):
    for tool in ("g++", "as", "ld"):
        os.symlink(shutil.which(tool), bin / tool)
    monkeypatch.setenv("PATH", str(bin))
    if name == "hipcc" and os.path.exists("/opt/rocm/bin/hipcc"):
        pytest.skip("ROCm is in /opt/rocm, where it is found whatever PATH says")
    with pytest.raises(ToolchainNotFoundError) as refused:
        made(name)
    assert f"No {program} compiler was found." in str(refused.value) and how in str(refused.value)


def test_a_home_that_holds_no_compiler_is_an_error_and_no_silence(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(ToolchainNotFoundError, match="which has no bin/nvcc\nCorrect CUDA_HOME, or unset it"):
        nvcc.find()


def test_sycl_compiles_with_icpx_and_links_with_it(bin, tmp_path):
    fakes.compiler(bin, "icpx", "echo 'Intel(R) oneAPI DPC++/C++ Compiler 2031.2.0 (2031.2.0.1)'")
    fakes.write(tmp_path, "scale.sycl", "")
    fakes.write(tmp_path, "face.cpp", "")
    cls = fakes.builder_class(tmp_path, "scale", sources=["scale.sycl", "face.cpp"], devices=["xpu"])
    builder = cls("xpu:pvc+bmg")
    found = builder.toolchain(current_store())
    plan = builder.plan(found)
    steps = {step.title: list(step.argv) for step in found.steps(plan, builder.places(), "scale.so")}
    assert steps["compile scale.sycl"][0] == str(bin / "icpx")
    assert "-fsycl-targets=spir64_gen,spir64" in steps["compile scale.sycl"]
    assert steps["compile face.cpp"][0].endswith("g++")
    assert steps["link scale"][0] == str(bin / "icpx") and "-device bmg,pvc" in steps["link scale"]
    assert "libtorch_xpu.so" in plan.stubs and ("USE_XPU", "") in plan.defines
    assert "spir64_gen" not in str(found.device_flags((), ())), "without a name there is SPIR-V alone"


def test_a_target_that_nobody_builds_has_no_toolchain_but_a_builder_may_bring_one(tmp_path):
    fakes.write(tmp_path, "scale.cpp", 'extern "C" __attribute__((visibility("default"))) int one() { return 1; }')

    class Npu(host.HostToolchain):
        def objection(self, device, arch):
            return None

        def target_flags(self, device, arch):
            return ()

    cls = fakes.builder_class(tmp_path, "scale", abi="c", sources=["scale.cpp"], devices=["npu"])
    own = type(
        "Own", (cls,), {"toolchain": lambda self, store: Npu(store.layout, store.disk), "__module__": cls.__module__}
    )
    assert own(Target("npu", ("910b",))).load().one() == 1


def test_a_sysroot_is_known_by_what_is_in_it_and_not_by_its_place(tmp_path, monkeypatch):
    toolchain_keys = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        for part in ("usr", "lib", "lib64"):
            if os.path.isdir(f"/{part}"):
                os.symlink(f"/{part}", folder / part)
        monkeypatch.setenv("OPFORGE_SYSROOT", str(folder))
        cls = fakes.plain_op(tmp_path / "src")
        builder = cls(portable=True)
        toolchain_keys.append(builder.plan(builder.toolchain(current_store())).key)
        assert builder.load().value() == 1
    assert toolchain_keys[0] == toolchain_keys[1]


def test_code_for_another_processor_runs_there(places, tmp_path):
    needs(places, "zig")
    if not os.environ.get("TEST_ZIG"):
        pytest.skip("zig builds its libraries for aarch64 first, which takes minutes: set TEST_ZIG=1 to wait")
    if not shutil.which("qemu-aarch64") or not os.path.isdir("/usr/aarch64-linux-gnu"):
        pytest.skip("needs an emulator and its libc (apt install qemu-user libc6-arm64-cross)")
    import subprocess

    entry = fakes.plain_op(tmp_path, value=7)("cpu:aarch64", portable=True).obtain()
    assert entry.binary["machine"] == "aarch64"
    calls = "#include <dlfcn.h>\n#include <stdio.h>\nint main(int n, char** a) { void* h = dlopen(a[1], RTLD_NOW);"
    calls += ' printf("%d", h ? ((int (*)(void))dlsym(h, "value"))() : -1); }\n'
    main = fakes.write(tmp_path, "main.c", calls)
    program = str(tmp_path / "main")
    subprocess.run([zig.find(), "cc", "-target", "aarch64-linux-gnu.2.28", main, "-o", program], check=True)
    command = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", program, entry.library]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "7"
