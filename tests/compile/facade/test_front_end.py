"""What the compiler's front end refuses in a source on the facade: all lines, and who needs them."""

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from facade.compiling import cuda_command

from opforge.builders.facade.flags import INCLUDE
from opforge.builders.facade.front_end import refusals, standard_of
from opforge.builders.facade.obstacles import Kind, find_sources
from opforge.cli import group

TORCH = Path(torch.__file__).parent / "include"


def _refused(folder: Path, text: str) -> tuple[list[tuple[int, str]], list[str]]:
    path = folder / "op.cpp"
    path.write_text(text)
    with tempfile.TemporaryDirectory() as work:
        said = refusals(["g++"], find_sources([path]), TORCH, Path(work))
    assert all(entry.path == path and entry.kind is Kind.LATER for entry in said.obstacles)
    return [(entry.line, entry.construct) for entry in said.obstacles], said.not_judged


def test_every_line_that_names_what_the_facade_lacks_is_found(tmp_path: Path) -> None:
    text = """#include <torch/extension.h>
#include <ATen/native/Pool.h>
auto f(at::Tensor x) { auto q = x.nosuch(); return q.foo(); }
auto g(at::Tensor x) { return x.renorm_(2, 0, 1); }
auto k(at::Tensor x) { auto g = at::frobnicate(x); AT_FROB(x); return g; }
auto z(at::Tensor x) { return x.sum() * undeclared; }
"""
    assert _refused(tmp_path, text) == ([(3, "nosuch"), (4, "renorm_"), (5, "AT_FROB"), (5, "frobnicate")], [])


OF_CUDA = """#include <torch/extension.h>
#include <ATen/cuda/CUDABlas.h>
#include <thread>
#include "own.cuh"
auto f(at::Tensor x) { return x.nosuch(); }
auto g(at::Tensor x) { return x.renorm_(2, 0, 1); }
auto k(at::Tensor x) { return at::frobnicate(x); }
void t(std::thread* t) {}
PYBIND11_MODULE(op, m) { m.def("t", &t); }
"""


@pytest.mark.skipif(not shutil.which("nvcc"), reason="there is no nvcc on PATH")
def test_every_line_of_a_source_in_cuda_is_found_too(tmp_path: Path) -> None:
    (tmp_path / "op.cu").write_text(OF_CUDA)
    (tmp_path / "own.cuh").write_text("__global__ void own(int* p) { atomicAdd(p, 1); }\n")
    with tempfile.TemporaryDirectory() as work:
        nvcc = shutil.which("nvcc") or ""
        said = refusals(["g++"], find_sources([tmp_path / "op.cu"]), TORCH, Path(work), nvcc=nvcc)
    assert [(entry.path.name, entry.line, entry.construct) for entry in said.obstacles] == [
        ("op.cu", 5, "nosuch"),
        ("op.cu", 7, "frobnicate"),
    ], "its front end instantiates nothing after these"
    assert (said.not_judged, set(said.included)) == ([], {"ATen/cuda/CUDABlas.h"})


@pytest.mark.skipif(not shutil.which("nvcc"), reason="there is no nvcc on PATH")
@pytest.mark.parametrize(("header", "has_it"), [("CUDAApplyUtils.cuh", False), ("detail/KernelUtils.h", True)])
def test_a_source_in_cuda_may_have_macros_of_names_that_it_asks_for_nowhere(
    tmp_path: Path, header: str, has_it: bool
) -> None:
    (tmp_path / "op.cu").write_text(f"#include <ATen/ATen.h>\n#include <ATen/cuda/{header}>\n")
    words = ["-E" if word == "-c" else word for word in cuda_command("op", tmp_path / "op.cu", tmp_path / "op.ii")]
    subprocess.run(words, check=True)
    assert bool(re.search(r"\bCUDA_NUM_THREADS\b", (tmp_path / "op.ii").read_text())) == has_it


