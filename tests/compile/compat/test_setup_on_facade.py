"""An unmodified project whose setup.py builds one wheel for every torch and Python, which needs no opforge."""

import json
import os
import re
import shutil
import subprocess
import sys
import types
import zipfile
from pathlib import Path

import pytest
import torch
from facade.wheels import link_distributions
from support import child_processes, text_files
from support.compat import installed_metadata
from support.paths import CHECKOUT, SUPPORT
from support.processes import forked_python

from opforge.builders.inspection import elf

SETUP = """\
from setuptools import Extension, setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

# the oldest torch and Python of a wheel on the facade are the facade's
FLAGS = ["-O0", "-Werror", "-DTORCH_TARGET_VERSION=0x020d000000000000", "-DPy_LIMITED_API=0x030a0000"]
setup(
    name="twicely",
    version="1",
    packages=["twicely"],
    install_requires=["click"],
    ext_modules=[CppExtension("twicely._C", ["csrc/module.cpp"], extra_compile_args=FLAGS, include_dirs=["csrc"])],
    cmdclass={"build_ext": BuildExtension},
)
"""
MODULE = """\
#include <torch/extension.h>
#include "factor.h"

torch::Tensor twice(const torch::Tensor& x) { return x * FACTOR; }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("twice", &twice, "Returns twice x.", py::arg("x")); }
TORCH_LIBRARY(twicely, m) { m.def("twice", &twice); }
"""
USE = """
import importlib.util, torch
from twicely import _C
x = torch.ones(2, requires_grad=True)
_C.twice(x=x).sum().backward()
found = importlib.util.find_spec("opforge")
print(x.grad.tolist(), torch.ops.twicely.twice(x).tolist(), _C.__file__.endswith("_C.abi3.so"), found)
"""


def _project(folder: Path) -> Path:
    for name, text in {
        "setup.py": SETUP,
        "twicely/__init__.py": "",
        "csrc/module.cpp": MODULE,
        "csrc/factor.h": "#define FACTOR 2\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def _wheel(
    tree: Path, work: Path, store: Path, python: str, **variables: str
) -> tuple[Path | None, str, list[tuple[str, str]]]:
    """Runs setup.py in a project. Returns the wheel, the output, and the store's hits and builds.

    pip would start it three times, each of which imports torch: test_setup.py has what pip calls.
    """
    out, log = work / f"wheels-{tree.name}", work / f"events-{tree.name}"
    log.unlink(missing_ok=True)
    site = str(work / "metadata" / "site")
    if not os.path.exists(site):
        installed_metadata.with_entry_points(work / "metadata")
    env = child_processes.environment(
        OPFORGE_CPP_EXTENSION="torch-facade",
        OPFORGE_CACHE_DIR=str(store),
        OPFORGE_LOG=str(log),
        PYTHONPATH=os.pathsep.join([site, os.path.join(CHECKOUT, "src")]),
        PIP_DISABLE_PIP_VERSION_CHECK="1",
        **variables,
    )
    argv = [python, "setup.py", "-q", "bdist_wheel", "-d", str(out)]
    process = subprocess.run(argv, cwd=tree, env=env, capture_output=True, text=True, timeout=250)
    events = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    found = [(event["event"], event["op"]) for event in events if event["event"] in ("hit", "build")]
    return next(iter(out.glob("*.whl")), None), process.stdout + process.stderr, found


@pytest.mark.test_all
def test_one_variable_makes_a_wheel_for_every_torch_and_python(tmp_path: Path) -> None:
    first = _project(tmp_path / "first")
    wheel, output, events = _wheel(first, tmp_path, tmp_path / "store", forked_python.python())
    assert wheel, output
    assert events == [("build", "_C")]
    assert wheel.name.startswith("twicely-1-py3-none-") and wheel.name.endswith(f"_{os.uname().machine}.whl")
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read("twicely-1.dist-info/METADATA").decode()
        assert "Requires-Dist: click\n" in text and "Requires-Dist: torch>=2.10\n" in text
        assert "Requires-Python: >=3.11\n" in text
        assert "Root-Is-Purelib: false" in archive.read("twicely-1.dist-info/WHEEL").decode()
        assert "twicely/_C.abi3.so" in archive.namelist()

    # it runs where there is torch and no opforge
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(site)]
    subprocess.run([*pip, str(wheel)], check=True, env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"})
    link_distributions(["torch"], site)
    alone = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(site)!r})\n{USE}"]
    ended = subprocess.run(alone, capture_output=True, text=True, env={"PATH": "/nowhere"})
    assert ended.stdout == "[2.0, 2.0] [2.0, 2.0] True None\n", ended.stderr

    # another checkout is a hit, and the library is the same
    second = tmp_path / "second"
    shutil.copytree(first, second, ignore=shutil.ignore_patterns("build", "*.egg-info"))
    again, output, events = _wheel(second, tmp_path, tmp_path / "store", forked_python.python())
    assert again and events == [("hit", "_C")], output
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(again) as other:
        assert one.read("twicely/_C.abi3.so") == other.read("twicely/_C.abi3.so")

    # a source that the facade refuses is an error with the line and what lists all of them; torch does not build it
    (second / "csrc" / "module.cpp").write_text("#include <ATen/native/Pool.h>\n" + MODULE)
    shutil.rmtree(tmp_path / "wheels-second")
    again, output, events = _wheel(second, tmp_path, tmp_path / "store", forked_python.python())
    assert again is None and events == []
    assert "csrc/module.cpp:1:" in output and "ATen/native/Pool.h: No such file" in output
    assert output.count("csrc/module.cpp` lists every line that the facade of torch's headers does not have") == 1


