"""Inputs that compilers do not list in their dependency files: those that flags name, and those of the assembler."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
import subprocess

import pytest
from support import sample_ops, text_files

from opforge.builders.declaration.flag_paths import words_in
from opforge.builders.run import compilers, ninja
from opforge.builders.run.reads import assembled, equal_headers, files_read, questions
from opforge.builders.run.reads.files_read import files_in_flags
from opforge.errors import BuilderError, BuildResourceError

NEEDS_CLANG = pytest.mark.skipif(not shutil.which("clang++"), reason="needs clang++ (apt install clang)")
ANOTHER = pytest.mark.test_all("asks the same of another compiler")
ANOTHER_FORM = pytest.mark.test_all("asks the same of another form")
OF_CLANG = [NEEDS_CLANG, ANOTHER]
COMPILERS = ["g++", pytest.param("clang++", marks=OF_CLANG)]
VALUE = sample_ops.EXPORT + " int value() { return VALUE; }\n"
TWO_FUNCTIONS = sample_ops.EXPORT + " int value() { return 1; }\n" + sample_ops.EXPORT + " int other() { return 2; }\n"
BLOB = """\
__asm__(".section .rodata\\n.global blob\\n.hidden blob\\nblob:\\n.incbin \\"@NAME@\\"\\n.byte 0\\n.previous\\n");
extern "C" const char blob[];
"""
FIRST_BYTE = sample_ops.EXPORT + " int value() { return blob[0] - '0'; }\n"


@pytest.fixture
def build_and_call(tmp_path, monkeypatch):
    """Builds the op in tmp_path; returns its value and the entry's origin."""

    def run(compiler="g++", **attributes):
        monkeypatch.setenv("CXX", compiler)
        entry = sample_ops.builder_class(tmp_path, "plain", abi="c", **attributes)().build()
        return ctypes.CDLL(entry.library).value(), entry.origin

    return run


@pytest.mark.parametrize(
    ("compiler", "option", "texts"),
    [
        ("g++", "-specs={}", "*cc1plus:\n+ -DVALUE=@\n\n"),
        pytest.param("clang++", "--config {}", "-DVALUE=@\n", marks=OF_CLANG),
        ("g++", "@{}", "-DVALUE=@\n"),
        pytest.param("clang++", "-Xclang @{}", "-DVALUE=@\n", marks=OF_CLANG),
    ],
)
def test_a_file_of_flags_is_an_input(tmp_path, build_and_call, compiler, option, texts):
    text_files.write(tmp_path, "plain.cpp", VALUE)
    flags = option.format(tmp_path / "named").split()
    for number in (1, 2):
        text_files.write(tmp_path, "named", texts.replace("@", str(number)))
        assert build_and_call(compiler, extra_compile_args=flags) == (number, "built")
        assert build_and_call(compiler, extra_compile_args=flags) == (number, "cache")


def test_a_file_of_flags_named_in_another_one_is_an_input(tmp_path, build_and_call):
    text_files.write(tmp_path, "plain.cpp", VALUE)
    text_files.write(tmp_path, "outer", f"-O1 '@{tmp_path}/inner'\n")
    for number in (1, 2):
        text_files.write(tmp_path, "inner", f"-DVALUE={number}\n")
        assert build_and_call(extra_compile_args=[f"@{tmp_path}/outer"]) == (number, "built")
        assert build_and_call(extra_compile_args=[f"@{tmp_path}/outer"]) == (number, "cache")


@pytest.mark.parametrize(
    ("compiler", "flags", "text"),
    [
        ("g++", ["-fprofile-use={}", "-Wno-coverage-mismatch", "-Wno-missing-profile"], ""),
        pytest.param(
            "clang++",
            ["-fsanitize=undefined", "-fsanitize-trap=undefined", "-fsanitize-ignorelist={}"],
            "src:none\n",
            marks=OF_CLANG,
        ),
        pytest.param("clang++", ["-Xclang", "-fmodule-map-file={}"], "module none {}\n", marks=OF_CLANG),
    ],
)
def test_a_file_that_configures_the_compiler_is_an_input(tmp_path, build_and_call, compiler, flags, text):
    text_files.write(tmp_path, "plain.cpp", TWO_FUNCTIONS)
    flags = [flag.format(tmp_path / "named") for flag in flags]
    for more in ("", "\n"):
        text_files.write(tmp_path, "named", text + more)
        assert build_and_call(compiler, extra_compile_args=flags) == (1, "built")
        assert build_and_call(compiler, extra_compile_args=flags) == (1, "cache")


