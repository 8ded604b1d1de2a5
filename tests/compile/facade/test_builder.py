"""abi="torch-facade": an unmodified source of torch/extension.h through the whole life of an op."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time

import pytest
import torch
from support import child_processes, sample_ops, text_files
from support.owners import ME
from support.processes import forked_python
from support.text_files import write

import opforge
from opforge.builders import jit, python_module
from opforge.builders.declaration.description import description_key
from opforge.builders.run import object_reuse
from opforge.cache import layer
from opforge.errors import BuilderError, CompileError
from opforge.fast_path import library
from opforge.foundation.remembered_values import RACY_NS
from opforge.packages.pack.run import Options, pack
from opforge.packages.sources import reading

FLAGS = {"abi": "torch-facade", "extra_cflags": ["-O0"]}
BLOCKS = """\
#include <torch/extension.h>
#include <ATen/ATen.h>
#include <torch/library.h>
at::Tensor times(const at::Tensor& x) { return x * FACTOR; }
TORCH_LIBRARY(NAME, m) { m.def("NAME::times(Tensor x) -> Tensor"); }
TORCH_LIBRARY_IMPL(NAME, CPU, m) { m.impl("NAME::times", &times); }
TORCH_LIBRARY_IMPL(NAME_others, CPU, m) { m.impl("times", &times); }
static auto also = torch::RegisterOperators("NAME_also::also", &times);
"""


@pytest.fixture
def header_in_store(builds_are_shared, monkeypatch):
    """The first build leaves its precompiled header, as that of an edit does, to those in a folder with the same names.

    With it a unit compiles in a fourth of the time.
    """
    monkeypatch.setattr(object_reuse, "is_edited", lambda _job, _step: True)


@pytest.fixture
def module_source(header_in_store, tmp_path_factory):
    """The path of a source with a module. All tests of it share one build."""
    folder = tmp_path_factory.getbasetemp() / "facade-module"
    folder.mkdir(exist_ok=True)
    source = folder / "op.cpp"
    if not source.exists():
        source.write_text(sample_ops.FACADE_SOURCE)
        write(folder, "entry.cpp", "")
    return str(source)


def test_a_module_behaves_as_pybinds_and_its_entry_is_for_every_torch_and_python(module_source):
    op = opforge.load("facade_op", [module_source], **FLAGS)
    assert op.__name__ == "facade_op" and op.twice(x=torch.ones(2)).tolist() == [2, 2]
    assert op.twice.__doc__ == "twice(x: torch.Tensor) -> torch.Tensor\n\nTwice the tensor.\n"
    with pytest.raises(RuntimeError, match=r"^expected one dimension"):
        op.twice(torch.ones(1, 1))
    with pytest.raises(TypeError, match="incompatible function arguments"):
        op.twice(3)
    folder = os.path.dirname(op.__file__)
    with open(f"{folder}/record.json", encoding="utf-8") as file:
        record = json.load(file)
    assert (record["abi"], record["requires"], record["torch_target"]) == ("torch-facade", {}, "2.10")
    assert record["python_module"] and "libtorch_python.so" not in record["needs"]
    # What is newer than torch 2.10 is used where it is: a library loads without it.
    assert "torch_call_dispatcher" in record["shims"]
    assert "torch_exception_get_what_without_backtrace" not in record["shims"]
    # The facade's headers are inputs of a build here, and in nothing that is shipped.
    assert {file[0] for file in record["inputs"]["files"]} == {"own"}
    with open(f"{folder}/build.json", encoding="utf-8") as file:
        roots = {file[0] for file in json.load(file)["inputs"]["files"]}
    assert roots == {"own", "opforge_facade", "torch", "system"}


HIT = """
import os, sys, torch, opforge
op = opforge.load("facade_op", [os.environ["SOURCE"]], abi="torch-facade", extra_cflags=["-O0"])
print(op.twice(torch.ones(1)).item(), "opforge.builders.run.planned_build" in sys.modules)
"""


def test_another_process_loads_it_without_a_compiler(module_source):
    opforge.load("facade_op", [module_source], **FLAGS)
    time.sleep(RACY_NS / 1e9 + 0.1)
    env = child_processes.environment(SOURCE=module_source)
    assert {child_processes.run_with_torch(HIT, env=env) for _ in range(2)} == {"2.0 False\n"}


def test_a_layer_has_it_for_a_machine_without_a_compiler(module_source, tmp_path):
    entry = opforge.load("facade_op", [module_source], **FLAGS).__file__
    (builder,) = {builder for ((_, builder), *_) in jit.calls.values() if builder.name == "facade_op"}
    layer.add(str(tmp_path / "layer"), builder.build(), description_key(builder.spec()), ME)
    assert entry == builder.build().library
    env = child_processes.environment(
        SOURCE=module_source,
        OPFORGE_CACHE_DIR=str(tmp_path / "store"),
        OPFORGE_CACHE_LAYERS=str(tmp_path / "layer"),
        OPFORGE_PREBUILT="require",
        CXX="/nonexistent/g++",
    )
    assert child_processes.run_with_torch(HIT, env=env) == "2.0 False\n"


def test_what_a_module_defines_has_the_name_of_the_op_and_not_of_its_file(module_source):
    op = opforge.load("facade_op", [module_source], **FLAGS)
    key = os.path.basename(op.__file__).partition(".")[0]
    assert (op.__name__, op.twice.__module__) == ("facade_op", "facade_op") and key != "facade_op"
    assert not [name for name in sys.modules if key in name]
    assert op.__loader__ is op.__spec__.loader and op.__file__ == op.__spec__.origin


def test_the_library_itself_makes_its_module_under_its_own_name_only(module_source):
    op = opforge.load("facade_op", [module_source], **FLAGS)
    module = python_module.made_by_library("facade_op", op.__file__)
    assert module is not op and module.twice(torch.ones(1)).item() == 2
    assert python_module.made_by_library("another", op.__file__) is None  # its import names the missing PyInit_another


ENTRY = """\
#include <Python.h>
extern "C" {
PyObject* PyInit_NAME(void) {
    static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "NAME", "of C functions", -1, NULL};
    return PyModule_Create(&module);
}
}
"""


def test_an_edited_source_gets_namespaces_of_its_own(header_in_store, tmp_path):
    """The module is one of Python's own functions, as in PyTorch's tutorial on custom ops, found by its entry point."""
    name = sample_ops.unique_name("facade")
    (tmp_path / "own").mkdir()
    entry, source = write(tmp_path / "own", "entry.cpp", ENTRY.replace("NAME", name)), tmp_path / "own" / "op.cpp"
    texts = ("2", "3", "/* the library is the same, byte for byte */ 3")
    ops, others = [], torch.library.Library(f"{name}_others", "DEF")
    others.define("times(Tensor x) -> Tensor")
    for factor in texts:
        source.write_text(BLOCKS.replace("FACTOR", factor).replace("NAME", name))
        ops.append(opforge.load(name, [entry, source], **FLAGS))
    assert [op.times(torch.ones(1)).item() for op in ops] == [2, 3, 3]
    assert [op.also(torch.ones(1)).item() for op in ops] == [2, 3, 3]
    assert getattr(torch.ops, name).times(torch.ones(1)).item() == 2
    assert python_module.load(name, ops[0].path).__doc__ == "of C functions"

    # the kernels for ops of others are those of the version that was loaded last, and of no known name
    for version in (2, 0):
        source.write_text(BLOCKS.replace("FACTOR", texts[version]).replace("NAME", name))
        assert opforge.load(name, [entry, source], **FLAGS) is ops[version]
        assert getattr(torch.ops, f"{name}_others").times(torch.ones(1)).item() == (2, 3, 3)[version]
        named = {key for key, names in library.defined.items() if "::" in names}
        assert named & {op.__entry__.key for op in ops} == {ops[version].__entry__.key}
    others._destroy()

    # in another process the first namespace is another library's
    source.write_text(BLOCKS.replace("FACTOR", "2").replace("NAME", name))
    env = child_processes.environment(NAME=name, FOLDER=str(source.parent))
    text, is_registered = child_processes.run_with_torch(CONFLICT, env=env).splitlines()
    assert text.startswith("OpforgeError") and "TORCH_LIBRARY" in text and is_registered == "False"


CONFLICT = """
import os, torch, opforge
name, folder = os.environ["NAME"], os.environ["FOLDER"]
library = torch.library.Library(name, "DEF")
library.define("taken() -> ()")
try:
    opforge.load(name, [f"{folder}/entry.cpp", f"{folder}/op.cpp"], abi="torch-facade", extra_cflags=["-O0"])
