"""Runs the code in the documents as a reader would. What is not run is listed with its reason."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from support import child_processes

pytestmark = pytest.mark.compile
ROOT = Path(__file__).resolve().parents[2]
# The tutorials are in test_tutorials.py, which runs what they are made of in order.
PAGES = ("README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))))

MODEL = "import torch\nfrom opforge import get_accelerator\nmodel = torch.nn.Linear(8, 8)\n"
LISTS = """
grads, params, exp_avgs, exp_avg_sqs = ([torch.ones(4)] for _ in range(4))
chunk_size, noop_flag, mode, bias_correction = 2048, torch.zeros(1, dtype=torch.int), 1, True
lr, beta1, beta2, eps, step, weight_decay = 1e-3, 0.9, 0.999, 1e-8, 1, 0.0
"""
QUANTIZER = 'op, groups, values = get_accelerator().load_op("QuantizerBuilder"), 4, torch.randn(64)\n'
FILES = """
import torch
tensor, first, second, rows = torch.ones(2048), torch.ones(3), torch.ones(4), torch.ones(2, 3)
offsets = torch.tensor([8, 0])
for name in ("weights.bin", "a.bin", "b.bin", "table.bin"):
    with open(name, "wb") as file:
        file.write(bytes(1 << 14))
"""
TENSOR = "import torch\nfrom opforge import get_accelerator\ntensor = torch.ones(2048)\n"
RANK = """
import os
os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
"""
ROWS = """
import os
os.environ["TRITON_INTERPRET"] = "1"
import torch
x, weight = torch.randn(2, 128), torch.ones(128)
params, grads, exp_avgs, exp_avg_sqs = ([torch.ones(4)] for _ in range(4))
"""
STEP = "step = model = batch = print\n"
INDUCTOR = """
import warnings
warnings.filterwarnings("ignore", ".torch.jit.script_method. is deprecated")  # inductor itself uses it
"""
DEVICE = """
import opforge
from opforge.accelerator import CPUAccelerator

class Device(CPUAccelerator):
    name, interface_version = "device", 1
    def is_bf16_supported(self): return bf16
    def is_fp16_supported(self): return fp16

opforge.set_accelerator(Device())
for bf16, fp16 in ((True, True), (False, True), (False, False)):
    exec(code)
    print(dtype, scales, losses[-1] < losses[0])
"""
"""Runs code with a device whose tensors are in host memory, and which has one of two dtypes, or none."""
BEFORE = {
    ("docs/accelerators.md", 0): RANK,
    ("docs/fused-ops.md", 0): MODEL,
    ("docs/fused-ops.md", 1): LISTS,
    ("docs/fused-ops.md", 2): QUANTIZER,
    ("docs/host-ops.md", 0): FILES,
    ("docs/host-ops.md", 1): TENSOR,
    ("docs/host-ops.md", 2): TENSOR,
    ("docs/inside-torch.md", 0): INDUCTOR,
    ("docs/jits.md", 0): STEP,
    ("docs/triton.md", 0): ROWS,
    ("docs/triton.md", 3): STEP,
}
"""(page, number of the piece) -> code that runs before the piece: what the text around it assumes."""
NOT_RUN = {
    ("README.md", 3): "needs an installed package; docs/tutorials/kernel-package.md has one",
    ("docs/compat.md", 0): "tests/compile/compat/test_deepspeed.py trains in this way",
    ("docs/host-ops.md", 3): "needs ranks; tests/compile/ops/shm/test_process_group.py has some",
    ("docs/host-ops.md", 4): "needs ranks; tests/compile/ops/shm/test_process_group.py has some",
    ("docs/host-ops.md", 5): "needs ranks; tests/compile/ops/shm/test_group.py has some",
    ("docs/packages.md", 0): "a part of a package; tests/compile/packages loads such packages",
    ("docs/packages.md", 1): "needs an installed package; tests/compile/packages/test_get_kernel.py has some",
    ("docs/remote.md", 0): "needs builders and a remote: test_executors.py has them",
    ("docs/toolchains.md", 0): "needs a torch with CUDA; tests/compile/ops/test_device_builds.py builds it",
}
"""(page, number of the piece) -> the reason why it is not run."""
OWN_SOURCES = ("docs/errors.md", "docs/index.md", "docs/testing.md")
"""Pages that build sources of their own alone: they compile with a precompiled header. Others share opforge's ops."""


