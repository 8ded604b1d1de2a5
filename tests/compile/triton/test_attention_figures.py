"""Static figures of the attention kernels' machine code, as `opforge inspect` reads them and by NVIDIA's own tool."""

from __future__ import annotations

import json

import pytest
from support import child_processes, tiers
from support.gpu import triton_parts

pytestmark = [pytest.mark.compile, triton_parts.needs_triton]
LONG = tiers.is_long()
SHARED = {"sm_80": 163 << 10, "sm_90": 227 << 10}
"""The shared memory of a block, by the data sheets."""
CUDA, HIP = (
    ("sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120"),
    ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201"),
)
FITS = """
import importlib.util, json, os, re, sys
from opforge.builders.toolchains.triton import WORKER, compiled_archs
from opforge.builders.triton import attention, ragged
import opforge.ops.triton

spec = importlib.util.spec_from_file_location("triton_worker", WORKER)
worker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(worker)
from triton.backends.nvidia.compiler import CUDABackend

CUDABackend.make_cubin = lambda self, ptx, *rest: ptx.encode()  # the assembler decides nothing of it
folder, modules, problems, count = os.path.dirname(opforge.ops.triton.__file__), {}, [], 0
largest = {}
for kernel in [*attention.dense_kernels(), *attention.block_kernels(), *attention.paged_kernels()]:
    if re.search(sys.argv[1], kernel.name):
        largest[kernel.name.rpartition("_")[0]] = kernel  # with the most biases
for kernel in largest.values():
    path = os.path.join(folder, kernel.source)
    module = modules.get(path) or modules.setdefault(path, worker._import(path))
    declared = json.loads(kernel.text())
    for arch in sys.argv[2:]:
        device = "hip" if arch.startswith("gfx") else "cuda"
        (arch,) = compiled_archs([arch]) if device == "cuda" else [arch]
        shared = worker._compile(worker._function(module, declared), declared, device, arch)["shared"]
        assert worker.shared_problem(1 << 30, arch), f"the limit of {arch} is not known"
        count += 1
        if problem := worker.shared_problem(shared, arch):
            problems.append(f"{kernel.name}: {problem}")
print(json.dumps([count, problems]))
"""
COMPILE = """
import importlib.util, json, os, re, subprocess, sys
from opforge.builders.inspection import cubin
from opforge.builders.inspection.reader import Reader
from opforge.builders.toolchains.triton import WORKER
from opforge.builders.triton import attention, ragged, transformer
import opforge.ops.triton

spec = importlib.util.spec_from_file_location("triton_worker", WORKER)
worker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(worker)
import triton
from triton.backends.nvidia import compiler

folder = os.path.dirname(opforge.ops.triton.__file__)
modules = {}
kept, make_cubin = {}, compiler.CUDABackend.make_cubin

def with_ptx(self, ptx, *rest):
    kept["ptx"] = ptx
    return make_cubin(self, ptx, *rest)

compiler.CUDABackend.make_cubin = with_ptx
dump = os.path.join(os.path.dirname(compiler.__file__), "bin", "cuobjdump")
figures = {}
for builder in (getattr(globals()[name], builder) for name, builder in map(str.split, sys.argv[2:])):
    for kernel in builder.kernels:
        if not re.search(sys.argv[1], kernel.name):
            continue
        if kernel.source not in modules:
            modules[kernel.source] = worker._import(os.path.join(folder, kernel.source))
        module = modules[kernel.source]
        declared = json.loads(kernel.text())
        for arch in ("sm_80", "sm_90"):
            image = worker._compile(worker._function(module, declared), declared, "cuda", arch)
            with open("image.cubin", "wb") as file:
                file.write(image["content"])
            argv = [dump, "-res-usage", "image.cubin"]
            used = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
            registers, stack, local = re.search(r"REG:(\\d+) STACK:(\\d+) .*?LOCAL:(\\d+)", used).groups()
            read = cubin.kernels(Reader(image["content"]), arch)[0]
            loop = kept["ptx"].partition("$L__BB0_")[2]
            figures[f"{kernel.name} {arch}"] = {
                "registers": int(registers), "stack": int(stack) + int(local), "shared": image["shared"],
                "copies": len(re.findall(r"cp\\.async\\.c[ag]\\.", loop)), "waits": loop.count("cp.async.wait_group"),
                "inspected": read._asdict(),
                "all_copies": len(re.findall(r"cp\\.async\\.c[ag]\\.", kept["ptx"])),
                "all_waits": kept["ptx"].count("cp.async.wait_group"),
                "products": len(re.findall(r"mma\\.sync|wgmma\\.mma_async", loop)),
            }
print(json.dumps(figures))
"""
SOME = r"backward_keys_dense_bf16_256_2|paged_pages_bf16_128"


ATTENTION = ["attention EvoformerAttnBuilder", "attention SparseAttnBuilder", "ragged RaggedOpsBuilder"]
NORMS = r"^(post_layer_norm_bf16_(8192|long)|gated_activation_biased_fp32_any)$"


def figures_of(folder, pattern, builders):
    """Returns the figures of kernels by their names with the architecture behind."""
    arguments = f"import sys; sys.argv[1:] = [{pattern!r}, *{builders!r}]\n"
    environment = {"TRITON_CACHE_DIR": str(folder / "triton")}  # the cache would not compile
    return json.loads(
        child_processes.run_with_torch(arguments + COMPILE, timeout=600, cwd=str(folder), env=environment)
    )


def check(name, figure):
    assert figure["stack"] == 0 and figure["registers"] <= 255, (name, figure)
    assert figure["shared"] <= SHARED[name.rpartition(" ")[2]], (name, figure)
    read = figure["inspected"]
    assert (read["registers"], read["stack"], read["spills"]) == (figure["registers"], 0, 0), (name, figure)
    # The assembler may copy a loop's body: at least what was asked for is there.
    assert read["copies"] >= figure["all_copies"] and read["waits"] >= figure["all_waits"], (name, figure)


def test_no_kernel_of_attention_spills_or_exceeds_shared_memory(tmp_path):
    """A few of the largest kernels; in the third tier all of them."""
    figures = figures_of(tmp_path, "_(dense|blocks|pages)_" if LONG else SOME, ATTENTION)
    assert len(figures) == (2 * (88 + 108 + 8) if LONG else 4)
    for name, figure in figures.items():
        check(name, figure)
        assert figure["copies"] and figure["waits"] and figure["products"], (name, figure)


def test_attention_fits_the_shared_memory_of_every_architecture(tmp_path):
    """The kernel that needs most of NVIDIA's; in the third tier all of them, with the most biases that they take."""
    some = r"forward_dense_bf16_256_2", ("sm_89", "gfx942")
    names, archs = ("_bf16_", (*CUDA, *HIP)) if LONG else some
    arguments = f"import sys; sys.argv[1:] = [{names!r}, *{archs!r}]\n"
    environment = {"TRITON_CACHE_DIR": str(tmp_path / "triton")}
    output = child_processes.run_with_torch(arguments + FITS, timeout=900, cwd=str(tmp_path), env=environment)
    count, problems = json.loads(output)
    assert problems == [] and count == ((16 + 18 + 4) * 11 if LONG else 2)


def test_no_kernel_of_inference_spills(tmp_path):
    """The largest norms and activations; in the third tier all of them."""
    figures = figures_of(tmp_path, "" if LONG else NORMS, ["transformer InferenceCoreBuilder"])
    assert len(figures) == (2 * 99 if LONG else 2 * 3)
    for name, figure in figures.items():
        check(name, figure)
