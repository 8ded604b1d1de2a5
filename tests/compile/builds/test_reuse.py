"""Reuse of objects and of a precompiled header between builds and units, and the launcher and linker of a build."""

from __future__ import annotations

import json
import os
import shutil

import pytest
from support import sample_ops, text_files

from opforge.builders.run import compilers, executor, ninja, precompiled_header
from opforge.errors import CompileError, ToolchainNotFoundError

TEN = [f"unit{number}.cpp" for number in range(10)]


def op_of_ten_units(folder, **attributes):
    """Writes an op of ten sources and returns its builder class. The first five include five.h; value() adds up all."""
    folder.mkdir(exist_ok=True)
    text_files.write(folder, "five.h", "#define FIVE 5\n")
    for number, name in enumerate(TEN):
        include, body = ('#include "five.h"\n', "FIVE") if number < 5 else ("", "1")
        calls = "".join(f"int part{other}(); " for other in range(1, 10)) if not number else ""
        total = "".join(f" + part{other}()" for other in range(1, 10)) if not number else ""
        head = f"{sample_ops.EXPORT} int value()" if not number else f"int part{number}()"
        text_files.write(folder, name, f"{include}{calls}\n{head} {{ return {body}{total}; }}\n")
    return sample_ops.builder_class(folder, "ten", abi="c", sources=TEN, **attributes)


def build_record(entry):
    return entry.build()


def reused(entry):
    return sorted(build_record(entry)["reused"])


# -- objects -----------------------------------------------------------------------------------------------------------


def test_only_the_changed_ones_of_ten_sources_are_compiled(folder):
    cls = op_of_ten_units(folder)
    assert reused(cls().build()) == []
    assert cls().load().value() == 30
    text_files.write(folder, "unit7.cpp", "int part7() { return 101; }\n")
    steps = []
    edited = cls().build(on_progress=lambda *step: steps.append(step[2]))
    assert steps == ["compile unit7.cpp", "link ten"]
    assert reused(edited) == [f"compile {name}" for name in TEN if name != "unit7.cpp"]
    assert cls().load().value() == 130

    text_files.write(folder, "five.h", "#define FIVE 6\n")
    assert reused(cls().build()) == [f"compile {name}" for name in TEN[5:]], "the units that do not include it"
    assert cls().load().value() == 135


def test_a_forced_build_reuses_no_object(folder):
    cls = op_of_ten_units(folder)
    cls().build()
    steps = []
    cls().build(force=True, on_progress=lambda *step: steps.append(step[2]))
    assert len([step for step in steps if step.startswith("compile")]) == 10


def test_a_rebuild_after_eviction_reuses_all_objects(folder, own_store):
    cls = op_of_ten_units(folder)
    first = cls().build()
    shutil.rmtree(first.folder)
    again = cls().build()
    assert again.origin == "built" and len(reused(again)) == 10 and again.key == first.key
    assert again.record["sha256"] == first.record["sha256"]


def test_a_damaged_object_is_compiled_again(folder, own_store):
    cls = op_of_ten_units(folder)
    first = cls().build()
    objects = sorted((own_store / "v2" / "objects").glob("*/*.o"))
    assert len(objects) == 10
    for number, path in enumerate(objects[:3]):
        path.chmod(0o600)
        path.write_bytes([b"", b"\x7fELF", path.read_bytes()[:-1] + b"?"][number])
    shutil.rmtree(first.folder)
    again = cls().build()
    assert len(reused(again)) == 7
    assert again.record["sha256"] == first.record["sha256"] and cls().load().value() == 30


def test_a_build_with_other_compile_flags_reuses_no_object(folder):
    op_of_ten_units(folder)().build()
    assert reused(op_of_ten_units(folder, extra_compile_args=["-DX"])().build()) == []
    assert len(reused(op_of_ten_units(folder, extra_link_args=["-Wl,-z,now"])().build())) == 10, (
        "an object does not depend on link flags"
    )
    assert reused(op_of_ten_units(folder)(debug=True).build()) == []