@pytest.mark.parametrize(
    "flags",
    [
        ["-Xlinker", "--version-script={}"],
        *(pytest.param([f"-Wl,--version-script{sign}{{}}"], marks=ANOTHER_FORM) for sign in "=,"),
    ],
)
def test_a_linker_script_is_an_input(tmp_path, flags):
    text_files.write(tmp_path, "plain.cpp", TWO_FUNCTIONS)
    flags = [flag.format(tmp_path / "named") for flag in flags]
    for names, exports in (("value; other", ["other", "value"]), ("value", ["value"])):
        text_files.write(tmp_path, "named", f"{{ global: {names}; local: *; }};\n")
        cls = sample_ops.builder_class(tmp_path, "plain", abi="c", extra_link_args=flags)
        assert cls().build().record["exports"] == exports
        assert cls().build().origin == "cache"


@pytest.mark.parametrize("option", ["-Wl,-Map={}", pytest.param("-Wa,-aln={}", marks=ANOTHER_FORM)])
def test_an_output_file_that_a_flag_names_is_no_input(tmp_path, build_and_call, option):
    """-Map is known to name an output. The file of -aln is recognized as one because every run changes it."""
    text_files.write(tmp_path, "plain.cpp", VALUE)
    flag = [option.format(tmp_path / "written")]
    attributes = {"extra_link_args": flag} if option.startswith("-Wl") else {"extra_compile_args": flag}
    for number in (1, 2):
        assert build_and_call(define_macros={"VALUE": str(number)}, **attributes) == (number, "built")
        os.unlink(tmp_path / "written")
        assert build_and_call(define_macros={"VALUE": str(number)}, **attributes) == (number, "cache")


def test_files_are_recognized_in_flags_of_every_form(tmp_path):
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
def test_a_file_that_the_assembler_includes_is_an_input(tmp_path, build_and_call, compiler):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    text_files.write(tmp_path, "plain.cpp", BLOB.replace("@NAME@", "blob.bin") + FIRST_BYTE)
    folders = ["first", "second"]
    for number in (1, 2):
        text_files.write(tmp_path / "second", "blob.bin", str(number))
        assert build_and_call(compiler, include_dirs=folders) == (number, "built")
        assert build_and_call(compiler, include_dirs=folders) == (number, "cache")
    text_files.write(tmp_path / "first", "blob.bin", "3")
    assert build_and_call(compiler, include_dirs=folders) == (3, "built")


@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_macro_may_name_the_file_that_the_assembler_includes(tmp_path, build_and_call, compiler):
    text = BLOB.replace('\\"@NAME@\\"', '\\"" FILE "\\"')
    text_files.write(tmp_path, "blob.h", "#define EMBED(FILE) \\\n" + "\\\n".join(text.splitlines()) + "\n")
    text_files.write(tmp_path, "plain.cpp", '#include "blob.h"\nEMBED(BLOB);\n' + FIRST_BYTE)
    for number in (1, 2):
        path = text_files.write(tmp_path, "blob.bin", str(number))
        assert build_and_call(compiler, define_macros={"BLOB": f'"{path}"'}) == (number, "built")
        assert build_and_call(compiler, define_macros={"BLOB": f'"{path}"'}) == (number, "cache")