SAID_BY_NVCC = """\
{headers}/methods.inc(424): error: static assertion failed with "renorm_ is not on torch's stable ABI: it passes \
no const Scalar&."
      template <int Used = 0> Tensor& renorm_(int64_t dim) {{ static_assert(Used < 0, "renorm_"); }}
                                                                 ^
          detected during instantiation of "at::Tensor &at::Tensor::renorm_(int64_t) [with Used=0]" at line 6 of \
{source}

{headers}/instances.h(331): error: static assertion failed with "this type has no conversion from and to Python in \
the facade: build this source with torch's own headers (opforge: abi="torch")."
      static_assert(is_own_class<T>,
      ^
          detected during:
            instantiation of class "Convert<T> [with T=std::thread]" at line 369
            instantiation of "module_ &module_::def(const char *, F &&)" at line 9 of {source}

{source}(7): error #20: identifier "c10_frob" is undefined
      c10_frob(x);
      ^

{source}(8): error: namespace "at" has no member "nosuch"

4 errors detected in the compilation of "{source}".
"""


def test_what_needed_a_line_of_the_facade_is_read_from_nvccs_output(tmp_path: Path) -> None:
    source = tmp_path / "op.cu"
    source.write_text("#include <torch/extension.h>\n")
    nvcc = tmp_path / "nvcc"
    text = SAID_BY_NVCC.format(headers=INCLUDE / "opforge" / "facade", source=source)
    nvcc.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{text}END\nexit 1\n")
    nvcc.chmod(0o755)
    with tempfile.TemporaryDirectory() as work:
        said = refusals(["g++"], find_sources([source]), TORCH, Path(work), nvcc=str(nvcc))
    assert [(entry.line, entry.construct) for entry in said.obstacles] == [
        (6, "renorm_"),
        (8, "nosuch"),
        (9, "a parameter or a result"),
    ]
    assert said.not_judged == []


def test_every_function_and_op_with_a_type_that_has_no_conversion_is_found(tmp_path: Path) -> None:
    text = """#include <torch/extension.h>
#include <variant>
struct Own {};
PYBIND11_MODULE(op, m) {
    m.def("known", [](std::variant<int, double> v) { return v.index(); });
    m.def("number", [](int* p) { return *p; });
    m.def("tensor", [](at::Tensor* p) { return p->numel(); });
    m.def("list", [](const std::vector<int>* p) { return p->size(); });
    m.def("wide", [](std::wstring s) { return s.size(); });
    m.def("any", [](void* p) { return p != nullptr; });
    m.def("own", [](Own* p, const Own& o, std::shared_ptr<Own> s) { return Own(); });
    m.def("text", [](const char* p, py::handle h) { return p; });
    m.def("result", []() -> int* { return nullptr; });
}
at::Tensor scaled(at::Tensor x, const at::Scalar& s) { return x; }
TORCH_LIBRARY(field_ops, m) { m.def("scaled", &scaled); }
void* of(py::capsule c) { return c.get_pointer(); }  // and no header of numpy's is needed
long of(py::buffer b) { return b.request().size; }
"""
    found, not_judged = _refused(tmp_path, text)
    assert ([*dict.fromkeys(line for line, _ in found)], not_judged) == ([9, 10, 16], [])
    assert {construct for line, construct in found if line == 16} == {"a parameter or a result"}


OWN, OF_TORCH = "the compiler rejects this", "the facade does not have this"
MISTAKES = {
    "own": (OWN, {"int f() { return nothing; }": "nothing"}),
    "of the compiler's library": (OWN, {"auto t = std::jthread();": "jthread"}),
    "torch's": (
        OF_TORCH,
        {"at::Nothing n;": "Nothing", "template <char C> struct Own {}; at::Tensor b = Own<'b'>();": "Own<'b'>"},
    ),
}


