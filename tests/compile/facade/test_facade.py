"""A source that includes torch/extension.h, on the facade: its functions, its errors, and what its library needs."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from facade.compiling import command, compile_library
from support import child_processes
from support.processes import forked_python

from opforge.builders.facade import flags

SUPPORT = Path(__file__).parents[2] / "support" / "facade"
RECORDED_WITH = "2.13"
"""The torch whose headers gave the recorded outcomes: the texts of others' errors and signatures may differ."""
TORCHS_OWN_ERRORS = ("complex(tensor([1., 1.]))", "complex({1})")
"""torch's conversion of complex numbers leaves its Python error set, and the message then lacks the arguments."""


def _errors(folder: Path, text: str) -> list[str]:
    """Returns the lines of the compiler's errors for a source."""
    (folder / "op.cpp").write_text(f"#include <torch/extension.h>\n{text}\n")
    parts = command("facade", "op", [folder / "op.cpp"], folder / "op.so")
    parts = [part for part in parts if part not in ("-shared", "-ltorch_cpu")]
    ended = subprocess.run(
        [*parts, "-fsyntax-only"], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"}
    )
    assert ended.returncode != 0
    return [line.replace('\\"', '"') for line in ended.stderr.splitlines() if "error: " in line]


def _plain(outcome: object) -> str:
    """Returns an outcome's text without the folder that the source was compiled in."""
    return re.sub(r'at ."[^"]*module_source.cpp', "at module_source.cpp", json.dumps(outcome))


def test_functions_of_a_module_give_what_pybind11s_give(tmp_path: Path) -> None:
    library = tmp_path / "facade_cases.so"
    compile_library("facade", "facade_cases", [SUPPORT / "module_source.cpp"], library, ["-O0"])
    script = Path(__file__).parents[2] / "facade"
    command = [forked_python.python(), str(script / "__main__.py"), "record-child", str(library)]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-2000:]
    found = json.loads(ended.stdout)
    recorded = json.loads((SUPPORT / "module_outcomes.json").read_text())
    assert len(recorded) > 900
    for name in TORCHS_OWN_ERRORS:
        assert "<repr raised Error>" in recorded.pop(name)[2] and "<repr" not in found.pop(name)[2]
    if not torch.__version__.startswith(RECORDED_WITH):
        found, recorded = ({name: [outcome[0]] for name, outcome in part.items()} for part in (found, recorded))
    assert {name: outcome for name, outcome in found.items() if _plain(outcome) != _plain(recorded.get(name))} == {}
    assert found.keys() == recorded.keys()