def test_a_file_included_by_an_assembly_source_is_an_input(tmp_path, build_and_call):
    text_files.write(tmp_path, "plain.cpp", 'extern "C" const char blob[];\n' + FIRST_BYTE)
    text_files.write(
        tmp_path,
        "blob.S",
        '.section .rodata\n.global blob\n.hidden blob\nblob:\n.include "bytes.inc"\n.byte 0\n'
        '.section .note.GNU-stack,"",@progbits\n',
    )
    attributes = {"sources": ["plain.cpp", "blob.S"], "include_dirs": ["."]}
    for number in (1, 2):
        text_files.write(tmp_path, "bytes.inc", f'.ascii "{number}"\n')
        assert build_and_call(**attributes) == (number, "built")
        assert build_and_call(**attributes) == (number, "cache")


def test_a_file_included_by_one_source_does_not_recompile_the_others(tmp_path):
    text_files.write(
        tmp_path, "plain.cpp", f'extern "C" int first();\n{sample_ops.EXPORT} int value() {{ return first(); }}\n'
    )
    blob = BLOB.replace("@NAME@", str(tmp_path / "blob.bin"))
    text_files.write(tmp_path, "blob.cpp", blob + 'extern "C" int first() { return blob[0] - 48; }\n')
    cls = sample_ops.builder_class(tmp_path, "plain", abi="c", sources=["plain.cpp", "blob.cpp"])
    for number, reused in ((1, []), (2, ["compile plain.cpp"])):
        text_files.write(tmp_path, "blob.bin", str(number))
        entry = cls().build()
        assert entry.build()["reused"] == reused
        assert ctypes.CDLL(entry.library).value() == number


PIECES = {
    "a directive in pieces": ('.inc" "bin \\"@FOLDER@/blob.bin\\"', ""),
    "a name in pieces": ('.incbin \\"" FOLDER "/" "blob.bin\\"', ""),
    "a macro of the assembler": (
        "embed blob",
        '.macro embed name\\n.incbin \\"@FOLDER@/\\\\name\\\\().bin\\"\\n.endm\\n',
    ),
}


@pytest.mark.parametrize("compiler", [*COMPILERS, *(pytest.param(way, marks=ANOTHER) for way in ("launcher", "lto"))])
@pytest.mark.parametrize(
    "form", ["a macro of the assembler", *(pytest.param(form, marks=ANOTHER_FORM) for form in [*PIECES][:2])]
)
def test_a_file_whose_name_is_put_together_is_an_input(tmp_path, build_and_call, monkeypatch, form, compiler):
    """gcc's assembler lists it. With clang, a launcher and link-time optimization the unit is compiled again."""
    directive, before = (text.replace("@FOLDER@", str(tmp_path)) for text in PIECES[form])
    text = BLOB.replace('.incbin \\"@NAME@\\"', directive).replace('__asm__("', f'__asm__("{before}')
    text_files.write(tmp_path, "plain.cpp", f'#define FOLDER "{tmp_path}"\n' + text + FIRST_BYTE)
    attributes = {}
    if compiler == "launcher":
        launcher = text_files.write(tmp_path, "launch", '#!/bin/sh\nexec "$@"\n')
        os.chmod(launcher, 0o755)
        monkeypatch.setenv("OPFORGE_COMPILER_LAUNCHER", launcher)
    elif compiler == "lto":
        attributes = {"extra_compile_args": ["-flto"], "extra_link_args": ["-flto", "-O1"]}
    for number in (1, 2):
        text_files.write(tmp_path, "blob.bin", str(number))
        assert build_and_call(compiler if "++" in compiler else "g++", **attributes) == (number, "built")
        assert build_and_call(compiler if "++" in compiler else "g++", **attributes) == (number, "cache")


@pytest.mark.parametrize(
    "text",
    [
        'asm(".in" "cbin \\"w.bin\\"");',
        '#define D(x) #x\nasm(D(.in) D(cbin) " \\"w.bin\\"");',
        'asm(".macro m\\n.inc\\\\()bin \\"w.bin\\"\\n.endm\\nm");',
    ],
)
def test_a_source_may_put_the_directive_together(tmp_path, text):
    assert assembled.may_read([text_files.write(tmp_path, "a.cpp", text)], [], [])


