"""A source that includes torch/extension.h, on the facade: its functions, its errors, and what its library needs."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from facade.compiling import command, compile_library
from support import child_processes

from opforge.builders.facade import flags

SUPPORT = Path(__file__).parents[2] / "support" / "facade"
RECORDED_WITH = "2.13"
"""The torch whose headers gave the recorded outcomes: the texts of others' errors and signatures may differ."""
TORCHS_OWN_ERRORS = ("complex(tensor([1., 1.]))", "complex({1})")
"""torch's conversion of complex numbers leaves its Python error set, and the message then lacks the arguments."""


def _refusal(tmp_path: Path, text: str) -> str:
    """Returns the compiler's errors for a source."""
    (tmp_path / "op.cpp").write_text(f"#include <torch/extension.h>\n{text}\n")
    parts = command("facade", "op", [tmp_path / "op.cpp"], tmp_path / "op.so")
    parts = [part for part in parts if part not in ("-shared", "-ltorch_cpu")]
    ended = subprocess.run(
        [*parts, "-fsyntax-only"], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"}
    )
    assert ended.returncode != 0
    return "\n".join(line for line in ended.stderr.splitlines() if "error: " in line)


def _plain(outcome: object) -> str:
    """Returns an outcome's text without the folder that the source was compiled in."""
    return re.sub(r'at ."[^"]*module_source.cpp', "at module_source.cpp", json.dumps(outcome))


