"""What flags name is an input too: folders that are searched, files of further arguments, the compiler's own words."""

from __future__ import annotations

import os
import shutil
import subprocess
import time

import pytest
from support import sample_ops, text_files

from opforge.builders.declaration import machine
from opforge.builders.run.reads.files_read import LATER_FLAGS, folders_in_flags
from opforge.cache.filesystem.disk import Disk
from opforge.foundation.remembered_values import RACY_NS

SOURCE = "#include <shadowed.h>\n" + sample_ops.EXPORT + " int value() { return SHADOWED; }\n"


def value(folder, **attributes):
    """Returns what the op that is declared with these attributes returns now, and where it came from."""
    module = sample_ops.builder_class(folder, "plain", abi="c", **attributes)().load()
    return module.value(), module.origin


@pytest.fixture
def folders(tmp_path):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    return tmp_path / "first", tmp_path / "second"


def test_a_header_that_appears_in_an_earlier_folder_of_a_flag_is_seen(tmp_path, folders):
    first, second = folders
    text_files.write(tmp_path, "plain.cpp", SOURCE)
    text_files.write(second, "shadowed.h", "#define SHADOWED 1\n")
    flags = [f"-I{first}", "-isystem", str(second)]
    assert value(tmp_path, extra_compile_args=flags) == (1, "built")
    text_files.write(first, "shadowed.h", "#define SHADOWED 2\n")
    assert value(tmp_path, extra_compile_args=flags) == (2, "built")


def test_a_header_that_appears_in_an_earlier_folder_of_cxxflags_is_seen(tmp_path, folders, monkeypatch):
    text_files.write(tmp_path, "plain.cpp", SOURCE)
    text_files.write(folders[1], "shadowed.h", "#define SHADOWED 1\n")
    monkeypatch.setenv("CXXFLAGS", f"-I{folders[0]} -I{folders[1]}")
    assert value(tmp_path) == (1, "built")
    text_files.write(folders[0], "shadowed.h", "#define SHADOWED 2\n")
    assert value(tmp_path) == (2, "built")


@pytest.mark.parametrize(
    "lists", ["-MMD -MP", "-MD -MF mine.d -MT mine.o", "--write-user-dependencies", "-Wp,-MMD,mine.d"]
)
@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_all_headers_are_compared_whatever_list_of_them_the_flags_request(
    tmp_path, folders, monkeypatch, compiler, lists
):
    if not shutil.which(compiler):
        pytest.skip(f"{compiler} is not installed")
    text_files.write(tmp_path, "plain.cpp", SOURCE)
    monkeypatch.setenv("CXX", compiler)
    monkeypatch.setenv("CXXFLAGS", f"{lists} -isystem {folders[0]}")
    for number in (1, 2):
        text_files.write(folders[0], "shadowed.h", f"#define SHADOWED {number}\n")
        assert value(tmp_path) == (number, "built")


def test_a_list_of_headers_that_the_flags_request_does_not_hide_the_flags_behind_it(tmp_path, folders, monkeypatch):
    text_files.write(tmp_path, "plain.cpp", f"{SOURCE}#if !__has_include(NAME)\n#endif\n")
    text_files.write(folders[0], "shadowed.h", "#define SHADOWED 1\n#define NAME <none.h>\n")
    monkeypatch.setenv("CXXFLAGS", f"-MD -I{folders[0]}")
    assert value(tmp_path) == (1, "built")


def test_every_spelling_of_a_folder_to_be_searched_is_known():
    flags = ["-O2", "-I/a", "-I", "/b", "-isystem/c", "-iquote", "/d", "-idirafter", "/e", "-L/f", "-Irelative", "/g.o"]
    assert folders_in_flags(flags) == ["/a", "/b", "/c", "/d", "/f"]
    assert folders_in_flags(flags, LATER_FLAGS) == ["/e"]
    long = ["--include-directory=/a", "--include-directory", "/b", "--library-directory=/c", "--library-path", "/d"]
    assert folders_in_flags(long) == ["/a", "/b", "/c", "/d"]
    passed_on = ["-Wl,-L/a,-L,/b", "-Xlinker", "-L", "-Xlinker", "/c", "-Wp,-I/d", "-Wa,-I/e", "-Xcompiler=-I/f,-I/g"]
    assert folders_in_flags(passed_on) == ["/a", "/b", "/c", "/d", "/e", "/f", "/g"]


