"""What is compiled instead of a source: CUDA as HIP, OpenCL as a string."""

from __future__ import annotations

import os
import sys

import pytest
from support import text_files

from opforge.builders.run.reads.depfile import read_depfile
from opforge.builders.toolchains import source_translation


@pytest.mark.parametrize(
    ("cuda", "hip"),
    [
        ("#include <cuda_runtime.h>", "#include <hip/hip_runtime.h>"),
        ('#  include "cuda_fp16.h"', '#  include "hip/hip_fp16.h"'),
        ("#include <cub/cub.cuh>", "#include <hipcub/hipcub.hpp>"),
        ("cudaStream_t s; cudaError_t e = cudaSuccess;", "hipStream_t s; hipError_t e = hipSuccess;"),
        ("cudaDeviceProp p; cudaGetDeviceProperties(&p, 0);", "hipDeviceProp_t p; hipGetDeviceProperties(&p, 0);"),
        ("cudaDevAttrWarpSize", "hipDeviceAttributeWarpSize"),
        ("cudaDevAttrMultiProcessorCount", "hipDeviceAttributeMultiprocessorCount"),
        ("cub::BlockReduce<float, 256>", "hipcub::BlockReduce<float, 256>"),
        ("x += __shfl_xor_sync(0xffffffff, x, 16);", "x += __shfl_xor(x, 16);"),
        ("__nv_bfloat16 x;", "__hip_bfloat16 x;"),
        ("mycudaThing cudart barracuda USE_CUDA", "mycudaThing cudart barracuda USE_CUDA"),
        ("aoti_torch_get_current_cuda_stream(0, &s);", "aoti_torch_get_current_cuda_stream(0, &s);"),
        ("kernel<<<grid, block, 0, s>>>(x);", "kernel<<<grid, block, 0, s>>>(x);"),
    ],
)
def test_cuda_becomes_hip(cuda, hip):
    assert source_translation.hip_of(cuda) == hip


def test_a_translation_has_as_many_lines_as_its_source(tmp_path):
    source = "#include <cuda_runtime.h>\n\n__global__ void f() {}\ncudaError_t g();\n"
    assert source_translation.hip_of(source).count("\n") == source.count("\n")


def test_quoted_headers_are_translated_too_and_the_originals_do_not_change(tmp_path, monkeypatch):
    work, folder = tmp_path / "work", tmp_path / "src"
    for path in (work, folder, folder / "more"):
        path.mkdir()
    monkeypatch.chdir(work)
    text_files.write(
        folder, "a.cu", '#include "more/b.h"\n#include "cuda_runtime.h"\n#include "absent.h"\ncudaStream_t a;\n'
    )
    text_files.write(folder / "more", "b.h", '#include "../c.h"\ncudaEvent_t b;\n')
    text_files.write(folder, "c.h", '#include "more/b.h"\ncudaEvent_t c;\n')
    originals = source_translation.translate(str(folder / "a.cu"), "0.a.o.hip", [str(folder)])
    assert sorted(originals.values()) == [str(folder / name) for name in ("a.cu", "c.h", "more/b.h")]
    text = (work / "0.a.o.hip").read_text()
    assert text.startswith(f'#line 1 "{folder}/a.cu"\n#include "{work}/translated/')
    assert '#include "hip/hip_runtime.h"\n#include "absent.h"\nhipStream_t a;' in text
    assert all(path.startswith(str(work)) or not os.path.isabs(path) for path in originals)
    copies = {os.path.basename(path): path for path in originals}
    assert "hipEvent_t b;" in (work / copies["b.h"]).read_text()
    assert (folder / "c.h").read_text() == '#include "more/b.h"\ncudaEvent_t c;\n'


def test_the_originals_are_in_the_depfile(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text_files.write(tmp_path, "my kernel.cu", "int x;\n")
    write = "open('x.d', 'w').write('x.o: made.hip \\\\\\n /usr/include/a.h\\n')"
    status = source_translation.main(
        ["x.d", str(tmp_path / "my kernel.cu"), "made.hip", "--", sys.executable, "-c", write]
    )
    assert status == 0
    names = read_depfile(str(tmp_path / "x.d"), str(tmp_path))
    assert sorted(names) == sorted(["made.hip", "/usr/include/a.h", str(tmp_path / "my kernel.cu")])


def test_the_exit_status_of_the_compiler_is_returned(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text_files.write(tmp_path, "a.cu", "int x;\n")
    assert source_translation.main(["x.d", "a.cu", "a.hip", "--", sys.executable, "-c", "raise SystemExit(3)"]) == 3


def test_opencl_becomes_a_string_with_exactly_its_text():
    text = 'kernel void f() { printf("a\\n"); } // \\\n'
    translation = source_translation.c_of("/x/my-kernel.cl", text)
    assert "const char opforge_cl_my_kernel[] =\n" in translation
    literal = translation.partition("=\n")[2].rstrip(";\n")
    assert "".join(eval(line) for line in literal.splitlines()) == text