def test_functions_of_a_module_give_what_pybind11s_give(tmp_path: Path) -> None:
    library = tmp_path / "facade_cases.so"
    compile_library("facade", "facade_cases", [SUPPORT / "module_source.cpp"], library, ["-O0"])
    script = Path(__file__).parents[2] / "facade"
    ended = subprocess.run([sys.executable, str(script), "record-child", str(library)], capture_output=True, text=True)
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
    for name in ("one", "other"):
        options = ["-O0", f"-DFACADE_TEST_NAMESPACE=facade_{name}"]
        compile_library("facade", name, [SUPPORT / "semantics_source.cpp"], tmp_path / f"{name}.so", options)
    ended = subprocess.run(
        [sys.executable, str(SUPPORT / "semantics.py"), str(tmp_path)], capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    exported = subprocess.run(
        ["nm", "-DC", "--defined-only", str(tmp_path / "one.so")], capture_output=True, text=True
    ).stdout
    names = {line.split(None, 2)[2] for line in exported.splitlines()}
    assert {"PyInit_one", "opforge_facade_module"} <= names
    assert not [name for name in names if "opforge_facade::" in name or name.startswith(("at::", "c10::", "torch::"))]


def test_a_library_needs_no_symbol_that_is_newer_than_the_oldest_torch(tmp_path: Path) -> None:
    library = tmp_path / "op.so"
    (tmp_path / "op.cpp").write_text(
        "#include <torch/extension.h>\ntorch::Tensor f(torch::Tensor x) { return x.sum() + 1; }\n"
        'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("f", &f); }\n'
    )
    compile_library("facade", "op", [tmp_path / "op.cpp"], library, ["-O0"])
    listed = subprocess.run(["nm", "-D", "--undefined-only", str(library)], capture_output=True, text=True).stdout
    needed = {line.split()[-1] for line in listed.splitlines() if line.split()[0] == "U"}
    assert {name for name in needed if name.startswith(("Py", "torch_exception"))} == set()
    assert not [name for name in needed if name.startswith(("_ZN2at", "_ZN3c10", "_ZN5torch", "_ZNK2at"))]
    needs = subprocess.run(["readelf", "-d", str(library)], capture_output=True, text=True).stdout
    assert "libtorch_cpu.so" in needs and "libtorch_python" not in needs and "libpython" not in needs


def test_torch_compile_breaks_the_graph_at_a_function(tmp_path: Path) -> None:
    (tmp_path / "op.cpp").write_text(
        "#include <torch/extension.h>\n"
        "torch::Tensor f(torch::Tensor x) { auto r = x.clone(); r.data_ptr<float>()[0] = 7; return r; }\n"
        'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("f", &f); }\n'
    )
    compile_library("facade", "op", [tmp_path / "op.cpp"], tmp_path / "op.so", ["-O0"])
    code = """
import importlib.util, os, warnings, torch
spec = importlib.util.spec_from_file_location("op", os.environ["LIBRARY"])
op = importlib.util.module_from_spec(spec); spec.loader.exec_module(op)
warnings.simplefilter("ignore")
print(torch.compile(lambda x: op.f(x + 1) * 2, backend="eager")(torch.zeros(2)).tolist())
"""
    env = child_processes.environment(LIBRARY=str(tmp_path / "op.so"))
    assert child_processes.run_with_torch(code, env=env) == "[14.0, 2.0]\n"


def test_an_op_without_a_schema_is_to_torch_what_its_own_headers_make_it(tmp_path: Path) -> None:
    (tmp_path / "op.cpp").write_text("""#include <torch/extension.h>
at::Tensor put(const at::Tensor& x, std::optional<at::Tensor> out, std::vector<at::Tensor> more) {
    more[0].copy_(x);
    return out.value().copy_(x * 3);
}
at::Tensor calls(const at::Tensor& x, const at::Tensor& y) { return x.mul(y).add(y); }
static auto registry = torch::RegisterOperators("facade_put::put", &put);
TORCH_LIBRARY_FRAGMENT(facade_put, m) { m.def("calls", &calls); }
""")
    compile_library("facade", "op", [tmp_path / "op.cpp"], tmp_path / "op.so", ["-O0"])
    (tmp_path / "use.py").write_text("""import sys, torch
torch.ops.load_library(sys.argv[1])
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
""")
    command_line = [sys.executable, "-W", "ignore", str(tmp_path / "use.py"), str(tmp_path / "op.so")]
    assert subprocess.run(command_line, capture_output=True, text=True).stdout.splitlines() == [
        "[[3.0, 3.0], [1.0, 1.0]] [4.0, 4.0]",
        "facade_put::calls(Tensor _0, Tensor _1) -> Tensor _0",
        "True",
        "True",
        "{'SUCCESS'}",
        "['facade_put.calls.default']",
    ]


def test_a_branch_by_torchs_version_and_a_guard_of_dispatch_keys_are_errors(tmp_path: Path) -> None:
    text = """#if TORCH_VERSION_MAJOR >= 2
int x;
#endif
#ifdef TORCH_VERSION
int y;
#endif
void f() { at::AutoDispatchBelowADInplaceOrView guard; }"""
    errors = _refusal(tmp_path, text)
    assert 'attempt to use poisoned "TORCH_VERSION_MAJOR"' in errors
    assert 'attempt to use poisoned "TORCH_VERSION"' in errors
    assert "'AutoDispatchBelowADInplaceOrView' is not a member of 'at'" in errors


def test_a_header_that_is_not_covered_is_one_clear_error(tmp_path: Path) -> None:
    errors = _refusal(tmp_path, "#include <ATen/native/TensorIterator.h>")
    assert errors.count("error: ") == 1
    assert "ATen/native/TensorIterator.h: No such file or directory" in errors


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "auto f(at::Tensor x) { return x.index_add_(0, x, x); }",
            "index_add_ is not on torch's stable ABI: it passes no const Scalar&",
        ),
        (
            "auto f(at::Tensor x) { return torch::linspace(0, 1, 5); }",
            "linspace is not on torch's stable ABI: it passes no const Scalar&",
        ),
        ("void f(at::Tensor x) { std::cout << x; }", "printing a tensor is not on torch's stable ABI"),
        (
            "struct A {}; struct B {}; struct C : A, B {}; PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {"
            ' py::class_<C, A, B>(m, "C"); }',
            "a class of several bases is not in the facade yet",
        ),
        (
            'struct A {}; struct PyA : A {}; PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { py::class_<A, PyA>(m, "A"); }',
            "and no class of Python that overrides",
        ),
        (
            'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("f", [](std::function<int()>) {}); }',
            "no conversion from and to Python in the facade",
        ),
        ('TORCH_LIBRARY(ns, m) { m.def("f", [](std::map<int, int>) {}); }', "cannot be an op's on torch's stable ABI"),
    ],
)
def test_what_is_not_supported_is_an_error_that_says_why(tmp_path: Path, text: str, expected: str) -> None:
    errors = _refusal(tmp_path, text)
    assert expected in errors
    assert 'with torch\'s own headers (opforge: abi="torch")' in errors.replace('\\"', '"')


def test_a_schema_that_is_not_the_functions_is_an_error_at_load(tmp_path: Path) -> None:
    (tmp_path / "op.cpp").write_text(
        '#include <torch/extension.h>\nTORCH_LIBRARY(facade_wrong, m) { m.def("f(Tensor x, int n) -> Tensor"); }\n'
        'TORCH_LIBRARY_IMPL(facade_wrong, CPU, m) { m.impl("f", [](at::Tensor x, double n) { return x * n; }); }\n'
    )
    compile_library("facade", "op", [tmp_path / "op.cpp"], tmp_path / "op.so", ["-O0"])
    code = """
import os, torch
try:
    torch.ops.load_library(os.environ["LIBRARY"])
except Exception as error:
    while error.__cause__:
        error = error.__cause__
    print(type(error).__name__, error)
"""
    env = child_processes.environment(LIBRARY=str(tmp_path / "op.so"))
    assert (
        "the schema of facade_wrong::f has the arguments (Tensor, int), and the C++ function has (Tensor, float)"
        in (child_processes.run_with_torch(code, env=env))
    )


