"""What the host asks torch for CUDA, without a GPU: a handle of cuBLAS, and where a generator's numbers begin."""

import shutil
import subprocess
from pathlib import Path

import pytest
from facade import compiling
from support.processes import forked_python

from opforge.builders.toolchains import nvcc

SOURCE = """
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAGraphsUtils.cuh>
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("begin", [](std::optional<at::Generator> given, uint64_t count) {
        auto* of_device = at::get_generator_or_default<at::CUDAGeneratorImpl>(
            given, at::cuda::detail::getDefaultCUDAGenerator(0));
        const std::lock_guard<std::mutex> hold(of_device->mutex_);
        return at::cuda::philox::unpack(of_device->philox_cuda_state(count));
    });
    m.def("handle", [] { return reinterpret_cast<intptr_t>(at::cuda::getCurrentCUDABlasHandle()); });
}
"""
BLAS = 'extern "C" int cublasCreate_v2(void**) { return 0; }\n'
OF_TORCH = """
extern "C" int cublasCreate_v2(void**);
extern "C" int torch_get_current_cuda_blas_handle(void** handle) {
    *handle = (void*)4660;
    return cublasCreate_v2(handle);
}
"""
HEADER = """
typedef struct cublasContext* cublasHandle_t;
typedef int cublasStatus_t;
extern "C" cublasStatus_t cublasCreate_v2(cublasHandle_t*);
"""


def shared(folder: Path, name: str, text: str, *options: str) -> Path:
    """Compiles a text to the library of a name."""
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.cpp").write_text(text)
    words = ["g++", "-shared", "-fPIC", f"{name}.cpp", "-o", name, f"-Wl,-soname,{name}", *options]
    subprocess.run(words, cwd=folder, check=True)
    return folder / name


@pytest.mark.skipif(not shutil.which("nvcc"), reason="there is no nvcc on PATH")
def test_torchs_own_blas_alone_has_its_handle_and_numbers_begin_where_the_last_ended(tmp_path: Path) -> None:
    (tmp_path / "cublas_v2.h").write_text(HEADER)
    (tmp_path / "blas.cpp").write_text(SOURCE)
    of_torch, other = (shared(tmp_path / name, f"libcublas.so.{name}", BLAS) for name in ("12", "13"))
    cuda = shared(tmp_path, "libtorch_cuda.so", OF_TORCH, str(of_torch), f"-Wl,-rpath,{of_torch.parent}")
    headers = nvcc.header_folders(nvcc.find())
    folders = [part for folder in (tmp_path, *headers) for part in ("-isystem", str(folder))]
    built = []
    for blas in (of_torch, other):
        target = blas.parent / "blas.so"
        linked = [*folders, str(blas), f"-Wl,-rpath,{blas.parent}", "-O0"]
        compiling.compile_library("facade", "blas", [tmp_path / "blas.cpp"], target, ["-Wl,--no-as-needed", *linked])
        built.append(str(target))
    script = f"""
import ctypes, sys
sys.path[:0] = {[str(Path(__file__).parents[2])]!r}
import torch
from pathlib import Path
from facade.module_record import load
ctypes.CDLL({str(cuda)!r})
class Generator:
    device, offset = torch.device("cuda", 0), 8
    def initial_seed(self):
        return 2**64 - 1
    def get_offset(self):
        return self.offset
    def set_offset(self, offset):
        self.offset = offset
torch.cuda.init, torch.cuda.default_generators = lambda: None, (Generator(),)
for path in {built!r}:
    try:
        print(load(Path(path), "blas").handle())
    except RuntimeError as e:
        print(e)
module = load(Path(path), "blas")
print([module.begin(None, count) for count in (1, 4, 0)])
try:
    module.begin(torch.Generator(), 1)
except RuntimeError as e:
    print(e)
"""
    ended = subprocess.run([forked_python.python(), "-c", script], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-2000:]
    first, second, begun, refused = ended.stdout.splitlines()
    assert begun == str([(2**64 - 1, 8), (2**64 - 1, 12), (2**64 - 1, 16)])
    assert refused == "Expected a 'cuda' device type for generator but found 'cpu'"
    assert first == "4660" and second.startswith("getCurrentCUDABlasHandle: this library calls another cuBLAS than tor")