OF_CUDA = """\
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension

flags = {"cxx": ["-O0"], "nvcc": ["-O1", "-gencode=arch=compute_80,code=sm_80"]}
setup(
    name="scaled",
    version="1",
    packages=["scaled"],
    ext_modules=[
        CUDAExtension("scaled._C", ["csrc/kernel.cu"], extra_compile_args=flags),
        CUDAExtension("scaled._host", ["csrc/host.cpp"], extra_compile_args=flags),
    ],
    cmdclass={"build_ext": BuildExtension},
)
"""
KERNEL = Path(SUPPORT, "facade", "cuda_source.cu")
"""What public sources in CUDA use of torch's headers."""
HOST = """\
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAUtils.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/extension.h>
#include <ATen/cuda/detail/IndexUtils.cuh>

template <int Dims>
std::vector<int64_t> offsets(at::cuda::detail::TensorInfo<float, int64_t> info, int64_t n) {
    std::vector<int64_t> all(n);
    for (int64_t i = 0; i < n; ++i) all[i] = at::cuda::detail::IndexToOffset<float, int64_t, Dims>::get(i, info);
    return all;
}
// The dimensions and the place of `kept` after a collapse, and each element's offset before and after it.
std::tuple<std::vector<int64_t>, std::vector<std::vector<int64_t>>> positions(torch::Tensor x, int kept) {
    auto info = at::cuda::detail::getTensorInfo<float, int64_t>(x);
    std::vector<std::vector<int64_t>> all{offsets<-1>(info, x.numel()), offsets<3>(info, x.numel())};
    const int64_t place = info.collapseDims(kept);
    all.push_back(offsets<-1>(info, x.numel()));
    return {{info.dims, place, info.isContiguous()}, all};
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("stream", [] { c10::cuda::getCurrentCUDAStream(0).synchronize(); });
    m.def("devices", [] { return int(c10::cuda::device_count()); });
    m.def("are_here", [](std::vector<torch::Tensor> list) { return at::cuda::check_device(list); });
    m.def("event", [] {
        at::cuda::CUDAEvent event, other = at::cuda::CUDAEvent(cudaEventDisableTiming);
        event = std::move(other);
        return std::make_tuple(event.isCreated(), event.query(), event.device().has_value());
    });
    m.def("elapsed", [](unsigned int flags) {
        at::cuda::CUDAEvent event(flags), other(flags);
        return event.elapsed_time(other);
    });
    m.def("memory", [](size_t bytes) {
        const auto memory = c10::cuda::CUDACachingAllocator::raw_alloc(bytes);
        c10::cuda::CUDACachingAllocator::raw_delete(memory);
        return memory == nullptr;
    });
    m.def("check", [] { C10_CUDA_CHECK(cudaErrorInvalidValue); });
    m.def("positions", &positions);
    m.def("is_small", [](torch::Tensor x, int64_t most) { return at::cuda::detail::canUse32BitIndexMath(x, most); });
}
"""
USE_CUDA = """
import torch
from scaled import _C, _host
def text(call, *values):
    try:
        call(*values)
    except (RuntimeError, ValueError) as error:
        return str(error)
print(text(_C.scaled, torch.ones(2), 2.0))
print(text(_host.stream))
print(_host.event(), text(_host.elapsed, 2), text(_host.elapsed, 0))
print(_host.memory(0), text(_host.memory, 8))
print(_host.devices(), text(_host.check))
print(_host.are_here([]), bool(text(_host.are_here, [torch.ones(2)])))
x = torch.zeros(2, 3, 4, 5)
for part in (x[0], x[:, 1], x[:, :, 2], x[0].transpose(0, 2), x[0, :, :1], x[:1, :1, 0, :1]):
    index = torch.unravel_index(torch.arange(part.numel()), part.shape)
    expected = sum(i * s for i, s in zip(index, part.stride())).tolist()
    kept = [_host.positions(part, k) for k in (-1, 0, 1, 2)]
    assert all(offsets == expected for _, all_ in kept for offsets in all_), part.shape
    print([facts for facts, _ in kept])
print(_host.is_small(x, 120), _host.is_small(x, 121), _host.is_small(x[..., :1], 120), _host.is_small(x[:0], 1))
"""


