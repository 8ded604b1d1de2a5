"""CUTLASS under a limit on memory: a kernel with eight instantiations is built where two compilers at once die.

It takes a quarter of an hour of two cores, and is in the third tier, and runs where nvcc is installed and the package
`nvidia-cutlass` is (or CUTLASS_DIR names its folder `cutlass_library/source`).
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time

import pytest
from support import child_processes, text_files
from support.processes.memory_group import memory_group

pytestmark = [
    pytest.mark.timeout(3600),
    pytest.mark.long("takes minutes"),
]
TILES = [(rows, columns) for rows in (64, 128) for columns in (64, 128, 192, 256)]
"""The eight instantiations."""
LIMIT_BYTES = int(os.environ.get("OPFORGE_TEST_MEMORY", str(3 << 30)))
"""Bytes for a build: one compiler of these sources needs 1.8 GB."""
MOST = 1.1
"""How many times as long as with the best fixed number of compilers a build may take."""
GEMM = """\
#include <cute/tensor.hpp>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/device/gemm_universal_adapter.h>
#include <cutlass/gemm/kernel/gemm_universal.hpp>
using namespace cute;
using cutlass::arch::OpClassTensorOp;
using cutlass::arch::Sm90;
using Element = cutlass::bfloat16_t;
using Row = cutlass::layout::RowMajor;
using Column = cutlass::layout::ColumnMajor;
using TileShape = Shape<Int<ROWS>, Int<COLUMNS>, _64>;
using Cluster = Shape<_1, _1, _1>;
using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
    Sm90, OpClassTensorOp, TileShape, Cluster, cutlass::epilogue::collective::EpilogueTileAuto, float, float, Element,
    Row, 8, Element, Row, 8, cutlass::epilogue::collective::EpilogueScheduleAuto>::CollectiveOp;
using Stages = cutlass::gemm::collective::StageCountAutoCarveout<int(sizeof(typename Epilogue::SharedStorage))>;
using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
    Sm90, OpClassTensorOp, Element, Row, 8, Element, Column, 8, float, TileShape, Cluster, Stages,
    cutlass::gemm::collective::KernelScheduleAuto>::CollectiveOp;
using Kernel = cutlass::gemm::kernel::GemmUniversal<Shape<int, int, int, int>, Mainloop, Epilogue>;
using Gemm = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;
extern "C" __attribute__((visibility("default"))) int gemmNUMBER(int m, int n, int k) {
  Gemm gemm;
  typename Gemm::Arguments arguments{cutlass::gemm::GemmUniversalMode::kGemm, {m, n, k, 1}, {}, {}};
  return gemm.initialize(arguments) == cutlass::Status::kSuccess && gemm.run() == cutlass::Status::kSuccess;
}
"""
OURS = """
import logging
logging.basicConfig()
from support import sample_ops
cls = sample_ops.builder_class({folder!r}, "gemm", abi="c", sources={sources!r}, include_dirs={includes!r},
    devices=["cuda"], extra_compile_args={{"cxx": [], "nvcc": ["--expt-relaxed-constexpr"]}})
print(cls("cuda:sm_90a").build(force=True).build()["peak_bytes"])
"""
TORCHS = """
import os
from torch.utils import cpp_extension
cpp_extension.CUDA_HOME = os.environ["CUDA_HOME"]  # that of a torch for CUDA finds it
cpp_extension.load("gemm", [{folder!r} + "/" + name for name in {sources!r}], extra_include_paths={includes!r},
    extra_cuda_cflags=["--expt-relaxed-constexpr"], with_cuda=True, is_python_module=False)
"""


def cutlass_folder():
    """Returns the folder of CUTLASS's sources; skips the test if there is none."""
    folder = os.environ.get("CUTLASS_DIR", "")
    if not folder and (found := importlib.util.find_spec("cutlass_library")) and found.origin:
        folder = os.path.join(os.path.dirname(found.origin), "source")
    if not os.path.isdir(os.path.join(folder, "include", "cutlass")):
        pytest.skip("not run: pip install nvidia-cutlass, or set CUTLASS_DIR to the folder with its `include`")
    return folder


def run(code, **env):
    """Runs Python under the limit; returns its status, all that it printed, and the seconds."""
    with memory_group(LIMIT_BYTES) as group:
        began = time.perf_counter()
        command = [*group.prefix(), sys.executable, "-c", code]
        done = subprocess.run(
            command, env=child_processes.environment(**env), capture_output=True, text=True, timeout=3000, check=False
        )
    return done.returncode, done.stdout + done.stderr, time.perf_counter() - began


def test_it_is_built_where_two_compilers_at_once_are_killed(tmp_path, own_store):
    folder = tmp_path / "op"
    folder.mkdir()
    sources = [f"gemm{number}.cu" for number in range(len(TILES))]
    for number, (rows, columns) in enumerate(TILES):
        text = GEMM.replace("NUMBER", str(number)).replace("ROWS", str(rows)).replace("COLUMNS", str(columns))
        text_files.write(folder, sources[number], text)
    code = {"folder": str(folder), "sources": sources, "includes": [os.path.join(cutlass_folder(), "include")]}

    toolkit = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    environment = {
        "CUDA_HOME": toolkit,
        "MAX_JOBS": "2",
        "TORCH_CUDA_ARCH_LIST": "9.0a",
        "TORCH_EXTENSIONS_DIR": str(tmp_path / "torchs"),
    }
    status, printed, _seconds = run(TORCHS.format(**code), **environment)
    assert status != 0 and ("signal 9" in printed or "Killed" in printed), printed[-2000:]

    status, printed, ours = run(OURS.format(**code))
    assert status == 0, printed[-2000:]
    assert "was killed" not in printed
    peak = next(int(line) for line in printed.splitlines() if line.isdecimal())
    print(f"one compiler needed {peak / 1e9:.1f} GB")

    status, printed, one = run(OURS.format(**code), OPFORGE_JOBS="1")
    assert status == 0, printed[-2000:]
    print(f"built in {ours:.0f} s, with one compiler at a time in {one:.0f} s")
    assert ours <= MOST * one