WRONG = 'm.def("f(Tensor x, int n) -> Tensor", &f);'
OF_F = "the schema of facade_early::f has the arguments (Tensor, int), and the C++ function has (Tensor, float)"


@pytest.mark.parametrize(
    ("registrations", "expected"),
    [
        ('static auto r = torch::RegisterOperators("facade_early::f(Tensor x, int n) -> Tensor", &f);', OF_F),
        ('static auto r = torch::RegisterOperators("f", &f);', "the op 'f' has no namespace"),
        (f'TORCH_LIBRARY(facade_early, m) {{ {WRONG} }} TORCH_LIBRARY(facade_later, m) {{ m.def("f", &f); }}', OF_F),
        ("TORCH_LIBRARY(facade_early, m) { throw 3; }", "an exception that is not a std::exception"),
    ],
    ids=["RegisterOperators", "no namespace", "the first of two blocks", "a number"],
)
def test_a_registration_that_fails_is_an_import_error_at_each_import(
    tmp_path: Path, registrations: str, expected: str
) -> None:
    (tmp_path / "early.cpp").write_text(
        "#include <torch/extension.h>\nat::Tensor f(at::Tensor x, double n) { return x * n; }\n"
        f'{registrations}\nPYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {{ m.def("f", &f); }}\n'
    )
    compile_library("facade", "early", [tmp_path / "early.cpp"], tmp_path / "early.so", ["-O0"])
    code = """
import os, sys, torch
sys.path.insert(0, os.environ["FOLDER"])
for _ in range(2):
    try:
        import early
    except Exception as error:
        print(type(error).__name__, error)
"""
    said = child_processes.run_with_torch(code, env=child_processes.environment(FOLDER=str(tmp_path))).splitlines()
    assert len(said) == 2 and all(line.startswith("ImportError ") and expected in line for line in said), said


OTHER_TORCH = {
    "number": (
        "int32_t aoti_torch_dtype_uint8() { return 77; }",
        "this torch numbers the dtype Byte 77, and this library was built for 0: build it again with this torch",
    ),
    "size": (
        "size_t aoti_torch_dtype_element_size(int32_t dtype) { return 3; }",
        "an element of the dtype Byte has 3 bytes in this torch, and this library was built for 1",
    ),
    "device": (
        "int32_t aoti_torch_device_type_meta() { return 5; }",
        "this torch numbers devices, layouts or memory formats otherwise (5 for 14)",
    ),
}


def test_a_torch_with_other_numbers_or_sizes_is_an_error_at_load(tmp_path: Path) -> None:
    (tmp_path / "op.cpp").write_text(
        "#include <torch/extension.h>\ntorch::Tensor f(torch::Tensor x) { return x; }\n"
        'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("f", &f); }\n'
        'TORCH_LIBRARY(facade_numbers, m) { m.def("f", &f); }\n'
    )
    compile_library("facade", "op", [tmp_path / "op.cpp"], tmp_path / "op.so", ["-O0"])
    code = """
import sys, torch
sys.path.insert(0, sys.argv[1])
try:
    import op
except Exception as error:
    print(type(error).__name__, error)
"""
    for name, (function, expected) in OTHER_TORCH.items():
        (tmp_path / "other.c").write_text(f"#include <stddef.h>\n#include <stdint.h>\n{function}\n")
        other = tmp_path / f"{name}.so"
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(other), str(tmp_path / "other.c")], check=True)
        # It answers in the place of torch's function of that name.
        ended = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)],
            env={"PATH": "/usr/bin:/bin", "LD_PRELOAD": str(other)},
            capture_output=True,
            text=True,
        )
        assert expected in ended.stdout and ended.returncode == 0, (name, ended.stdout, ended.stderr[-500:])


def test_headers_of_torch_are_found_in_a_folder_of_links(tmp_path: Path) -> None:
    include = Path(torch.__file__).parent / "include"
    for _ in range(2):
        flags.link_torch_headers(tmp_path, include)
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_symlink()) == sorted(
        flags.OF_TORCH
    )
    with pytest.raises(FileNotFoundError, match="torch's headers of version 2"):
        flags.link_torch_headers(tmp_path, tmp_path / "nothing")
