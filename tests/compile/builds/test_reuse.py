"""What a build takes over and what it obeys: objects per unit, a launcher, a linker, the number of compilers."""

from __future__ import annotations

import json
import os
import shutil

import pytest
from support import sample_ops, text_files

from opforge.builders.run import precompiled_header
from opforge.errors import ToolchainNotFoundError

TEN = [f"unit{number}.cpp" for number in range(10)]


def ten(folder, **attributes):
    """An op of ten sources: the first five include five.h, and value() sums up what all ten give."""
    folder.mkdir(exist_ok=True)
    text_files.write(folder, "five.h", "#define FIVE 5\n")
    for number, name in enumerate(TEN):
        include, body = ('#include "five.h"\n', "FIVE") if number < 5 else ("", "1")
        calls = "".join(f"int part{other}(); " for other in range(1, 10)) if not number else ""
        total = "".join(f" + part{other}()" for other in range(1, 10)) if not number else ""
        head = f"{sample_ops.EXPORT} int value()" if not number else f"int part{number}()"
        text_files.write(folder, name, f"{include}{calls}\n{head} {{ return {body}{total}; }}\n")
    return sample_ops.builder_class(folder, "ten", abi="c", sources=TEN, **attributes)


def built(entry):
    return entry.manifest()["built"]


def reused(entry):
    return sorted(built(entry)["reused"])


# -- objects -----------------------------------------------------------------------------------------------------------


def test_of_ten_sources_only_what_changed_is_compiled(folder):
    cls = ten(folder)
    assert reused(cls().build()) == []
    assert cls().load().value() == 30
    text_files.write(folder, "unit7.cpp", "int part7() { return 101; }\n")
    steps = []
    edited = cls().build(on_progress=lambda *step: steps.append(step[2]))
    assert steps == ["compile unit7.cpp", "link ten"]
    assert reused(edited) == [f"compile {name}" for name in TEN if name != "unit7.cpp"]
    assert cls().load().value() == 130

    text_files.write(folder, "five.h", "#define FIVE 6\n")
    assert reused(cls().build()) == [f"compile {name}" for name in TEN[5:]], "those that do not include it"
    assert cls().load().value() == 135


def test_a_build_that_is_forced_takes_no_object_over(folder):
    cls = ten(folder)
    cls().build()
    forced = []
    cls().build(force=True, on_progress=lambda *step: forced.append(step[2]))
    assert len([step for step in forced if step.startswith("compile")]) == 10


def test_a_rebuild_after_eviction_takes_all_objects_over(folder, own_store):
    cls = ten(folder)
    first = cls().build()
    shutil.rmtree(first.folder)
    again = cls().build()
    assert again.origin == "built" and len(reused(again)) == 10 and again.key == first.key
    assert again.binary["sha256"] == first.binary["sha256"]


def test_a_damaged_object_is_compiled_again(folder, own_store):
    cls = ten(folder)
    first = cls().build()
    objects = sorted((own_store / "v1" / "objects").glob("*/*.o"))
    assert len(objects) == 10
    for number, path in enumerate(objects[:3]):
        path.chmod(0o600)
        path.write_bytes([b"", b"\x7fELF", path.read_bytes()[:-1] + b"?"][number])
    shutil.rmtree(first.folder)
    again = cls().build()
    assert len(reused(again)) == 7
    assert again.binary["sha256"] == first.binary["sha256"] and cls().load().value() == 30


def test_other_flags_share_no_object(folder):
    ten(folder)().build()
    assert reused(ten(folder, extra_compile_args=["-DX"])().build()) == []
    assert len(reused(ten(folder, extra_link_args=["-Wl,-z,now"])().build())) == 10, "linking is no part of a unit"
    assert reused(ten(folder)(debug=True).build()) == []


def test_two_ops_that_share_a_unit_share_its_object(folder):
    ten(folder)().build()
    text_files.write(folder, "own.cpp", f"int part9();\n{sample_ops.EXPORT} int value() {{ return part9(); }}\n")
    other = sample_ops.builder_class(folder, "other", abi="c", sources=["own.cpp", "unit9.cpp"])
    assert reused(other().build()) == ["compile unit9.cpp"]
    assert other().load().value() == 1