def test_two_ops_that_share_a_unit_share_its_object(folder):
    op_of_ten_units(folder)().build()
    text_files.write(folder, "own.cpp", f"int part9();\n{sample_ops.EXPORT} int value() {{ return part9(); }}\n")
    other = sample_ops.builder_class(folder, "other", abi="c", sources=["own.cpp", "unit9.cpp"])
    assert reused(other().build()) == ["compile unit9.cpp"]
    assert other().load().value() == 1


def test_an_object_is_not_reused_if_a_new_header_shadows_one_of_its_own(folder):
    source = f"#include <inner.h>\n{sample_ops.EXPORT} int value() {{ return VALUE; }}\n"
    cls = sample_ops.plain_op(folder, source=source, include_dirs=["early", "late"])
    for name in ("early", "late"):
        (folder / name).mkdir()
    text_files.write(folder / "late", "inner.h", "#define VALUE 1\n")
    assert cls().load().value() == 1
    text_files.write(folder / "early", "inner.h", "#define VALUE 2\n")
    assert cls().load().value() == 2
    assert reused(cls().build()) == []


ASKING = {
    "has.h": "#define HAS(x) __has_include(x)\n#define NAME(x) <x.h>\n",
    "asks.cpp": '#if __has_include("one.h")\nint asks() { return 2; }\n#else\nint asks() { return 1; }\n#endif\n',
    "macro.cpp": '#include "has.h"\n#if HAS(NAME(two))\nint macro() { return 20; }\n#else\n'
    "int macro() { return 10; }\n#endif\n",
    "joins.cpp": "#define ASK(x) x##_include\n#if ASK(__has)(<three.h>)\nint joins() { return 200; }\n#else\n"
    "int joins() { return 100; }\n#endif\n",
    "none.cpp": '#include "has.h"\nint none() { return 1000; }\n',
    "sum.cpp": f"int asks(), macro(), joins(), none();\n"
    f"{sample_ops.EXPORT} int value() {{ return asks() + macro() + joins() + none(); }}\n",
}


def test_of_an_op_only_the_units_that_asked_are_compiled_again(folder):
    folder.mkdir(exist_ok=True)
    for name, text in ASKING.items():
        text_files.write(folder, name, text)
    sources = [name for name in ASKING if name.endswith(".cpp")]
    cls = sample_ops.builder_class(folder, "asking", abi="c", sources=sources, include_dirs=["."])
    assert cls().load().value() == 1111
    # That of joins.cpp is unknown: any new name may be the one.
    for header, asked, value in (("one", "asks", 1112), ("two", "macro", 1122), ("three", "joins", 1222)):
        text_files.write(folder, f"{header}.h", "")
        edited = cls().build()
        again = {f"compile {asked}.cpp", "compile joins.cpp"}
        assert {f"compile {name}" for name in sources} - {*reused(edited)} == again and cls().load().value() == value


UNCLEAR = """\
#define HAS(x) __has_include(x)
#define ONE <one.h>
#if HAS(ONE)
int asks() { return 2; }
#else
int asks() { return 1; }
#endif
#undef HAS
#define HAS(x, y) 0
"""
"""The question cannot be expanded with the definitions that hold at the end."""


def test_a_reused_object_whose_unit_asks_for_an_unknown_name_makes_new_names_count(folder):
    folder.mkdir(exist_ok=True)
    text_files.write(folder, "asks.cpp", UNCLEAR)
    text_files.write(folder, "sum.cpp", f"int asks();\n{sample_ops.EXPORT} int value() {{ return asks(); }}\n")
    cls = sample_ops.builder_class(folder, "unclear", abi="c", sources=["asks.cpp", "sum.cpp"], include_dirs=["."])
    cls().build()
    text_files.write(folder, "sum.cpp", f"int asks();\n{sample_ops.EXPORT} int value() {{ return 10 * asks(); }}\n")
    assert reused(cls().build()) == ["compile asks.cpp"] and cls().load().value() == 10
    text_files.write(folder, "one.h", "")
    assert cls().load().value() == 20


# -- the launcher ------------------------------------------------------------------------------------------------------


def recording_launcher(folder, name="ccache"):
    """Writes a launcher that appends the command lines it runs to the file `ran` in its folder; returns its path."""
    folder.mkdir(exist_ok=True)
    return text_files.write_script(folder, name, f'echo "$@" >> {folder}/ran; exec "$@"')