@pytest.mark.parametrize("option", ["@{}/flags", "-Wl,@{}/flags"])
def test_a_library_that_appears_in_an_earlier_folder_of_a_file_of_arguments_is_seen(tmp_path, folders, option):
    text_files.write(tmp_path, "flags", f"-L{folders[0]} -L{folders[1]}\n")
    source = 'extern "C" int two();' + sample_ops.EXPORT + " int value() { return two(); }\n"
    text_files.write(tmp_path, "plain.cpp", source)
    for folder, number in ((folders[1], 1), (folders[0], 2)):
        source = text_files.write(folder, "two.cpp", f'extern "C" int two() {{ return {number}; }}\n')
        subprocess.run(["g++", "-fPIC", "-c", source, "-o", f"{folder}/two.o"], check=True)
        subprocess.run(["ar", "rcs", f"{folder}/libtwo.a", f"{folder}/two.o"], check=True)
        assert value(tmp_path, extra_link_args=[option.format(tmp_path), "-ltwo"]) == (number, "built")


def test_a_file_of_arguments_that_names_itself_is_read_once(tmp_path):
    text_files.write(tmp_path, "flags", f"-I/a @{tmp_path}/flags\n")
    assert folders_in_flags([f"@{tmp_path}/flags"]) == ["/a"]


@pytest.mark.parametrize("option", ["-I{}", "--include-directory={}"])
def test_a_header_that_appears_in_an_earlier_folder_of_a_file_of_arguments_is_seen(tmp_path, folders, option):
    text_files.write(tmp_path, "plain.cpp", SOURCE)
    text_files.write(tmp_path, "flags", "\n".join(option.format(folder) for folder in folders))
    for folder, number in ((folders[1], 1), (folders[0], 2)):
        text_files.write(folder, "shadowed.h", f"#define SHADOWED {number}\n")
        assert value(tmp_path, extra_compile_args=[f"@{tmp_path}/flags"]) == (number, "built")


def test_a_header_that_appears_in_a_folder_of_the_compilers_own_precedes_one_of_idirafter(tmp_path, folders):
    text_files.write(tmp_path, "plain.cpp", SOURCE)
    (folders[0] / "include").mkdir()  # g++ searches it by itself if the folder of -B has it
    flags = [f"-B{folders[0]}/", "-idirafter", str(folders[1])]
    for folder, number in ((folders[1], 1), (folders[0] / "include", 2)):
        text_files.write(folder, "shadowed.h", f"#define SHADOWED {number}\n")
        assert value(tmp_path, extra_compile_args=flags) == (number, "built")


@pytest.mark.parametrize("kind", [".a", ".so"])
def test_a_library_that_appears_in_an_earlier_folder_is_seen(tmp_path, folders, kind):
    text_files.write(
        tmp_path, "plain.cpp", 'extern "C" int two();' + sample_ops.EXPORT + " int value() { return two(); }\n"
    )
    for folder, number in zip(folders, (2, 1), strict=True):
        source = text_files.write(folder, "two.cpp", f'extern "C" int two() {{ return {number}; }}\n')
        subprocess.run(["g++", "-fPIC", "-c", source, "-o", f"{folder}/two.o"], check=True)
    subprocess.run(["ar", "rcs", f"{folders[1]}/libtwo.a", f"{folders[1]}/two.o"], check=True)
    flags = [f"-L{folders[0]}", f"-L{folders[1]}", f"-Wl,-rpath,{folders[0]}", "-ltwo"]
    assert value(tmp_path, extra_link_args=flags) == (1, "built")
    making = ["ar", "rcs"] if kind == ".a" else ["g++", "-shared", "-o"]
    subprocess.run([*making, f"{folders[0]}/libtwo{kind}", f"{folders[0]}/two.o"], check=True)
    assert value(tmp_path, extra_link_args=flags) == (2, "built")