def test_libraries_compute_with_autograd_threads_and_ops_and_share_nothing(tmp_path: Path) -> None:
    for name, parts in (("one", []), ("other", ["-DFACADE_TEST_OTHER"])):
        options = ["-O0", f"-DFACADE_TEST_NAMESPACE=facade_{name}", *parts]
        compile_library("facade", name, [SUPPORT / "semantics_source.cpp"], tmp_path / f"{name}.so", options)
    ended = subprocess.run(
        [forked_python.python(), str(SUPPORT / "semantics.py"), str(tmp_path)], capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    exported = subprocess.run(
        ["nm", "-DC", "--defined-only", str(tmp_path / "one.so")], capture_output=True, text=True
    ).stdout
    names = {line.split(None, 2)[2] for line in exported.splitlines()}
    assert {"PyInit_one", "opforge_facade_module"} <= names
    assert not [name for name in names if "opforge_facade::" in name or name.startswith(("at::", "c10::", "torch::"))]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a library that several tests look at or use."""
    folder = tmp_path_factory.mktemp("plain")
    (folder / "op.cpp").write_text("""#include <torch/extension.h>
at::Tensor f(at::Tensor x) { auto r = x.sum() + 1; return r; }
at::Tensor seven(at::Tensor x) { auto r = x.clone(); r.data_ptr<float>()[0] = 7; return r; }
at::Tensor put(const at::Tensor& x, std::optional<at::Tensor> out, std::vector<at::Tensor> more) {
    more[0].copy_(x);
    return out.value().copy_(x * 3);
}
at::Tensor calls(const at::Tensor& x, const at::Tensor& y) { return x.mul(y).add(y); }
static auto registry = torch::RegisterOperators("facade_put::put", &put);
TORCH_LIBRARY_FRAGMENT(facade_put, m) { m.def("calls", &calls); }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("f", &f); m.def("seven", &seven); }
""")
    compile_library("facade", "op", [folder / "op.cpp"], folder / "op.so", ["-O0"])
    return folder / "op.so"


def test_a_library_needs_no_symbol_that_is_newer_than_the_oldest_torch(plain: Path) -> None:
    listed = subprocess.run(["nm", "-D", "--undefined-only", str(plain)], capture_output=True, text=True).stdout
    needed = {line.split()[-1] for line in listed.splitlines() if line.split()[0] == "U"}
    assert {name for name in needed if name.startswith(("Py", "torch_exception"))} == set()
    assert not [name for name in needed if name.startswith(("_ZN2at", "_ZN3c10", "_ZN5torch", "_ZNK2at"))]
    needs = subprocess.run(["readelf", "-d", str(plain)], capture_output=True, text=True).stdout
    assert "libtorch_cpu.so" in needs and "libtorch_python" not in needs and "libpython" not in needs


def test_what_torch_compile_makes_of_functions_and_of_an_op_without_a_schema(plain: Path) -> None:
    """A function breaks the graph; an op is to torch what torch's own headers make it."""
    code = """import importlib.util, os, warnings, torch
warnings.simplefilter("ignore")
spec = importlib.util.spec_from_file_location("op", os.environ["LIBRARY"])
op = importlib.util.module_from_spec(spec); spec.loader.exec_module(op)
print(torch.compile(lambda x: op.seven(x + 1) * 2, backend="eager")(torch.zeros(2)).tolist())
calls = torch.ops.facade_put.calls
@torch.jit.script
def use(x: torch.Tensor):
    out, more = torch.zeros_like(x), torch.zeros_like(x)
    torch.ops.facade_put.put(x, out, [more])  # its result is not used
    return out, more
@torch.jit.script
def alias(x: torch.Tensor):
    out = torch.zeros_like(x)
    torch.ops.facade_put.put(x, out, [torch.zeros_like(x)]).add_(1)  # its result may be a tensor that was given
    return out
print([part.tolist() for part in use(torch.ones(2))], alias(torch.ones(2)).tolist())
print(calls.default._schema)
x = torch.ones(2, 3)
print(torch.vmap(calls)(x, x).tolist() == (x * 2).tolist())
print(torch.func.functionalize(calls)(x, x).tolist() == (x * 2).tolist())
print(set(torch.library.opcheck(calls.default, (x.clone().requires_grad_(), x)).values()))
module = torch.nn.Module()
module.forward = lambda a: calls(a, a)
print([str(n.target) for n in torch.export.export(module, (x,)).graph.nodes if n.op == "call_function"])
"""
    file = plain.with_name("use.py")  # what is scripted is read from a file
    file.write_text(code)
    env = child_processes.environment(LIBRARY=str(plain))
    assert child_processes.run_with_torch(code, env=env, path=str(file)).splitlines() == [
        "[14.0, 2.0]",
        "[[3.0, 3.0], [1.0, 1.0]] [4.0, 4.0]",
        "facade_put::calls(Tensor _0, Tensor _1) -> Tensor _0",
        "True",
        "True",
        "{'SUCCESS'}",
        "['facade_put.calls.default']",
    ]


REFUSED = {
    "auto f(at::Tensor x) { return x.renorm_(2, 0, 1); }": (
        "renorm_ is not on torch's stable ABI: it passes no const Scalar&"
    ),
    "auto g(at::Tensor x) { return torch::histc(x, 5); }": (
        "histc is not on torch's stable ABI: it passes no const Scalar&"
    ),
    "namespace pybind11::detail { template <> struct type_caster<std::vector<char>> { "
    'PYBIND11_TYPE_CASTER(std::vector<char>, const_name("list")); bool load(handle, bool) { return false; } }; }': (
        "uses a source's type_caster for a type of the source's own alone"
    ),
    'PYBIND11_MODULE(three, m) { m.def("f", [](std::valarray<int>) {}); }': (
        "no conversion from and to Python in the facade"
    ),
    'TORCH_LIBRARY(ns, m) { m.def("f", [](std::map<int, int>) {}); }': "cannot be an op's on torch's stable ABI",
}
UNKNOWN = """#ifdef TORCH_VERSION
int y;
#endif
void k() { at::DispatchKeySet keys; }"""