def test_a_source_without_assembly_embeds_nothing(tmp_path):
    path = text_files.write(tmp_path, "a.cpp", '#include "incident.h"\nconst char* text = "include"; // assert\n')
    assert not assembled.may_read([path], [], [])


def test_a_source_in_assembly_may_put_the_directive_together(tmp_path):
    path = text_files.write(tmp_path, "a.S", '.macro m\n.inc\\()bin "w.bin"\n.endm\nm\n')
    assert assembled.may_read([path], [], [])


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (".text\n", []),
        ('.incbin "w.bin"\n', ["w.bin"]),
        ('.macro m\n.inc\\()bin "w.bin"\n.endm\nm\n', None),
        ('.irp d,incbin\n.\\d "w.bin"\n.endr\n', None),
        ('.irpc d,n\n.i\\d\\()cbin "w.bin"\n.endr\n', None),
        ('.rept 1\n.incbin "w.bin"\n.endr\n', None),
    ],
)
def test_assembly_with_macros_does_not_name_its_files(tmp_path, text, names):
    assert assembled.names_in(text_files.write(tmp_path, "a.s", text)) == names


def embedding_op(tmp_path, monkeypatch, listing):
    """Returns the class of an op of which only `listing`, run in place of the compiler, may say what it embeds."""
    run = compilers.run_steps

    def run_steps(job, work, steps):
        return listing() if steps[0].title.startswith("list the embedded") else run(job, work, steps)

    monkeypatch.setattr(compilers, "run_steps", run_steps)
    text = BLOB.replace("@NAME@", text_files.write(tmp_path, "blob.bin", "1"))
    text_files.write(tmp_path, "plain.cpp", text + FIRST_BYTE)
    flags = {"extra_compile_args": ["-flto"], "extra_link_args": ["-flto"]}  # the assembler lists nothing then
    return sample_ops.builder_class(tmp_path, "plain", abi="c", **flags)


@pytest.mark.parametrize("status", [1, pytest.param(137, marks=ANOTHER_FORM)])
def test_a_unit_that_does_not_compile_again_for_its_list_fails_no_build(tmp_path, own_store, monkeypatch, status):
    cls = embedding_op(tmp_path, monkeypatch, lambda: ninja.Outcome(status, "a.cpp:1:1: error: no\n"))
    entry = cls().build()
    assert (ctypes.CDLL(entry.library).value(), entry.origin) == (1, "built")
    assert [*own_store.glob("v2/logs/*.log")] == []
    text_files.write(tmp_path, "blob.bin", "2")
    assert ctypes.CDLL(cls().build().library).value() == 2


def test_a_full_disk_does_not_mean_that_nothing_is_embedded(tmp_path, monkeypatch):
    def listing():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(BuildResourceError, match="the disk is full"):
        embedding_op(tmp_path, monkeypatch, listing)().build()


@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_macro_may_quote_the_name_of_the_file(tmp_path, build_and_call, compiler):
    text = BLOB.replace('\\"@NAME@\\"', '\\"" #FILE "\\"')
    text_files.write(tmp_path, "blob.h", "#define EMBED(FILE) \\\n" + "\\\n".join(text.splitlines()) + "\n")
    text_files.write(tmp_path, "plain.cpp", '#include "blob.h"\nEMBED(blob.bin);\n' + FIRST_BYTE)
    for number in (1, 2):
        text_files.write(tmp_path, "blob.bin", str(number))
        assert build_and_call(compiler, include_dirs=["."]) == (number, "built")
        assert build_and_call(compiler, include_dirs=["."]) == (number, "cache")