def test_the_launcher_runs_compilers_but_not_the_linker(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("OPFORGE_COMPILER_LAUNCHER", recording_launcher(tmp_path / "tools") + " g++ -DLAUNCHED")
    text_files.write_script(tmp_path / "tools", "ccache", f'echo "$@" >> {tmp_path}/tools/ran; shift 2; exec "$@"')
    assert sample_ops.plain_op(folder)().load().value() == 1
    (line,) = (tmp_path / "tools" / "ran").read_text().splitlines()
    assert line.startswith("g++ -DLAUNCHED /") and " -c " in line


def test_the_launcher_is_not_part_of_a_key(folder, tmp_path, monkeypatch):
    cls = sample_ops.plain_op(folder)
    first = cls().build()
    monkeypatch.setenv("OPFORGE_COMPILER_LAUNCHER", recording_launcher(tmp_path / "tools"))
    assert (cls().build().origin, cls().build().key) == ("cache", first.key)


def test_a_launcher_is_found_on_path_or_from_the_working_folder(folder, tmp_path, monkeypatch):
    recording_launcher(tmp_path / "tools")
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(("tools/ccache", "ccache")):
        monkeypatch.setenv("OPFORGE_COMPILER_LAUNCHER", name)
        if number:
            monkeypatch.setenv("PATH", f"{tmp_path}/tools:{os.environ['PATH']}")
        assert sample_ops.plain_op(folder, value=number)().load().value() == number
    assert len((tmp_path / "tools" / "ran").read_text().splitlines()) == 2


def test_a_launcher_on_path_is_not_used_unless_it_is_chosen(folder, tmp_path, monkeypatch):
    for name in ("ccache", "sccache", "distcc", "icecc"):
        recording_launcher(tmp_path / "tools", name)
    monkeypatch.setenv("PATH", f"{tmp_path}/tools:{os.environ['PATH']}")
    assert sample_ops.plain_op(folder)().load().value() == 1
    assert not (tmp_path / "tools" / "ran").exists()


def test_the_error_for_a_missing_launcher_names_it(folder, monkeypatch):
    monkeypatch.setenv("OPFORGE_COMPILER_LAUNCHER", "no-such-launcher --fast")
    with pytest.raises(ToolchainNotFoundError) as caught:
        sample_ops.plain_op(folder)().load()
    assert str(caught.value) == (
        "No compiler launcher was found. Looked for:\n  - OPFORGE_COMPILER_LAUNCHER=no-such-launcher\n"
        "Install it, or unset the variable."
    )


# -- the linker --------------------------------------------------------------------------------------------------------


def linked_by(entry):
    """Returns which of mold and lld have left their mark in the library."""
    with open(entry.library, "rb") as file:
        content = file.read()
    return {name for name, mark in (("mold", b"\0mold "), ("lld", b"Linker: ")) if mark in b"\0" + content}


needs_linkers = pytest.mark.skipif(
    not (shutil.which("ld.mold") and shutil.which("ld.lld")), reason="needs apt install mold lld"
)


@needs_linkers
@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_the_compilers_own_linker_links_whatever_else_is_installed(folder, monkeypatch, compiler):
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    monkeypatch.setenv("CXX", compiler)
    assert linked_by(sample_ops.plain_op(folder)().build()) == set()


@needs_linkers
@pytest.mark.parametrize("linker", ["bfd", "lld", "mold"])
def test_the_linker_that_an_op_names_links_it(folder, linker):
    cls = sample_ops.plain_op(folder, extra_link_args=[f"-fuse-ld={linker}"])
    assert linked_by(cls().build()) == {linker} - {"bfd"}
    assert cls().load().value() == 1


@needs_linkers
def test_a_linker_in_ldflags_is_used_instead_of_the_ops_own(folder, monkeypatch):
    cls = sample_ops.plain_op(folder, extra_link_args=["-fuse-ld=mold"])
    first = cls().build()
    monkeypatch.setenv("LDFLAGS", "-fuse-ld=lld")
    second = cls().build()
    assert linked_by(second) == {"lld"} and second.key != first.key
    assert cls().load().value() == 1
    monkeypatch.delenv("LDFLAGS")
    assert cls().build().key == first.key


@needs_linkers
@pytest.mark.parametrize("is_in_a_file", [False, True])
def test_a_linker_that_an_op_names_and_that_was_replaced_links_again(folder, tmp_path, monkeypatch, is_in_a_file):
    bin = tmp_path / "linkers"
    bin.mkdir()
    for name in ("lld", "mold"):
        text_files.write_script(bin, f"ld.{name}", f'exec {shutil.which(f"ld.{name}")} "$@"')
    monkeypatch.setenv("PATH", f"{bin}:{os.environ['PATH']}")
    text_files.write(tmp_path, "flags", "-fuse-ld=mold\n")
    cls = sample_ops.plain_op(folder, extra_link_args=[f"@{tmp_path}/flags" if is_in_a_file else "-fuse-ld=mold"])
    first = cls().build()
    assert cls().build().origin == "cache"
    text_files.write_script(bin, "ld.mold", f'exec {shutil.which("ld.lld")} "$@"')
    second = cls().build()
    assert second.origin == "built" and linked_by(first) == {"mold"} and linked_by(second) == {"lld"}


def test_a_build_records_the_peak_memory_of_its_compilers(folder, own_store):
    entry = sample_ops.plain_op(folder)().build()
    peak = build_record(entry)["peak_bytes"]
    assert 4 << 20 < peak < 1 << 30
    (peak_file,) = (own_store / "v2" / "peaks").iterdir()
    ((source, of_unit),) = json.loads(peak_file.read_text()).items()
    # It is looked at from time to time: a busy machine may miss the last moments of a short compilation.
    assert source == "own/plain.cpp" and 1 << 20 < of_unit < 2 * peak  # with those that start the compiler


# -- a precompiled header ----------------------------------------------------------------------------------------------


MODULE = """\
#include <Python.h>
@CALLS@
static PyObject* total(PyObject*, PyObject* x) { return PyLong_FromLong(PyLong_AsLong(x) + @TOTAL@); }
static PyMethodDef functions[] = {{"total", total, METH_O, nullptr}, {}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "@NAME@", nullptr, 0, functions};
PyMODINIT_FUNC PyInit_@NAME@() { return PyModule_Create(&definition); }
"""


def op_of_five_units(folder):
    """Writes an op of five sources, four of which begin with one header of torch's; returns its builder class."""
    folder.mkdir(exist_ok=True)
    head = "// the units of one op\n#include <torch/headeronly/macros/Macros.h>\n"
    for number in range(4):
        text_files.write(folder, f"of_torch{number}.cpp", f"{head}int part{number}() {{ return {number}; }}\n")
    name = sample_ops.unique_name("five")
    calls = "".join(f"int part{number}(); " for number in range(4))
    total = " + ".join(f"part{number}()" for number in range(4))
    module = MODULE.replace("@CALLS@", calls).replace("@TOTAL@", total).replace("@NAME@", name)
    text_files.write(folder, "module.cpp", module)
    sources = ["module.cpp", *(f"of_torch{number}.cpp" for number in range(4))]
    return sample_ops.builder_class(folder, name, abi="torch", sources=sources)


def test_many_units_that_begin_with_the_same_header_share_it_precompiled(folder, own_store, monkeypatch):
    cls, titles = op_of_five_units(folder), []
    shared = cls().build(jobs=1, on_progress=lambda *step: titles.append(step[2]))
    # Its files are inputs of each unit: otherwise an object would be reused although one of them has changed.
    records = [json.loads(path.read_text()) for path in own_store.glob("v2/objects/*/*.json")]
    inputs = [{file[1] for file in record["inputs"]["files"]} for record in records]
    assert len(inputs) == 5
    for path in ("include/torch/headeronly/macros/Macros.h", "include/torch/headeronly/macros/Export.h"):
        assert sum(path in files for files in inputs) >= 4, path
    assert titles.count("precompile <torch/headeronly/macros/Macros.h>") == 1
    assert cls().load().total(1) == 7
    assert not [name for name in os.listdir(shared.folder) if "gch" in name], "the precompiled header is not kept"
    monkeypatch.setattr(precompiled_header, "UNITS_A_COMPILER", {})
    alone = cls().build(jobs=1, force=True)
    assert alone.record["sha256"] == shared.record["sha256"], "the same code"
    assert alone.build()["inputs"] == shared.build()["inputs"], "the same inputs"


def test_a_pragma_of_the_ops_own_in_the_shared_header_holds_in_each_unit(folder, monkeypatch):
    """gcc forgets it in a precompiled header. The number of cores would decide which program is built."""
    text = "#include_next <torch/headeronly/macros/Export.h>\n#pragma pack(push, 1)\n"
    text_files.write(folder / "include" / "torch" / "headeronly" / "macros", "Export.h", text)
    monkeypatch.setattr(executor, "ATTEMPTS", 1)  # it is no reason to run the build again for a changed file
    cls = op_of_five_units(folder)
    cls.include_dirs = ["include"]
    packed = (
        "#include <torch/headeronly/macros/Macros.h>\nstruct P { char a; int b; };\nint part0() { return sizeof(P); }\n"
    )
    text_files.write(folder, "of_torch0.cpp", packed)
    cls().build(jobs=1)
    assert cls().load().total(1) == 12


def runs_of(monkeypatch, failing):
    """Lets each run fail of which `failing` is true of its steps. Returns the titles of each run, which grow."""
    titles, run = [], compilers.run_steps

    def run_steps(job, work, steps):
        titles.append([step.title for step in steps])
        if failing(steps):
            failed = next(step for step in steps if step.title == "compile of_torch1.cpp")
            command = " ".join(failed.argv)
            for name in (*failed.inputs, "first.h.gch.d"):
                open(os.path.join(work, name), "ab").close()
            return ninja.Outcome(
                1, f"[1/1] {failed.title}\nFAILED: {failed.output}\n{command}\nof_torch1.cpp:1:1: error: no\n"
            )
        return run(job, work, steps)

    monkeypatch.setattr(compilers, "run_steps", run_steps)
    return titles


def test_a_unit_that_fails_only_with_the_shared_header_is_compiled_without_it(folder, own_store, monkeypatch):
    """The number of cores would decide whether the op can be built."""
    cls = op_of_five_units(folder)
    titles = runs_of(monkeypatch, lambda steps: steps[0].title.startswith("precompile"))
    assert cls().build(jobs=1).origin == "built" and cls().load().total(1) == 7
    assert [len(run) for run in titles[:3]] == [11, 1, 10] and titles[3:] == [[f"link {cls.name}"]]
    assert [*own_store.glob("v2/logs/*.log")] == []


def test_a_unit_that_fails_without_the_shared_header_too_is_compiled_alone(folder, own_store, monkeypatch):
    cls, titles = op_of_five_units(folder), runs_of(monkeypatch, lambda steps: True)
    with pytest.raises(CompileError, match=r"compile of_torch1\.cpp failed: of_torch1\.cpp:1:1: error: no"):
        cls().build(jobs=1)
    assert [len(run) for run in titles] == [11, 1] and titles[1] == ["compile of_torch1.cpp"]
    assert len([*own_store.glob("v2/logs/*.log")]) == 1


def test_an_objects_record_names_no_other_source_of_its_op(folder, own_store):
    """Otherwise the records of an op of N sources would have N * N names."""
    op_of_ten_units(folder)().build()
    records = [json.loads(path.read_text())["inputs"] for path in own_store.glob("v2/objects/*/*.json")]
    for record in records:
        own = {file[1] for file in record["files"]}
        assert {name for name in record["names"] if name.endswith(".cpp")} == own & {*TEN}
        assert {path[1] for path in record["present"]} - own <= {"five.h"}
        assert ("five.h" in own) <= ("five.h" in record["names"])


def test_a_source_that_another_one_includes_may_be_shadowed(folder):
    cls = op_of_ten_units(folder, include_dirs=["early", "late"])
    (folder / "early").mkdir()
    (folder / "late").mkdir()
    text_files.write(folder / "late", "unit8.cpp", "#define NINE 9\n")
    text_files.write(folder, "unit9.cpp", "#include <unit8.cpp>\nint part9() { return NINE; }\n")
    assert cls().load().value() == 38
    text_files.write(folder / "early", "unit8.cpp", "#define NINE 10\n")
    assert cls().load().value() == 39