def test_what_is_not_supported_is_an_error_that_says_why(tmp_path: Path) -> None:
    errors = _errors(tmp_path, "\n".join([*REFUSED, UNKNOWN]))
    for text, expected in REFUSED.items():
        said = [line for line in errors if expected in line]
        assert said and all('with torch\'s own headers (opforge: abi="torch")' in line for line in said), (text, errors)
    for expected in (
        'attempt to use poisoned "TORCH_VERSION"',
        "'DispatchKeySet' is not a member of 'at'",
    ):
        assert any(expected in line for line in errors), errors


def test_a_header_that_is_not_covered_is_one_clear_error(tmp_path: Path) -> None:
    (error,) = _errors(tmp_path, "#include <ATen/native/TensorIterator.h>")
    assert "ATen/native/TensorIterator.h: No such file or directory" in error


EARLY = """#include <torch/extension.h>
#include <cstring>
static bool is(const char* name) { return !std::strcmp(std::getenv("FACADE_EARLY"), name); }
using Registered = torch::RegisterOperators;
at::Tensor f(at::Tensor x, double n) { return x * n; }
static auto* one = is("RegisterOperators") ? new Registered("facade_early::f(Tensor x, int n) -> Tensor", &f) : nullptr;
static auto* other = is("no namespace") ? new Registered("f", &f) : nullptr;
TORCH_LIBRARY(facade_early, m) {
    if (is("a number")) throw 3;
    if (is("the first of two blocks")) m.def("f(Tensor x, int n) -> Tensor", &f);
    if (is("an implementation")) m.def("f(Tensor x, int n) -> Tensor");
}
TORCH_LIBRARY_IMPL(facade_early, CPU, m) { if (is("an implementation")) m.impl("f", &f); }
TORCH_LIBRARY(facade_later, m) { m.def("f", &f); }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("f", &f); }
"""
"""A library of which a registration fails: which one, a variable says."""
OF_F = "the schema of facade_early::f has the arguments (Tensor, int), and the C++ function has (Tensor, float)"
FAILING = {
    "RegisterOperators": OF_F,
    "no namespace": "the op 'f' has no namespace",
    "the first of two blocks": OF_F,
    "a number": "an exception that is not a std::exception",
    "an implementation": OF_F,
}