@pytest.mark.parametrize("compiler", COMPILERS)
def test_embedded_data_is_not_read_as_a_source(tmp_path, build_and_call, monkeypatch, compiler):
    """It may be as large as a model's weights. What is quoted in it names no file."""
    path = text_files.write(tmp_path, "blob.bin", '1 "value.h" __has_include(<none.h>) .incbin __DATE__\n')
    text_files.write(tmp_path, "value.h", "")
    text_files.write(tmp_path, "plain.cpp", BLOB.replace("@NAME@", path) + FIRST_BYTE)
    read, real = [], questions.content_of
    for module in (questions, equal_headers, files_read, assembled):
        monkeypatch.setattr(module, "content_of", lambda path: read.append(path) or real(path))
    assert build_and_call(compiler) == (1, "built")
    assert path not in read and str(tmp_path / "plain.cpp") in read


def test_a_large_file_with_zero_bytes_is_no_source(tmp_path):
    (tmp_path / "data").write_bytes(b'"a.h" __DATE__' + bytes(questions.HEAD_BYTES))
    assert questions.content_of(str(tmp_path / "data")) == b""


# -- files of arguments ------------------------------------------------------------------------------------------------

ARGUMENTS = {
    "-DA='it": ["-DA=it"],
    'x"y z': ["xy z"],
    r"a\ b c": ["a b", "c"],
    "'a\\'b' \"c\\\"d\"": ["a'b", 'c"d'],
    "'' a": ["", "a"],
    "a\tb\nc\vd\fe\r\nf": ["a", "b", "c", "d", "e", "f"],
    "don't stop": ["dont stop"],
    "": [],
}


@pytest.mark.parametrize("text", ARGUMENTS, ids=ascii)
def test_a_file_of_arguments_is_read_as_compilers_read_it(tmp_path, text):
    path = text_files.write(tmp_path, "arguments", text)
    assert words_in(path) == ARGUMENTS[text]


@pytest.mark.parametrize("form", ["-Wl,--gc-sections,@{}", pytest.param("-Wl,@{}", marks=ANOTHER_FORM)])
def test_a_file_of_the_linkers_flags_named_in_another_one_is_an_input(tmp_path, form):
    text_files.write(tmp_path, "plain.cpp", TWO_FUNCTIONS)
    text_files.write(tmp_path, "outer", f"'@{tmp_path}/inner")
    flags = form.format(tmp_path / "outer").split()
    text_files.write(tmp_path, "script", "{ global: value; local: *; };\n")
    for text, exports in (("", ["other", "value"]), (f"--version-script={tmp_path}/script", ["value"])):
        text_files.write(tmp_path, "inner", text)
        cls = sample_ops.builder_class(tmp_path, "plain", abi="c", extra_link_args=flags)
        assert cls().build().record["exports"] == exports
        assert cls().build().origin == "cache"


def test_a_definition_behind_a_quote_that_is_not_closed_is_an_input(tmp_path, build_and_call):
    text_files.write(tmp_path, "plain.cpp", '#include "value.h"\n' + VALUE)
    for number in (1, 2):
        text_files.write(tmp_path / str(number), "value.h", f"#define VALUE {number}\n")
        text_files.write(tmp_path, "named", f"-I'{tmp_path}/{number}")
        assert build_and_call(extra_compile_args=[f"@{tmp_path}/named"]) == (number, "built")
    text_files.write(tmp_path / "2", "value.h", "#define VALUE 3\n")
    assert build_and_call(extra_compile_args=[f"@{tmp_path}/named"]) == (3, "built")


def test_specs_that_the_link_alone_reads_are_inputs(tmp_path):
    text_files.write(tmp_path, "plain.cpp", TWO_FUNCTIONS)
    text_files.write(tmp_path, "script", "{ global: value; local: *; };\n")
    text_files.write(tmp_path, "own.specs", f"*link:\n+ %:include({tmp_path}/more.specs)\n\n")
    flags = [f"-specs={tmp_path}/own.specs"]
    for text, exports in (("", ["other", "value"]), (f"--version-script={tmp_path}/script", ["value"])):
        text_files.write(tmp_path, "more.specs", f"*own_flags:\n{text}\n\n")
        text_files.write(tmp_path, "own.specs", f"*link:\n+ %:include({tmp_path}/more.specs) %(own_flags)\n\n")
        cls = sample_ops.builder_class(tmp_path, "plain", abi="c", extra_link_args=flags)
        assert cls().build().record["exports"] == exports
        assert cls().build().origin == "cache"


