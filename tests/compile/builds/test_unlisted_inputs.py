"""Files that compilers read and do not list: those that flags name, and what the assembler takes in."""

from __future__ import annotations

import ctypes
import os
import shutil

import pytest
from support import sample_ops, text_files

from opforge.builders.run.dependencies import files_in_flags

COMPILERS = [
    "g++",
    pytest.param(
        "clang++", marks=pytest.mark.skipif(not shutil.which("clang++"), reason="needs clang++ (apt install clang)")
    ),
]
VALUE = sample_ops.EXPORT + " int value() { return VALUE; }\n"
TWO = sample_ops.EXPORT + " int value() { return 1; }\n" + sample_ops.EXPORT + " int other() { return 2; }\n"
BLOB = """\
__asm__(".section .rodata\\n.global blob\\n.hidden blob\\nblob:\\n.incbin \\"@NAME@\\"\\n.byte 0\\n.previous\\n");
extern "C" const char blob[];
"""
FIRST = sample_ops.EXPORT + " int value() { return blob[0] - '0'; }\n"


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Loads the op in tmp_path; gives its value and where it came from."""

    def loaded(compiler="g++", **attributes):
        monkeypatch.setenv("CXX", compiler)
        entry = sample_ops.builder_class(tmp_path, "plain", abi="c", **attributes)().build()
        return ctypes.CDLL(entry.library).value(), entry.origin

    return loaded


@pytest.mark.parametrize(
    ("compiler", "option", "texts"),
    [
        ("g++", "-specs={}", "*cc1plus:\n+ -DVALUE=@\n\n"),
        ("clang++", "--config {}", "-DVALUE=@\n"),
        ("g++", "@{}", "-DVALUE=@\n"),
        ("clang++", "-Xclang @{}", "-DVALUE=@\n"),
    ],
)
def test_a_file_of_flags_that_a_flag_names_is_an_input(tmp_path, load, compiler, option, texts):
    if not shutil.which(compiler):
        pytest.skip("needs clang++ (apt install clang)")
    text_files.write(tmp_path, "plain.cpp", VALUE)
    flags = option.format(tmp_path / "named").split()
    for number in (1, 2):
        text_files.write(tmp_path, "named", texts.replace("@", str(number)))
        assert load(compiler, extra_compile_args=flags) == (number, "built")
        assert load(compiler, extra_compile_args=flags) == (number, "cache")


def test_a_file_of_flags_that_such_a_file_names_is_an_input(tmp_path, load):
    text_files.write(tmp_path, "plain.cpp", VALUE)
    text_files.write(tmp_path, "outer", f"-O1 '@{tmp_path}/inner'\n")
    for number in (1, 2):
        text_files.write(tmp_path, "inner", f"-DVALUE={number}\n")
        assert load(extra_compile_args=[f"@{tmp_path}/outer"]) == (number, "built")
        assert load(extra_compile_args=[f"@{tmp_path}/outer"]) == (number, "cache")


@pytest.mark.parametrize(
    ("compiler", "flags", "text"),
    [
        ("g++", ["-fprofile-use={}", "-Wno-coverage-mismatch", "-Wno-missing-profile"], ""),
        ("clang++", ["-fsanitize=undefined", "-fsanitize-trap=undefined", "-fsanitize-ignorelist={}"], "src:none\n"),
        ("clang++", ["-Xclang", "-fmodule-map-file={}"], "module none {}\n"),
    ],
)
def test_a_file_that_steers_a_compiler_is_an_input(tmp_path, load, compiler, flags, text):
    if not shutil.which(compiler):
        pytest.skip("needs clang++ (apt install clang)")
    text_files.write(tmp_path, "plain.cpp", TWO)
    told = [flag.format(tmp_path / "named") for flag in flags]
    for more in ("", "\n"):
        text_files.write(tmp_path, "named", text + more)
        assert load(compiler, extra_compile_args=told) == (1, "built")
        assert load(compiler, extra_compile_args=told) == (1, "cache")


@pytest.mark.parametrize(
    "flags", [["-Wl,--version-script={}"], ["-Wl,--version-script,{}"], ["-Xlinker", "--version-script={}"]]
)
def test_a_linkers_script_is_an_input(tmp_path, load, flags):
    text_files.write(tmp_path, "plain.cpp", TWO)
    told = [flag.format(tmp_path / "named") for flag in flags]
    for names, exports in (("value; other", ["other", "value"]), ("value", ["value"])):
        text_files.write(tmp_path, "named", f"{{ global: {names}; local: *; }};\n")
        cls = sample_ops.builder_class(tmp_path, "plain", abi="c", extra_link_args=told)
        assert cls().build().binary["exports"] == exports
        assert cls().build().origin == "cache"


@pytest.mark.parametrize("option", ["-Wl,-Map={}", "-Wa,-aln={}"])
def test_a_file_that_a_flag_has_written_is_no_input(tmp_path, load, option):
    """The first is known by its name; of the second it is seen that every run changes it."""
    text_files.write(tmp_path, "plain.cpp", VALUE)
    flag = [option.format(tmp_path / "written")]
    told = {"extra_link_args": flag} if option.startswith("-Wl") else {"extra_compile_args": flag}
    for number in (1, 2):
        assert load(define_macros={"VALUE": str(number)}, **told) == (number, "built")
        os.unlink(tmp_path / "written")
        assert load(define_macros={"VALUE": str(number)}, **told) == (number, "cache")


def test_every_way_in_which_a_flag_names_a_file_is_known(tmp_path):
    file = text_files.write(tmp_path, "a,b=c", "")
    short = text_files.write(tmp_path, "short", "")
    forms = ["-fplugin={}", "-T{}", "@{}", "-Wl,-T,{}", "-Wl,--dynamic-list={}", "-Xcompiler=-fpass-plugin={}"]
    for form in forms:
        assert files_in_flags([form.format(file)], ()) == {file}
    assert files_in_flags([f"-Wl,-T,{short},--gc-sections"], ()) == {short}
    profile = text_files.write(tmp_path, "default.profdata", "")
    assert files_in_flags([f"-fprofile-use={tmp_path}"], ()) == {profile}
    assert files_in_flags(["-include-pch", short], {short}) == {short}
    assert files_in_flags([short, "-c", short], ()) == set()
    for form in [
        "-DNAME={}",
        "-Wl,-Map={}",
        "-ftime-trace={}",
        "-fprofile-instr-generate={}",
        "-Wp,-MD,{}",
        "-fplugin=/gone{}",
        "-I{}/..",
    ]:
        assert files_in_flags([form.format(short)], ()) == set()
    assert files_in_flags(["-D", f"A={short}"], {f"A={short}"}) == set()


@pytest.mark.parametrize("compiler", COMPILERS)
def test_what_the_assembler_takes_in_is_an_input(tmp_path, load, compiler):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    text_files.write(tmp_path, "plain.cpp", BLOB.replace("@NAME@", "blob.bin") + FIRST)
    told = {"include_dirs": ["first", "second"]}
    for number in (1, 2):
        text_files.write(tmp_path / "second", "blob.bin", str(number))
        assert load(compiler, **told) == (number, "built")
        assert load(compiler, **told) == (number, "cache")
    text_files.write(tmp_path / "first", "blob.bin", "3")
    assert load(compiler, **told) == (3, "built")


@pytest.mark.parametrize("compiler", COMPILERS)
def test_its_name_may_come_from_a_macro_of_a_header_or_of_a_flag(tmp_path, load, compiler):
    text = BLOB.replace('\\"@NAME@\\"', '\\"" FILE "\\"')
    text_files.write(tmp_path, "blob.h", "#define TAKE_IN(FILE) \\\n" + "\\\n".join(text.splitlines()) + "\n")
    text_files.write(tmp_path, "plain.cpp", '#include "blob.h"\nTAKE_IN(BLOB);\n' + FIRST)
    for number in (1, 2):
        path = text_files.write(tmp_path, "blob.bin", str(number))
        assert load(compiler, define_macros={"BLOB": f'"{path}"'}) == (number, "built")
        assert load(compiler, define_macros={"BLOB": f'"{path}"'}) == (number, "cache")


def test_a_source_in_assembly_takes_in_files_too(tmp_path, load):
    text_files.write(tmp_path, "plain.cpp", 'extern "C" const char blob[];\n' + FIRST)
    text_files.write(
        tmp_path,
        "blob.S",
        '.section .rodata\n.global blob\n.hidden blob\nblob:\n.include "bytes.inc"\n.byte 0\n'
        '.section .note.GNU-stack,"",@progbits\n',
    )
    for number in (1, 2):
        text_files.write(tmp_path, "bytes.inc", f'.ascii "{number}"\n')
        told = {"sources": ["plain.cpp", "blob.S"], "include_dirs": ["."]}
        assert load(**told) == (number, "built")
        assert load(**told) == (number, "cache")


def test_one_source_that_takes_in_a_file_leaves_the_objects_of_the_others(tmp_path):
    text_files.write(
        tmp_path, "plain.cpp", f'extern "C" int first();\n{sample_ops.EXPORT} int value() {{ return first(); }}\n'
    )
    blob = BLOB.replace("@NAME@", str(tmp_path / "blob.bin"))
    text_files.write(tmp_path, "blob.cpp", blob + 'extern "C" int first() { return blob[0] - 48; }\n')
    cls = sample_ops.builder_class(tmp_path, "plain", abi="c", sources=["plain.cpp", "blob.cpp"])
    for number, reused in ((1, []), (2, ["compile plain.cpp"])):
        text_files.write(tmp_path, "blob.bin", str(number))
        entry = cls().build()
        assert entry.manifest()["built"]["reused"] == reused
        assert ctypes.CDLL(entry.library).value() == number