def test_a_header_that_shadows_is_seen_by_the_objects_too(folder):
    source = f"#include <inner.h>\n{sample_ops.EXPORT} int value() {{ return VALUE; }}\n"
    cls = sample_ops.plain_op(folder, source=source, include_dirs=["early", "late"])
    for name in ("early", "late"):
        (folder / name).mkdir()
    text_files.write(folder / "late", "inner.h", "#define VALUE 1\n")
    assert cls().load().value() == 1
    text_files.write(folder / "early", "inner.h", "#define VALUE 2\n")
    assert cls().load().value() == 2
    assert reused(cls().build()) == []


# -- the launcher ------------------------------------------------------------------------------------------------------


def recorder(place, name="ccache"):
    place.mkdir(exist_ok=True)
    return text_files.write_script(place, name, f'echo "$@" >> {place}/ran; exec "$@"')


def test_a_launcher_that_is_named_runs_each_compiler_and_no_linker(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("OPFORGE_COMPILER_LAUNCHER", recorder(tmp_path / "tools") + " g++ -DLAUNCHED")
    text_files.write_script(tmp_path / "tools", "ccache", f'echo "$@" >> {tmp_path}/tools/ran; shift 2; exec "$@"')
    assert sample_ops.plain_op(folder)().load().value() == 1
    (line,) = (tmp_path / "tools" / "ran").read_text().splitlines()
    assert line.startswith("g++ -DLAUNCHED /") and " -c " in line


def test_a_launcher_is_in_no_key(folder, tmp_path, monkeypatch):
    cls = sample_ops.plain_op(folder)
    first = cls().build()
    monkeypatch.setenv("OPFORGE_COMPILER_LAUNCHER", recorder(tmp_path / "tools"))
    assert (cls().build().origin, cls().build().key) == ("cache", first.key)


def test_a_launcher_is_found_on_path_or_from_the_working_folder(folder, tmp_path, monkeypatch):
    recorder(tmp_path / "tools")
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(("tools/ccache", "ccache")):
        monkeypatch.setenv("OPFORGE_COMPILER_LAUNCHER", name)
        if number:
            monkeypatch.setenv("PATH", f"{tmp_path}/tools:{os.environ['PATH']}")
        assert sample_ops.plain_op(folder, value=number)().load().value() == number
    assert len((tmp_path / "tools" / "ran").read_text().splitlines()) == 2


def test_a_launcher_that_is_merely_there_is_not_used(folder, tmp_path, monkeypatch):
    for name in ("ccache", "sccache", "distcc", "icecc"):
        recorder(tmp_path / "tools", name)
    monkeypatch.setenv("PATH", f"{tmp_path}/tools:{os.environ['PATH']}")
    assert sample_ops.plain_op(folder)().load().value() == 1
    assert not (tmp_path / "tools" / "ran").exists()


def test_a_launcher_that_is_missing_is_named(folder, monkeypatch):
    monkeypatch.setenv("OPFORGE_COMPILER_LAUNCHER", "no-such-launcher --fast")
    with pytest.raises(ToolchainNotFoundError) as caught:
        sample_ops.plain_op(folder)().load()
    assert str(caught.value) == (
        "No compiler launcher was found. Looked for:\n  - OPFORGE_COMPILER_LAUNCHER=no-such-launcher\n"
        "Install it, or unset the variable."
    )


# -- the linker --------------------------------------------------------------------------------------------------------


def linked_by(entry):
    """Which of the other linkers has signed the library."""
    with open(entry.library, "rb") as file:
        content = file.read()
    return {name for name, mark in (("mold", b"\0mold "), ("lld", b"Linker: ")) if mark in b"\0" + content}


@pytest.mark.skipif(not (shutil.which("ld.mold") and shutil.which("ld.lld")), reason="needs apt install mold lld")
def test_a_linker_that_ldflags_names_is_chosen_over_the_one_that_is_there(folder, monkeypatch):
    cls = sample_ops.plain_op(folder)
    first = cls().build()
    assert linked_by(first) == {"mold"}
    monkeypatch.setenv("LDFLAGS", "-fuse-ld=lld")
    second = cls().build()
    assert linked_by(second) == {"lld"} and second.key != first.key
    assert cls().load().value() == 1
    monkeypatch.delenv("LDFLAGS")
    assert cls().build().key == first.key


def test_without_another_linker_the_systems_own_is_used(folder, tmp_path, monkeypatch):
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("g++", "as", "ld", "ld.bfd"):
        if found := shutil.which(name):
            os.symlink(found, tools / name)
    monkeypatch.setenv("PATH", str(tools))
    entry = sample_ops.plain_op(folder)().build()
    assert linked_by(entry) == set()


def test_a_build_measures_what_a_compiler_took(folder, own_store):
    entry = sample_ops.plain_op(folder)().build()
    peak = built(entry)["peak_bytes"]
    assert 4 << 20 < peak < 1 << 30
    (noted,) = (own_store / "v1" / "peaks").iterdir()
    assert int(noted.read_text()) == peak


# -- a precompiled header ----------------------------------------------------------------------------------------------


def five_of_torch(folder):
    """A stable-ABI op of five sources, four of which begin with one and the same header of torch's."""
    folder.mkdir(exist_ok=True)
    first = "// the units of one op\n#include <torch/csrc/stable/tensor.h>\n"
    for number in range(4):
        text_files.write(folder, f"of_torch{number}.cpp", f"{first}int part{number}() {{ return {number}; }}\n")
    name = sample_ops.unique_name("five")
    calls = "".join(f"int part{number}(); " for number in range(4))
    total = " + ".join(f"part{number}()" for number in range(4))
    body = f"{calls}\nint64_t total(int64_t x) {{ return x + {total}; }}\n"
    registered = (
        "#include <torch/csrc/stable/library.h>\n#include <cstdint>\n"
        f'{body}STABLE_TORCH_LIBRARY({name}, m) {{ m.def("total(int x) -> int"); }}\n'
        f'STABLE_TORCH_LIBRARY_IMPL({name}, CompositeExplicitAutograd, m) {{ m.impl("total", TORCH_BOX(&total)); }}\n'
    )
    text_files.write(folder, "face.cpp", registered)
    return sample_ops.builder_class(
        folder, name, abi="torch-stable", sources=["face.cpp", *(f"of_torch{number}.cpp" for number in range(4))]
    )


def test_many_units_that_begin_with_one_header_share_it_precompiled(folder, monkeypatch):
    cls, titles = five_of_torch(folder), []
    shared = cls().build(jobs=1, on_progress=lambda *step: titles.append(step[2]))
    assert titles.count("precompile <torch/csrc/stable/tensor.h>") == 1
    assert cls().load().total(1) == 7
    assert not [name for name in os.listdir(shared.folder) if "gch" in name], "it is never exported"
    monkeypatch.setattr(precompiled_header, "UNITS_A_COMPILER", {})
    alone = cls().build(jobs=1, force=True)
    assert alone.binary["sha256"] == shared.binary["sha256"], "the compiler saw the same text"
    assert alone.manifest()["inputs"] == shared.manifest()["inputs"], "and what it read is accounted for"


def test_a_header_that_is_read_through_the_precompiled_one_is_an_input_of_each_unit(folder, own_store):
    """The objects of the units know the header's own files, so an object is not taken over when one has changed."""
    cls = five_of_torch(folder)
    cls().build(jobs=1)
    records = [json.loads(path.read_text()) for path in own_store.glob("v1/objects/*/*.json")]
    named = [{file[1] for file in record["files"]} for record in records]
    assert len(named) == 5
    for path in ("include/torch/csrc/stable/tensor.h", "include/torch/headeronly/core/ScalarType.h"):
        assert sum(path in files for files in named) >= 4, path


def test_few_units_make_no_precompiled_header(folder):
    titles = []
    five_of_torch(folder)().build(jobs=2, on_progress=lambda *step: titles.append(step[2]))
    assert len(titles) >= 6 and not [title for title in titles if title.startswith("precompile")]