@pytest.mark.parametrize("text", ["-Iinc", "-include value.h", "-Wl,-Tmore.ld", "'-I' inc"])
def test_a_relative_path_in_a_file_of_arguments_is_refused(tmp_path, build_and_call, text):
    """It would count from the folder in which compilers run."""
    (tmp_path / "inc").mkdir()
    for name in ("value.h", "more.ld"):
        text_files.write(tmp_path, name, "")
    text_files.write(tmp_path, "plain.cpp", TWO_FUNCTIONS)
    path = text_files.write(tmp_path, "named", f"-DA=inc {text}\n")
    with pytest.raises(BuilderError, match=re.escape(f"{path} has the relative path")):
        build_and_call(extra_compile_args=[f"@{path}"])
    text_files.write(tmp_path, "named", f"-DA=inc -I{tmp_path}/inc\n")
    assert build_and_call(extra_compile_args=[f"@{path}"]) == (1, "built")


def test_a_precompiled_header_that_is_put_beside_a_header_or_changes_is_noticed(tmp_path, build_and_call):
    def precompile(value):
        text_files.write(tmp_path, "other.hpp", f"#define VALUE {value}\n")
        command = ["g++", "-O3", "-fPIC", "-x", "c++-header", tmp_path / "other.hpp", "-o", tmp_path / "value.h.gch"]
        subprocess.run(command, check=True)

    text_files.write(tmp_path, "plain.cpp", f'#include "value.h"\n{VALUE}')
    text_files.write(tmp_path, "value.h", "#define VALUE 1\n")
    assert [build_and_call(), build_and_call()] == [(1, "built"), (1, "cache")]
    for value in (2, 3):
        precompile(value)
        assert [build_and_call()[1], build_and_call()[1]] == ["built", "cache"], "gcc decides whether it takes it"
    (tmp_path / "value.h.gch").unlink()
    assert build_and_call() == (1, "cache")


@pytest.mark.parametrize("parent", ["", "early"], ids=["beside the header", "in a folder that is searched before"])
def test_what_appears_in_a_folder_of_precompiled_headers_is_noticed(tmp_path, build_and_call, parent):
    folder = tmp_path / parent / "value.h.gch"
    folder.mkdir(parents=True)
    text_files.write(tmp_path, "plain.cpp", f'#include "value.h"\n{VALUE}')
    text_files.write(tmp_path, "value.h", "#define VALUE 1\n")
    flags = {"include_dirs": [parent]} if parent else {}
    assert [build_and_call(**flags), build_and_call(**flags)] == [(1, "built"), (1, "cache")]
    text_files.write(folder, "first", "gcc passes over what fits no compiler")
    assert [build_and_call(**flags)[1], build_and_call(**flags)[1]] == ["built", "cache"]


def test_a_plugin_that_a_flag_names_without_its_folder_is_an_input(tmp_path):
    for folder, name in (("own", "mine"), ("gcc/plugin", "theirs"), ("gcc/include", "no")):
        text_files.write(tmp_path, f"{folder}/{name}.so", "")
    words = ["-fplugin=mine", "-fplugin=theirs", "-fplugin=none", f"-iplugindir={tmp_path}/own"]
    found = {*files_read.plugins(words, [f"{tmp_path}/gcc/include"])}
    assert found == {f"{tmp_path}/own/mine.so", f"{tmp_path}/gcc/plugin/theirs.so"}


def test_a_compiled_module_that_a_file_of_names_gives_to_gcc_is_an_input(tmp_path):
    text_files.write(tmp_path, "part.gcm", "")
    text_files.write(tmp_path, "map", f"part {tmp_path}/part.gcm\nnone {tmp_path}/none.gcm\n\nmain\n")
    words = [f"-fmodule-mapper={tmp_path}/map", "-fmodule-mapper=other"]
    assert files_read.modules(words) == {f"{tmp_path}/part.gcm"}