except opforge.errors.OpforgeError as error:
    print("OpforgeError", str(error).replace("\\n", " "))
also = f"{name}_also"
print(hasattr(torch.ops, also) and hasattr(getattr(torch.ops, also), "also"))
"""


def test_functions_of_load_inline_are_bound():
    text = "torch::Tensor thrice(torch::Tensor x) { return x + x + x; }"
    op = opforge.load_inline("facade_inline", text, functions="thrice", **FLAGS)
    assert op.thrice(torch.ones(1)).item() == 3


def test_a_line_that_the_facade_does_not_have_is_named_with_the_command_that_lists_all(tmp_path):
    missing = "ATen/native/TensorIterator.h"
    source = str(text_files.write(tmp_path, "bad.cpp", f"#include <torch/extension.h>\n#include <{missing}>\n"))
    with pytest.raises(CompileError) as error:
        opforge.load("facade_bad", [source], **FLAGS)
    first, *rest = str(error.value).splitlines()
    assert first.startswith(f"facade_bad: compile bad.cpp failed: {source}:2:") and f"{missing}: No such" in first
    hints = [line for line in rest if line.startswith("hint: ")]
    assert hints == [
        f"hint: if torch's own headers accept the source: `opforge why-not {source}` lists every line that the facade"
        ' of torch\'s headers does not have; abi="torch", or OPFORGE_CPP_EXTENSION=1 for a setup script, compiles with'
        " those, for one torch and one Python"
    ]


def test_a_header_that_is_not_torchs_has_the_usual_hint(tmp_path):
    source = str(text_files.write(tmp_path, "bad.cpp", '#include "mine.h"\n'))
    with pytest.raises(CompileError, match=r"hint: add the folder that holds mine\.h to include_dirs"):
        opforge.load("facade_bad", [source], **FLAGS)


def test_a_source_without_a_module_or_an_op_is_an_error(tmp_path):
    source = str(text_files.write(tmp_path, "none.cpp", "#include <cstdint>\n"))
    with pytest.raises(CompileError, match="no source has a PYBIND11_MODULE or registers an op"):
        opforge.load("facade_none", [source], **FLAGS)


def test_the_facade_has_nothing_for_other_devices_than_cuda(tmp_path):
    builder = sample_ops.builder_class(tmp_path, "op", abi="torch-facade", devices=["xpu"])
    with pytest.raises(BuilderError, match=r"abi='torch-facade' for xpu\. It has headers for the CPU and CUDA"):
        builder("xpu").spec()


def test_no_source_chooses_the_facade_by_itself(tmp_path):
    from opforge.builders.jit_builders import detect_abi

    assert detect_abi(sample_ops.FACADE_SOURCE) == detect_abi(BLOCKS) == "torch"


def test_compile_commands_name_folders_that_are_there(module_source, tmp_path, monkeypatch):
    text = "from opforge import OpBuilder\nclass B(OpBuilder):\n    name, abi = 'b', 'torch-facade'\n"
    write(tmp_path, "facadeops.py", f"{text}    sources = [{module_source!r}]\n")
    monkeypatch.chdir(tmp_path)
    done = child_processes.run_command("compile-commands", "facadeops:B", "--output", "-")
    (command,) = json.loads(done.stdout)
    folders = [after for before, after in itertools.pairwise(command["arguments"]) if before == "-isystem"]
    assert os.path.join(os.path.dirname(torch.__file__), "include") in folders
    assert all(map(os.path.isdir, folders)), folders


TOML = 'name = "acme/facade-op"\nversion = "1"\nlicense = "MIT"\n[op]\nsources = ["op.cpp"]\nabi = "torch-facade"\n'


@pytest.mark.skipif(sys.platform != "linux", reason="packages are made on Linux")
def test_a_package_of_a_module_is_imported_without_opforge(tmp_path, monkeypatch):
    write(tmp_path, "kernel.toml", f'{TOML}extra-compile-args = ["-O0"]\n')
    write(tmp_path, "op.cpp", sample_ops.FACADE_SOURCE)
    project = reading.read(str(tmp_path))
    pack(project, str(tmp_path / "out"), Options(tried=False))
    (variant,) = (tmp_path / "out" / "build").glob("torch-stable-abi210-cpu-*")
    code = f"import sys; sys.modules['opforge'] = None; sys.path.insert(0, {str(variant.parent)!r})\n"
    code += f"import importlib, torch; op = importlib.import_module({variant.name!r}); print(op.twice(torch.ones(1)))\n"
    # An op that the package's Python defines itself gets a namespace that torch accepts.
    code += "torch.library.define(op._ops.add_op_namespace_prefix('own'), '(Tensor x) -> Tensor')"
    done = subprocess.run([forked_python.python(), "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.returncode) == ("tensor([2.])\n", 0), done.stderr
    monkeypatch.setenv("OPFORGE_KERNELS", f"acme/facade-op={tmp_path / 'out'}")
    assert opforge.get_kernel("acme/facade-op").twice(torch.ones(1)).item() == 2


OWN_FAKE = """
import torch
from ._ops import add_op_namespace_prefix, ops
@torch.library.register_fake(add_op_namespace_prefix("times"))
def _shape(x):
    return torch.empty_like(x)