def test_a_changed_file_of_further_arguments_is_seen(tmp_path):
    text_files.write(tmp_path, "plain.cpp", sample_ops.EXPORT + " int value() { return VALUE; }\n")
    text_files.write(tmp_path, "flags.txt", "-DVALUE=1\n")
    flags = [f"@{tmp_path}/flags.txt"]
    assert value(tmp_path, extra_compile_args=flags) == (1, "built")
    text_files.write(tmp_path, "flags.txt", "-DVALUE=2\n")
    assert value(tmp_path, extra_compile_args=flags) == (2, "built")


def test_a_compiler_that_another_program_starts_is_known_by_its_content(tmp_path, monkeypatch):
    text_files.write(tmp_path, "plain.cpp", sample_ops.EXPORT + " int value() { return VALUE; }\n")
    monkeypatch.setenv("CXX", f"env {tmp_path}/wrapper")
    for number in (1, 2):
        text_files.write_script(tmp_path, "wrapper", f'exec g++ -DVALUE={number} "$@"')
        assert value(tmp_path) == (number, "built")


def test_a_forced_build_with_the_same_flags_from_another_variable_sets_no_entry_aside(
    tmp_path, monkeypatch, warnings_of_the_cache
):
    cls = sample_ops.plain_op(tmp_path / "op")
    monkeypatch.setenv("CXXFLAGS", "-DEXTRA=1")
    first = cls().build()
    monkeypatch.delenv("CXXFLAGS")
    monkeypatch.setenv("CPPFLAGS", "-DEXTRA=1")
    assert cls().build(force=True).key == first.key
    assert warnings_of_the_cache() == []


def test_a_header_that_appears_and_shadows_none_damages_no_entry(tmp_path, warnings_of_the_cache):
    (tmp_path / "folder").mkdir()
    cls = sample_ops.plain_op(tmp_path / "op", include_dirs=[str(tmp_path / "folder")])
    first = cls().build()
    text_files.write(tmp_path / "folder", "value.h", "#define VALUE 2\n")  # the one beside the source is read
    second = cls().build()
    assert (second.origin, second.key) == ("built", first.key)
    assert cls().build().origin == "cache"
    assert warnings_of_the_cache() == []


@pytest.mark.parametrize("variable", ["", "CXXFLAGS", "CXX", "file"])
def test_what_is_built_for_this_very_processor_is_not_used_on_another_of_its_level(tmp_path, monkeypatch, variable):
    """A home folder may be on several machines."""
    monkeypatch.setattr(Disk, "now_ns", lambda _disk: time.time_ns() + 10 * RACY_NS)  # so that look-ups are remembered
    text_files.write(tmp_path, "plain.cpp", sample_ops.EXPORT + " int value() { return 1; }\n")
    flags = ["-march=native"] if not variable else []
    if variable == "file":
        text_files.write(tmp_path, "inner", "-O2 -march=native\n")
        flags = ["@" + text_files.write(tmp_path, "outer", f"-DX '@{tmp_path}/inner'\n")]
    elif variable:
        monkeypatch.setenv(variable, "g++ -march=native" if variable == "CXX" else "-O2 -march=native")
    cls = sample_ops.builder_class(tmp_path, "plain", abi="c", extra_compile_args=flags)
    for features, origin in (("avx2 amx", "built"), ("avx2 fma4", "built"), ("amx hypervisor avx2", "cache")):
        text = f"processor : 0\nmodel : 1\ncpu MHz : {len(origin)}\nflags : {features}\n\nprocessor : 1\n"
        monkeypatch.setattr(machine, "CPU_INFO", text_files.write(tmp_path, "cpuinfo", text))
        assert [cls().build().origin for _load in range(2)] == [origin, "cache"]
    monkeypatch.setenv("OPFORGE_CACHE_LAYERS", os.environ["OPFORGE_CACHE_DIR"])
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(tmp_path / "other store"))
    assert cls().build().origin == os.environ["OPFORGE_CACHE_LAYERS"]
    text_files.write(tmp_path, "cpuinfo", "processor : 0\nmodel : 2\n")
    builder = cls()
    assert builder.build().origin == "built"
    assert any("on another processor" in rejected.reason for rejected in builder.trace)