@pytest.mark.test_all
@pytest.mark.skipif(not shutil.which("nvcc"), reason="there is no nvcc on PATH")
@pytest.mark.skipif(torch.version.cuda is not None, reason="it shows what is done without torch's own CUDA")
def test_an_extension_in_cuda_is_a_wheel_that_loads_beside_a_torch_without_cuda(tmp_path: Path) -> None:
    """Nothing of the kernel is run: that needs a GPU."""
    tree = tmp_path / "project"
    for name, text in {"setup.py": OF_CUDA, "csrc/kernel.cu": KERNEL.read_text(), "csrc/host.cpp": HOST}.items():
        text_files.write(tree, name, text)
    text_files.write(tree, "scaled/__init__.py", "")
    # nvcc on PATH may be a script that starts another folder's.
    nothing = ["nvcc", "--dryrun", "-x", "cu", "-c", os.devnull, "-o", os.devnull]
    said = subprocess.run(nothing, check=True, capture_output=True, text=True).stderr
    (toolkit,) = re.findall(r"^#\$ TOP=(.+)$", said, re.M)
    # torch's import reads where CUDA is: a process that has imported it before does not show that.
    wheel, output, events = _wheel(tree, tmp_path, tmp_path / "store", sys.executable, CUDA_HOME=toolkit)
    assert wheel, output
    assert events == [("build", "_C"), ("build", "_host")]
    assert wheel.name.startswith("scaled-1-py3-none-manylinux_"), output
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    for name in ("_C", "_host"):
        needed = elf.read_library(str(tmp_path / "site" / "scaled" / f"{name}.abi3.so"))["needs"]
        assert not [library for library in needed if "cuda" in library], needed
    ended = subprocess.run(
        [forked_python.python(), "-c", USE_CUDA],
        capture_output=True,
        text=True,
        env=child_processes.environment(PYTHONPATH=str(tmp_path / "site")),
    )
    assert ended.stdout.splitlines() == [
        "expected a tensor on a CUDA device, got cpu",
        "getCurrentCUDAStream: this torch has no such function for CUDA",
        "(False, True, False) Both events must be created with argument 'enable_timing=True'. Both events must be"
        " recorded before calculating elapsed time.",
        "True CUDACachingAllocator: this torch has no such function for CUDA",
        "0 CUDA error: invalid argument",
        "True True",
        "[[1, -1, 1], [2, 0, 0], [3, 1, 0], [2, 1, 0]]",
        "[[2, -1, 0], [2, 0, 0], [3, 1, 0], [3, 2, 0]]",
        "[[2, -1, 0], [3, 0, 0], [3, 1, 0], [2, 1, 0]]",
        "[[3, -1, 0], [3, 0, 0], [3, 1, 0], [3, 2, 0]]",
        "[[2, -1, 0], [2, 0, 0], [3, 1, 0], [2, 1, 0]]",
        "[[1, -1, 1], [1, 0, 0], [1, 0, 0], [1, 0, 1]]",
        "False True True True",
    ], ended.stderr


def test_a_torch_without_cuda_is_told_the_toolkit_that_a_variable_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from opforge.compat import cuda_home

    module = types.ModuleType(cuda_home.EXTENSION)
    monkeypatch.setitem(sys.modules, cuda_home.EXTENSION, module)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvcc").touch()
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    vars(module)["CUDA_HOME"] = None
    cuda_home.give_after_import()
    assert vars(module)["CUDA_HOME"] is None, "the variable does not ask for the facade"
    monkeypatch.setenv("OPFORGE_CPP_EXTENSION", "torch-facade")
    cuda_home.give_after_import()
    assert vars(module)["CUDA_HOME"] == str(tmp_path)
    monkeypatch.setenv("CUDA_HOME", "/another")
    cuda_home.give_after_import()
    assert vars(module)["CUDA_HOME"] == str(tmp_path), "what torch has found stays"
    vars(module)["CUDA_HOME"] = None
    cuda_home.give_after_import()
    assert vars(module)["CUDA_HOME"] is None, "there is no nvcc"


def test_the_hook_adds_the_facades_commands_if_the_variable_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from setuptools import Distribution, Extension
    from torch.utils.cpp_extension import BuildExtension, CppExtension

    from opforge.compat.setuptools_hook import finalize

    monkeypatch.setenv("OPFORGE_CPP_EXTENSION", "torch-facade")
    extensions = [CppExtension("mine._C", ["a.cpp"]), Extension("mine._plain", ["b.c"])]
    distribution = Distribution({"name": "mine", "ext_modules": extensions})
    distribution.cmdclass["build_ext"] = BuildExtension
    finalize(distribution)
    finalize(distribution)  # setuptools may call it again
    command = distribution.get_command_obj("build_ext")
    command.ensure_finalized()
    assert command.get_ext_filename("mine._C") == os.path.join("mine", "_C.abi3.so")
    assert "cpython" in command.get_ext_filename("mine._plain")
    wheel = distribution.get_command_obj("bdist_wheel")
    wheel.ensure_finalized()
    assert wheel.get_tag()[0].startswith("cp")  # nothing was built on the facade


def test_a_value_that_is_none_of_the_three_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from opforge.errors import SettingError
    from opforge.foundation import settings

    monkeypatch.setenv("OPFORGE_CPP_EXTENSION", "facade")
    with pytest.raises(SettingError, match="expected 1, 0 or torch-facade"):
        settings.cpp_extension()