def times(x):
    return ops.times(x)
"""
IN_ANOTHER_PROCESS = """
import importlib, sys, torch
sys.modules["opforge"] = None
sys.path.insert(0, sys.argv[1])
op = importlib.import_module(sys.argv[2])
compiled = torch.compile(op.times, backend="eager", fullgraph=True)
namespace = op._ops.add_op_namespace_prefix("").removesuffix("::")
also = getattr(torch.ops, namespace.replace("packed", "packed_also"))
print(op.times(torch.ones(1)).item(), compiled(torch.ones(2)).tolist(), also.also(torch.ones(1)).item())
print(hasattr(torch.ops.packed, "times"))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="packages are made on Linux")
def test_a_package_of_ops_is_loaded_with_and_without_opforge(tmp_path, monkeypatch):
    write(tmp_path, "kernel.toml", TOML.replace("[op]", 'python = "packed"\n[op]') + 'extra-compile-args = ["-O0"]\n')
    write(tmp_path, "op.cpp", BLOCKS.replace("NAME", "packed").replace("FACTOR", "3"))
    write(tmp_path, "packed/__init__.py", OWN_FAKE)
    pack(reading.read(str(tmp_path)), str(tmp_path / "out"), Options(tried=False))
    (variant,) = (tmp_path / "out" / "build").glob("torch-stable-abi210-cpu-*")
    command = [forked_python.python(), "-c", IN_ANOTHER_PROCESS, str(variant.parent), variant.name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout == "3.0 [3.0, 3.0] 3.0\nFalse\n", done.stderr
    monkeypatch.setenv("OPFORGE_KERNELS", f"acme/facade-op={tmp_path / 'out'}")
    assert opforge.get_kernel("acme/facade-op").times(torch.ones(1)).item() == 3


BRANCHES = """\
#include <cstdint>
#include <torch/extension.h>
#include "answers.h"
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 6)  // TORCH_VERSION_MINOR >= 99
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("answer", [] { return ANSWER; }); }
#endif
"""


def test_a_branch_is_compiled_if_every_torch_takes_it_in_the_same_way_and_is_an_error_otherwise(tmp_path):
    name = sample_ops.unique_name("branches")
    source, header = tmp_path / f"{name}.cpp", tmp_path / "answers.h"
    source.write_text(BRANCHES)
    header.write_text("#if TORCH_VERSION_MINOR < 2\n#define ANSWER 1\n#else\n#define ANSWER 2\n#endif\n")
    assert opforge.load(name, [str(source)], **FLAGS).answer() == 2
    header.write_text("#define ANSWER 1\n\n#if TORCH_VERSION_MINOR >= 12\n#undef ANSWER\n#define ANSWER 2\n#endif\n")
    with pytest.raises(CompileError) as raised:
        opforge.load(name, [str(source)], **FLAGS)
    first, *rest = str(raised.value).splitlines()
    assert first == (
        f"{name}: {header}:3: error: TORCH_VERSION_MINOR decides here between versions of torch that this one library"
        " serves: expected a condition with one answer from torch 2.10 on"
    )
    assert ">    3 | #if TORCH_VERSION_MINOR >= 12" in rest
    assert rest[-1].startswith(
        f"hint: if torch's own headers accept the source: `opforge why-not {header}` lists every"
    )