def pieces(page: str, language: str = "python") -> list[str]:
    """Returns the fenced code blocks of a language, in order, without excerpts of the examples' files."""
    blocks = re.findall(rf"^( *)```{language}\n(.*?)^ *```$", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    return [textwrap.dedent(block) for _, block in blocks if not block.lstrip().startswith("# examples/")]


def run(code: str, folder: Path, **environment: str) -> str:
    """Runs code as a script in `folder`, in another Python. Returns what it printed."""
    script = folder / "script.py"
    script.write_text(code)
    env = {"OPFORGE_CACHE_DIR": str(folder / "cache"), **environment}
    return child_processes.run_with_torch(code, env, timeout=250, cwd=folder, strict=True, path=str(script))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the C++ files of the pages, each named as its first line says."""
    for source in [piece for page in PAGES for piece in pieces(page, "cpp")]:
        name = re.match(r"// (\w+\.cpp)\n", source)
        assert name, "a C++ file of a page must begin with its name"
        (tmp_path / name[1]).write_text(source)
    return tmp_path


EXCERPTS = """
import importlib, os, re, sys
for text in excerpts:
    path = re.match(r"# examples/([^/]+)/(\\S+)\\.py\\n", text)
    sys.path.insert(0, os.path.join(root, "examples", path[1]))
    module = path[2].replace("/", ".").removesuffix(".__init__")
    names = {"__name__": module, "__package__": module if path[2].endswith("__init__") else module.rpartition(".")[0]}
    importlib.import_module(module)  # the excerpt's classes are declared in its file
    exec(text, names)
"""


def test_every_excerpt_of_an_example_runs(folder: Path) -> None:
    pages = [(ROOT / page).read_text() for page in PAGES]
    blocks = [text for page in pages for text in re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)]
    excerpts = [text for text in blocks if text.startswith("# examples/")]
    assert len(excerpts) > 4
    run(f"root, excerpts = {str(ROOT)!r}, {excerpts!r}\n" + EXCERPTS, folder)


@pytest.mark.parametrize("page", PAGES)
def test_every_piece_of_a_page_runs(page: str, folder: Path, shared_store: Path, stable_header: str) -> None:
    for package, file in [("my_overrides", "x.h"), ("their_package/csrc", "x.h")]:
        (folder / package).mkdir(parents=True)
        (folder / package / file).touch()
    code = ""
    for number, piece in enumerate(pieces(page)):
        if (page, number) not in NOT_RUN:
            piece = piece.replace('device="cuda"', 'device="cpu"')
            # aot_eager: inductor would take long to compile
            piece = piece.replace("fullgraph=True)", 'fullgraph=True, backend="aot_eager")')
            code += BEFORE.get((page, number), "") + piece + "\n"
    if code:
        fast = {"CXXFLAGS": "-O0", "OPFORGE_COMPILER_LAUNCHER": stable_header} if page in OWN_SOURCES else {}
        run(code, folder, OPFORGE_CACHE_DIR=str(shared_store), **fast)


def test_the_tables_name_pieces_that_exist() -> None:
    assert all(number < len(pieces(page)) for page, number in [*BEFORE, *NOT_RUN])


def test_the_op_of_the_readme_loads_and_can_be_traced(folder: Path, shared_store: Path) -> None:
    (code,) = [block for block in pieces("README.md") if "opforge.load(" in block]
    checks = """
x = torch.randn(9)
assert torch.equal(relu.relu(x), x.clamp(min=0))
assert torch.equal(torch.ops.my_ops.relu(x), x.clamp(min=0))
assert torch.equal(torch.compile(relu.relu, fullgraph=True, backend="eager")(x), x.clamp(min=0))
torch.library.opcheck(relu.relu, (x,))
print("checked")
"""
    assert "checked" in run(code + checks, folder, OPFORGE_CACHE_DIR=str(shared_store))


def test_the_choice_of_a_dtype_trains_on_each_device(folder: Path) -> None:
    code = "\n".join(pieces("docs/float16-or-bfloat16.md"))
    printed = run(f"code = {code!r}\n{DEVICE}", folder)
    lines = [line for line in printed.splitlines() if line.startswith("torch.")]
    assert lines == ["torch.bfloat16 False True", "torch.float16 True True", "torch.float32 False True"]


@pytest.mark.long("takes 5 s for what the tutorials do")
def test_the_declared_builder_builds_at_its_first_use_and_is_then_cached(folder: Path) -> None:
    (code,) = [block for block in pieces("README.md") if "class ReluBuilder" in block]
    assert run(code, folder) == "" and not (folder / "cache").exists()
    assert "built" in run(code + "\nprint(op().origin)\n", folder)
    assert "cache" in run(code + "\nprint(op().origin)\n", folder)


@pytest.mark.long("takes 5 s for what the tutorials do")
def test_a_prebuilt_op_loads_from_its_layer_without_a_compiler(folder: Path) -> None:
    (code,) = [block for block in pieces("README.md") if "class ReluBuilder" in block]
    (folder / "my_package").mkdir()
    (folder / "my_package" / "ops.py").write_text(code)
    (folder / "relu.cpp").rename(folder / "my_package" / "relu.cpp")
    command = [os.path.join(os.path.dirname(sys.executable), "build-ops"), "my_package.ops:ReluBuilder"]
    environment = {**os.environ, "PYTHONPATH": str(folder), "OPFORGE_CACHE_DIR": str(folder / "cache")}
    built = subprocess.run(
        [*command, "--cpu-level", "x86-64", "--out", "prebuilt"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0 and "warning" not in built.stderr, built.stderr
    load = "from my_package.ops import ReluBuilder\nprint(ReluBuilder().load().origin)\n"
    printed = run(
        load, folder, OPFORGE_CACHE_LAYERS="prebuilt", PATH="/nonexistent", OPFORGE_CACHE_DIR=str(folder / "other")
    )
    assert printed.strip() == str(folder / "prebuilt")
    assert not (folder / "other").exists()


ACMECC = """#!/bin/sh
# acmecc SOURCE -o OBJECT: `kernel NAME xN` becomes a function that multiplies by N.
[ "$1" = --version ] && { echo "acmecc 1.0"; exit 0; }
set -- "$1" "$3" $(cat "$1")
echo "extern \\"C\\" float $4(float x) { return ${5#x} * x; }" | g++ -x c++ -fPIC -c - -o "$2"
"""
CALLER = """
extern "C" float acme_kernel(float);
extern "C" __attribute__((visibility("default"))) float call(float x) { return acme_kernel(x); }
"""
ACME = """
import ctypes
import sys

class Scale(AcmeOpBuilder):
    name, sources, abi, folder = "scale", ["scale.cpp", "scale.acme"], "c", sys.path[0]
    signatures = {"call": (ctypes.c_float, [ctypes.c_float])}

op = Scale("acme").load()
print(op.origin, op.call(2.0))
"""


def test_a_toolchain_of_the_reader_builds_its_sources_and_notices_their_changes(folder: Path) -> None:
    (code,) = [piece for piece in pieces("docs/external.md") if "class Acme(" in piece]
    code = code.replace("my_package.acme:", "__main__:")
    (folder / "acmecc").write_text(ACMECC)
    (folder / "acmecc").chmod(0o755)
    (folder / "scale.cpp").write_text(CALLER)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}"}
    outputs = []
    for source in ("kernel acme_kernel x3", "kernel acme_kernel x3", "kernel acme_kernel x5"):
        (folder / "scale.acme").write_text(source)
        outputs.append(run(code + ACME, folder, **environment).strip())
    assert outputs == ["built 6.0", "cache 6.0", "built 10.0"]


DRIVER = "/dev/acme0"
"""The file by which the accelerator of docs/external.md is available."""


@pytest.mark.long("takes 5 s for what the tutorials do")
def test_the_accelerator_of_the_reader_passes_the_contract(folder: Path) -> None:
    (accelerator,) = [piece for piece in pieces("docs/external.md") if "class AcmeAccelerator(" in piece]
    (contract,) = [piece for piece in pieces("docs/external.md") if "(AcceleratorContract)" in piece]
    (folder / "driver").touch()
    (folder / "opforge_acme" / "builders").mkdir(parents=True)
    (folder / "opforge_acme" / "builders" / "__init__.py").write_text("BUILDERS = {}\n")
    assert accelerator.count(DRIVER) == 2 and contract.count("get_accelerator()") == 1
    contract = contract.replace("get_accelerator()", "AcmeAccelerator()")
    (folder / "test_acme.py").write_text(accelerator.replace(DRIVER, str(folder / "driver")) + contract)
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "test_acme.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0 and "SKIPPED" not in done.stdout, done.stdout