@pytest.mark.parametrize(("reason", "lines"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_the_facades_only_where_it_names_something_of_torch(tmp_path, reason, lines):
    path = tmp_path / "op.cpp"
    path.write_text("\n".join(["#include <torch/extension.h>", *lines]))
    with tempfile.TemporaryDirectory() as work:
        found = refusals(["g++"], find_sources([path]), TORCH, Path(work)).obstacles
    assert [(entry.line, entry.construct) for entry in found] == list(enumerate(lines.values(), 2))
    assert {entry.reason.partition(": ")[0] for entry in found} == {reason}


def test_a_header_that_the_compiler_lacks_is_not_looked_for_in_a_folder(tmp_path: Path) -> None:
    found, not_judged = _refused(tmp_path, "#include <torch/extension.h>\n#include <nothing_yet>\n")
    assert (found, not_judged) == ([], [f"{tmp_path}/op.cpp: the compiler does not have the header <nothing_yet>"])


def test_a_macro_can_be_defined(tmp_path: Path) -> None:
    path = tmp_path / "op.cpp"
    path.write_text("#if VALUE == 3\n#include <torch/extension.h>\n#elif VALUE != 2\nint f = nothing;\n#endif\n")
    for arguments, code in ((["-DVALUE=2"], 0), (["-D", "VALUE"], 1)):
        assert CliRunner().invoke(group, ["why-not", *arguments, str(path)]).exit_code == code


def test_a_folder_that_was_found_hides_no_header_of_the_standard_library(tmp_path: Path) -> None:
    for name, text in (
        ("inner/math.h", "#error hidden\n"),
        ("inner/own.h", "inline int own() { return 1; }\n"),
        ("csrc/op.cpp", "#include <math.h>\n#include <own.h>\n#include <torch/extension.h>\nint f = own();\n"),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    done = CliRunner().invoke(group, ["why-not", str(tmp_path)])
    assert done.exit_code == 0, done.output


def test_a_header_of_another_project_leaves_the_source_without_a_judgement(tmp_path: Path) -> None:
    found, not_judged = _refused(tmp_path, "#include <torch/extension.h>\n#include <other/project.h>\n")
    expected = f"{tmp_path}/op.cpp: other/project.h is not found: its folder is named by -I FOLDER"
    assert found == [] and not_judged == [expected]


def test_a_header_in_a_part_that_is_not_compiled_is_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "op.cpp"
    path.write_text("#include <ATen/native/Pool.h>\n#ifdef OTHER\n#include <ATen/native/Resize.h>\n#endif\n")
    with tempfile.TemporaryDirectory() as work:
        assert refusals(["g++"], find_sources([path]), TORCH, Path(work)).included == {"ATen/native/Pool.h"}
    done = CliRunner().invoke(group, ["why-not", str(path)])
    assert "op.cpp:1: #include <ATen/native/Pool.h>: never" in done.output and "Resize.h" not in done.output


def test_a_method_is_an_obstacle_only_in_a_file_that_the_compiler_rejects(tmp_path: Path) -> None:
    text = "#include <ATen/native/Pool.h>\nstruct Tile { void grad_fn(); };\nvoid f(TYPE tile) { tile.grad_fn(); }\n"
    for kind, is_listed in (("Tile", False), ("at::Tensor", True)):
        (tmp_path / "op.cpp").write_text(text.replace("TYPE", kind))
        for arguments, expected in (([], is_listed), (["--no-compile"], True)):
            done = CliRunner().invoke(group, ["why-not", *arguments, str(tmp_path / "op.cpp")])
            assert ("op.cpp:3: grad_fn: never" in done.output) == expected, done.output


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("setup.py", 'extra_compile_args={"cxx": ["-O3", "-std=c++20"]}', "c++20"),
        ("setup.py", 'args = ["-std=gnu++2a", "-std=c++14"]', "gnu++2a"),
        ("setup.py", 'args = ["-std=c++14"]', "c++17"),
        ("setup.py", 'args = ["-std=c++98"]', "c++17"),
        ("CMakeLists.txt", "set(CMAKE_CXX_STANDARD 20)", "c++20"),
        ("pyproject.toml", "", "c++17"),
    ],
)
def test_the_standard_is_the_newest_that_a_projects_build_files_ask_for(
    tmp_path: Path, file: str, text: str, expected: str
) -> None:
    (tmp_path / file).write_text(text)
    assert standard_of(tmp_path) == expected