@pytest.fixture(scope="module")
def early(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with the library `early`, of which a registration fails."""
    folder = tmp_path_factory.mktemp("early")
    (folder / "early.cpp").write_text(EARLY)
    compile_library("facade", "early", [folder / "early.cpp"], folder / "early.so", ["-O0"])
    return folder


@pytest.mark.parametrize("which", FAILING)
def test_a_registration_that_fails_is_an_import_error_at_each_import(early: Path, which: str) -> None:
    code = """
import os, sys, torch
sys.path.insert(0, os.environ["FOLDER"])
for _ in range(2):
    try:
        import early
    except Exception as error:
        print(type(error).__name__, error)
"""
    env = child_processes.environment(FOLDER=str(early), FACADE_EARLY=which)
    said = child_processes.run_with_torch(code, env=env).splitlines()
    assert len(said) == 2, said
    assert all(line.startswith("ImportError ") and FAILING[which] in line for line in said), said


def test_a_schema_that_is_not_the_functions_is_an_error_where_a_library_is_loaded_without_its_module(
    early: Path,
) -> None:
    code = """
import os, torch
try:
    torch.ops.load_library(os.environ["LIBRARY"])
except Exception as error:
    while error.__cause__:
        error = error.__cause__
    print(type(error).__name__, error)
"""
    env = child_processes.environment(LIBRARY=str(early / "early.so"), FACADE_EARLY="an implementation")
    assert OF_F in child_processes.run_with_torch(code, env=env)


OTHER_TORCH = """#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <stddef.h>
#include <stdint.h>
#define ANSWERS(kind, name, type, parameters, arguments, value) \\
    type name parameters { \\
        const char* other = getenv("OTHER_TORCH"); \\
        if (other && !strcmp(other, kind)) return value; \\
        return ((type (*) parameters)dlsym(dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD), #name)) arguments; \\
    }
ANSWERS("number", aoti_torch_dtype_uint8, int32_t, (void), (), 77)
ANSWERS("size", aoti_torch_dtype_element_size, size_t, (int32_t dtype), (dtype), 3)
ANSWERS("device", aoti_torch_device_type_meta, int32_t, (void), (), 5)
"""
"""It answers in the place of torch's functions, where a variable says so."""
OTHERS = {
    "number": "this torch numbers the dtype Byte 77, and this library was built for 0: build it again with this torch",
    "size": "an element of the dtype Byte has 3 bytes in this torch, and this library was built for 1",
    "device": "this torch numbers devices, layouts or memory formats otherwise (5 for 14)",
}


def test_a_torch_with_other_numbers_or_sizes_is_an_error_at_load(plain: Path, tmp_path: Path) -> None:
    (tmp_path / "other.c").write_text(OTHER_TORCH)
    other = str(tmp_path / "other.so")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", other, str(tmp_path / "other.c"), "-ldl"], check=True)
    code = """
import os, sys, torch
for other in sys.argv[1:]:
    os.environ["OTHER_TORCH"] = sys.path[0] = other
    try:
        import op
    except Exception as error:
        print(type(error).__name__, error)
"""
    for name in OTHERS:  # a process loads the library of one path once
        (tmp_path / name).mkdir()
        shutil.copy(plain, tmp_path / name)
    ended = subprocess.run(
        [sys.executable, "-c", code, *OTHERS],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "LD_PRELOAD": other},
        capture_output=True,
        text=True,
    )
    said = ended.stdout.splitlines()
    assert len(said) == len(OTHERS), (said, ended.stderr[-500:])
    assert all(expected in line for line, expected in zip(said, OTHERS.values(), strict=True)), said


def test_headers_of_torch_are_found_in_a_folder_of_links(tmp_path: Path) -> None:
    include = Path(torch.__file__).parent / "include"
    for _ in range(2):
        flags.link_torch_headers(tmp_path, include)
    expected = {*flags.OF_TORCH, *(name for name in flags.OF_VECTORS if (include / name).exists())}
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_symlink()} == expected
    with pytest.raises(FileNotFoundError, match="torch's headers of version 2"):
        flags.link_torch_headers(tmp_path, tmp_path / "nothing")


def test_the_facade_compiles_with_a_torch_whose_headers_have_what_it_adds_to_others(tmp_path: Path) -> None:
    own, made = Path(torch.__file__).parent / "include", tmp_path / "include"
    util = made / "torch" / "headeronly" / "util"
    util.mkdir(parents=True)
    (made / "torch" / "csrc").symlink_to(own / "torch" / "csrc")
    for folder in (util.parent, util):
        for path in (own / folder.relative_to(made)).iterdir():
            if path.name not in ("util", "complex.h"):
                (folder / path.name).symlink_to(path)
    complex_numbers = (own / "torch/headeronly/util/complex.h").read_text()
    if not (util / "complex_utils.h").exists():  # as torch 2.14 has it
        complex_numbers += "#include <torch/headeronly/util/complex_utils.h>\n"
        (util / "complex_utils.h").write_text("""#pragma once
namespace std {
template <typename T> class numeric_limits<c10::complex<T>> : public numeric_limits<T> {};
template <typename T> bool isnan(const c10::complex<T>& v) { return isnan(v.real()) || isnan(v.imag()); }
}
""")
    (util / "complex.h").write_text(complex_numbers)
    (tmp_path / "op.cpp").write_text(
        "#include <torch/extension.h>\nbool f(c10::complex<float> z) { return std::isnan(z); }\n"
        "static_assert(std::numeric_limits<c10::complex<float>>::has_infinity);\n"
    )
    words = command("facade", "op", [tmp_path / "op.cpp"], tmp_path / "op.so", ["-fsyntax-only"], made)
    ended = subprocess.run(words, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-2000:]
