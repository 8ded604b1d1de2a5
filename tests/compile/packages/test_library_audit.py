"""What the audit refuses in a library, on libraries that a real compiler made with each defect."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import kernel_abi_check
import pytest

from opforge.accelerator.target import Target
from opforge.builders.declaration.abi import STABLE, TORCH
from opforge.packages.audit import library, measure, python_abi
from opforge.packages.choose import candidate, environment, order

pytestmark = [pytest.mark.compile, pytest.mark.skipif(sys.platform != "linux", reason="reads ELF files")]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Returns the path of a library that is made of a source with these flags."""
    folder = tmp_path_factory.mktemp("libraries")

    def build(source, *flags):
        name = folder / f"{abs(hash((source, flags)))}.so"
        if not name.exists():
            command = ["g++", "-shared", "-fPIC", "-xc++", "-", "-o", str(name), *flags]
            subprocess.run(command, input=source.encode(), check=True, capture_output=True)
        return str(name)

    return build


SOURCE = 'extern "C" int f() { return 1; }\n'


def test_a_plain_library_has_no_problem(built):
    assert library.problems(built(SOURCE), STABLE, "2.10") == []


@pytest.mark.parametrize(
    ("source", "flags", "text"),
    [
        (SOURCE, ("-Wl,-rpath,/opt/x", "-Wl,--disable-new-dtags"), "its library has a RPATH (/opt/x): where"),
        (
            SOURCE,
            ("-Wl,-rpath,$ORIGIN",),
            "($ORIGIN): where it is loaded, that folder may be anybody's. Link it without -rpath, which LDFLAGS may",
        ),
        (SOURCE, ("-Wl,-z,execstack",), "its library asks for an executable stack: link with -z noexecstack"),
        (
            'extern "C" int z(); extern "C" int f() { return z(); }',
            ("-Wl,--no-as-needed", "-l:libz.so.1"),
            "its library needs libz.so.1, which other machines may not have: link it statically, or",
        ),
        (
            "namespace at { struct Tensor; int size(const Tensor&); }\nint f(const at::Tensor& t) { return size(t); }",
            (),
            "it claims torch's stable ABI and uses torch's C++ functions: _ZN2at4sizeERKNS_6TensorE",
        ),
        (
            "namespace c10 { struct Error { Error(); virtual ~Error(); }; }\nvoid f() { throw c10::Error(); }",
            (),
            "uses torch's C++ functions: _ZN3c105Error",
        ),
        (
            'extern "C" int torch_exception_get_what(void*); int f() { return torch_exception_get_what(0); }',
            (),
            None,
        ),
        (
            'extern "C" void* PyUnicode_AsUTF8(void*); void* f() { return PyUnicode_AsUTF8(0); }',
            (),
            "it uses functions of Python outside the stable ABI of 3.9: PyUnicode_AsUTF8",
        ),
    ],
)
def test_a_defect_is_named(built, source, flags, text):
    try:
        path = built(source, *flags)
    except subprocess.CalledProcessError:
        pytest.skip("this system has no library to link for this defect")
    lines = library.problems(path, STABLE, "2.10")
    if text is None:
        assert all("stable ABI of 3.9" not in line for line in lines)
    else:
        assert [line for line in lines if text in line] != [], lines


def test_relocations_in_code_are_refused(built, tmp_path):
    if os.uname().machine != "x86_64":
        pytest.skip("the assembler's text is for x86-64")
    source = ".text\n.globl f\nf:\n movabs $g, %rax\n ret\n.globl g\n.data\ng: .quad 0\n"
    source += '.section .note.GNU-stack,"",@progbits\n'
    path = tmp_path / "text.so"
    command = ["gcc", "-shared", "-xassembler", "-", "-o", str(path), "-Wl,-z,notext", "-nostdlib"]
    subprocess.run(command, input=source.encode(), check=True, capture_output=True)
    assert "its library has relocations in its code: compile with -fPIC" in library.problems(str(path), STABLE, "2.10")


AT_ONCE = """
namespace c10 { struct RegisterOperators { RegisterOperators(); ~RegisterOperators(); }; }
static c10::RegisterOperators ops;
"""
BLOCK = """
extern "C" int aoti_torch_library_init_def(const char*, const char*, unsigned, void**);
static int defined = aoti_torch_library_init_def("aten", __FILE__, 1, nullptr);
"""
OURS = 'extern "C" const char* opforge_register(const char*, const char*) { return nullptr; }\n'


@pytest.mark.parametrize(
    ("source", "is_refused"), [(AT_ONCE, True), (AT_ONCE + OURS, True), (BLOCK, True), (BLOCK + OURS, False)]
)
def test_a_library_that_defines_ops_in_the_namespace_of_others_is_refused(built, source, is_refused):
    """What opforge builds calls torch's functions in `opforge_register`, with the namespace of that build."""
    text = "its library registers ops when it is opened, in namespaces that another package may define"
    lines = library.problems(built(source), TORCH, "")
    assert any(text in line for line in lines) == is_refused, lines


def test_a_library_without_a_table_of_sections_is_refused(built, tmp_path):
    content = bytearray(Path(built(SOURCE)).read_bytes())
    content[0x28:0x30] = struct.pack("<Q", 0)  # e_shoff
    content[0x3C:0x40] = struct.pack("<HH", 0, 0)  # e_shnum, e_shstrndx
    path = tmp_path / "stripped.so"
    path.write_bytes(content)
    lines = library.problems(str(path), STABLE, "2.10")
    assert lines == ["its library has no table of sections, so what it needs cannot be read"]


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"no library", b"\x7fELF\x02\x01" + b"\xff" * 200])
def test_a_damaged_library_is_a_problem_and_no_exception(tmp_path, content):
    path = tmp_path / "damaged.so"
    path.write_bytes(content)
    assert library.problems(str(path), TORCH, "")[0].startswith("its library cannot be read: ")


def test_a_library_that_is_allowed_may_be_needed(built):
    path = built(SOURCE, "-Wl,--no-as-needed", "-l:libm.so.6")
    assert library.problems(path, STABLE, "2.10") == []


def test_the_names_of_the_limited_api_agree_with_the_oracle(built):
    allowed = python_abi.limited_api(3, 9)
    assert {"PyModule_Create2", "PyLong_FromLong", "_Py_Dealloc", "PyErr_SetString"} <= allowed
    assert "PyUnicode_AsUTF8" not in allowed and "PyBuffer_Release" not in allowed
    for name in ("PyLong_FromLong", "PyUnicode_AsUTF8", "PyObject_GetBuffer"):
        path = built(f'extern "C" void* {name}(void*); void* f() {{ return {name}(0); }}')
        objections = kernel_abi_check.ObjectFile(path).check_python_abi("3.9")
        assert bool(objections) == (name not in allowed), name


def test_architectures_that_the_code_lacks_are_named():
    measured = {"archs": ["compute_90", "sm_80"], "notes": [], "sizes": {}}
    assert measure.problems(measured, Target.parse("cuda:sm_80")) == []
    lines = measure.problems(measured, Target.parse("cuda:sm_80+sm_90+ptx"))
    assert lines == ["it is for cuda:sm_80+sm_90+ptx, and holds code for compute_90, sm_80 alone: sm_90 is missing"]
    assert measure.problems({**measured, "notes": ["compressed"]}, Target.parse("cuda:sm_90")) == []


@pytest.mark.parametrize(("bare", "found"), [(True, ["sm_80", "sm_90a"]), (False, ["sm_80", "sm_90"])])
def test_a_cubin_in_no_container_has_the_letter_of_its_target_and_any_other_its_own(monkeypatch, bare, found):
    images = [{"kind": "SASS", "arch": arch, "size": 1, "bare": bare} for arch in ("sm_80", "sm_90")]
    monkeypatch.setattr(measure.examine, "examine", lambda _path: {"images": images, "notes": []})
    target = Target.parse("cuda:sm_80+sm_90a")
    measured = measure.of_library("op.so", target=target)
    assert measured["archs"] == found and bool(measure.problems(measured, target)) is not bare
    assert measure.of_library("op.so")["archs"] == ["sm_80", "sm_90"]


def test_a_variant_whose_label_lies_about_the_processor_is_refused(built, tmp_path):
    if os.uname().machine != "x86_64":
        pytest.skip("the library is for x86-64")
    folder = tmp_path / "torch-stable-abi210-cpu-aarch64-linux"
    folder.mkdir()
    shutil.copy(built(SOURCE), folder / "_relu_1.abi3.so")
    stated = {"name": "relu", "id": "_relu_1", "license": "MIT", "python-depends": [], "backend": {"type": "cpu"}}
    (folder / "metadata.json").write_text(json.dumps(stated))
    choice, _metadata = candidate.read(str(folder))
    here = environment.here()
    arm = here._replace(machines={"cpu": here.host._replace(processor="aarch64", level="aarch64")})
    lie = "its label says aarch64, and its library is for x86_64"
    assert [order.unfit(choice, machine) for machine in (here, arm)] == [lie, lie]
