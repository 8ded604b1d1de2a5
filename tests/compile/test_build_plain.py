"""Builds of plain C functions: what a build leaves, what makes another one, what an error says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading

import fakes
import pytest

import opforge
from opforge.builders import roots
from opforge.errors import (
    BuilderError,
    BuildResourceError,
    CompileError,
    SourceNotFoundError,
    ToolchainNotFoundError,
    UnstableInputError,
)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "op"


def store_of(entry):
    return os.path.dirname(os.path.dirname(entry.folder))


def staged(entry_or_store):
    return os.listdir(os.path.join(str(entry_or_store), "staging"))


def test_a_cold_build_then_a_hit(folder):
    cls = fakes.plain_op(folder, value=7)
    built, found = cls().obtain(), cls().obtain()
    assert (built.origin, found.origin) == ("built", "cache")
    assert built.library == found.library
    assert cls().load().value() == 7
    assert staged(store_of(built)) == []


def test_the_library_has_its_key_in_its_name_and_cannot_be_written(folder):
    entry = fakes.plain_op(folder)().obtain()
    assert os.path.basename(entry.library) == f"plain-{entry.result[:16]}.so"
    assert os.stat(entry.library).st_mode & 0o777 == 0o500
    assert os.stat(entry.folder).st_mode & 0o077 == 0


def test_an_edited_header_is_another_build_and_going_back_is_a_hit(folder):
    cls = fakes.plain_op(folder, value=1)
    first = cls().obtain()
    fakes.set_value(folder, 2)
    builder = cls()
    second = builder.obtain()
    assert second.origin == "built" and second.result != first.result
    assert [one.reason for one in builder.trace] == [f"{folder}/value.h has changed"]
    fakes.set_value(folder, 1)
    third = cls().obtain()
    assert third.origin == "cache" and third.result == first.result


def test_both_versions_can_be_called_in_one_process(folder):
    cls = fakes.plain_op(folder, value=1)
    builder = cls()
    first = builder.load()
    assert builder.load() is first
    fakes.set_value(folder, 2)
    second = builder.load()
    assert (first.value(), second.value()) == (1, 2)
    fakes.set_value(folder, 1)
    assert builder.load() is first


def test_a_header_changed_under_an_old_mtime_is_seen(folder):
    cls = fakes.plain_op(folder, value=1)
    header = folder / "value.h"
    old = header.stat()
    assert cls().load().value() == 1
    fakes.set_value(folder, 2)
    os.utime(header, ns=(old.st_atime_ns, old.st_mtime_ns))
    assert cls().load().value() == 2


def test_a_header_that_shadows_another_is_seen(folder):
    cls = fakes.plain_op(folder, source=fakes.PLAIN.replace('"value.h"', "<inner.h>"), include_dirs=["early", "late"])
    for name in ("early", "late"):
        (folder / name).mkdir()
    fakes.write(folder / "late", "inner.h", "#define VALUE 1\n")
    assert cls().load().value() == 1
    fakes.write(folder / "early", "inner.h", "#define VALUE 2\n")
    builder = cls()
    assert builder.load().value() == 2
    assert [one.reason for one in builder.trace] == [f"{folder}/early/inner.h has appeared, and may shadow a header"]
    (folder / "early" / "inner.h").unlink()
    assert cls().load().value() == 1


def test_a_header_that_answers_has_include_is_seen(folder):
    asking = '#if __has_include("extra/more.h")\n#include "extra/more.h"\n#else\n#define VALUE 1\n#endif\n'
    source = f"{asking}{fakes.EXPORT} int value() {{ return VALUE; }}\n"
    cls = fakes.plain_op(folder, source=source)
    assert cls().load().value() == 1
    (folder / "extra").mkdir()
    fakes.write(folder / "extra", "more.h", "#define VALUE 2\n")
    assert cls().load().value() == 2


def test_a_header_outside_every_root_is_watched(folder, tmp_path):
    (tmp_path / "outside").mkdir()
    fakes.write(tmp_path / "outside", "value.h", "#define VALUE 1\n")
    cls = fakes.plain_op(folder, source=fakes.PLAIN.replace('"value.h"', '"../outside/value.h"'))
    assert cls().load().value() == 1
    fakes.write(tmp_path / "outside", "value.h", "#define VALUE 2\n")
    assert cls().load().value() == 2


def test_a_header_reached_through_a_linked_folder_is_watched(folder, tmp_path):
    """`link/../x.h` is beside what the link leads to, not beside the link."""
    (tmp_path / "away" / "inc").mkdir(parents=True)
    fakes.write(tmp_path / "away", "value.h", "#define VALUE 1\n")
    cls = fakes.plain_op(folder, source=fakes.PLAIN.replace('"value.h"', '"link/../value.h"'), value=9)
    (folder / "link").symlink_to(tmp_path / "away" / "inc")
    assert cls().load().value() == 1
    fakes.write(tmp_path / "away", "value.h", "#define VALUE 2\n")
    assert cls().load().value() == 2


def test_an_archive_that_is_linked_in_is_an_input_too(folder, tmp_path):
    def archive(value):
        fakes.write(tmp_path, "dep.c", f"int dep(void) {{ return {value}; }}\n")
        subprocess.run(["gcc", "-fPIC", "-c", "dep.c"], cwd=tmp_path, check=True)
        subprocess.run(["ar", "rcs", "libdep.a", "dep.o"], cwd=tmp_path, check=True)

    source = f'extern "C" int dep(void);\n{fakes.EXPORT} int value() {{ return dep(); }}\n'
    cls = fakes.plain_op(folder, source=source, libraries=["dep"], link_flags=[f"-L{tmp_path}"])
    archive(1)
    assert cls().load().value() == 1
    archive(2)
    assert cls().load().value() == 2


def test_an_include_folder_inside_the_ops_own_does_not_make_every_look_up_a_miss(folder, monkeypatch):
    cls = fakes.plain_op(folder, include_dirs=[str(folder / "inc")], source='#include "inc/x.h"\n' + fakes.PLAIN)
    (folder / "inc").mkdir()
    fakes.write(folder / "inc", "x.h", "")
    cls().obtain()
    monkeypatch.setenv("OPFORGE_PARANOID", "1")
    builder = cls()
    assert builder.obtain().origin == "cache", builder.trace


def test_a_moved_tree_is_a_hit_and_its_bytes_are_the_same(folder, tmp_path, monkeypatch):
    cls = fakes.plain_op(folder)
    first = cls().obtain()
    shutil.copytree(folder, tmp_path / "elsewhere" / "deeper")
    moved = fakes.plain_op(tmp_path / "elsewhere" / "deeper")
    second = moved().obtain()
    assert (second.origin, second.result) == ("cache", first.result)
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(tmp_path / "another store"))
    third = moved().obtain()
    assert (third.origin, third.result) == ("built", first.result)
    with open(first.library, "rb") as one, open(third.library, "rb") as other:
        assert one.read() == other.read()


def test_a_file_name_of_any_spelling_is_built(folder):
    name = "with space $dollar #hash.cpp"
    cls = fakes.plain_op(folder, sources=[name])
    os.rename(folder / "plain.cpp", folder / name)
    assert cls().load().value() == 1


def test_paranoia_finds_the_entry_by_its_contents(folder, monkeypatch):
    monkeypatch.setenv("OPFORGE_PARANOID", "1")
    cls = fakes.plain_op(folder)
    assert cls().obtain().origin == "built"
    assert cls().obtain().origin == "cache"


def test_force_builds_whatever_is_stored(folder):
    cls = fakes.plain_op(folder)
    first = cls().obtain()
    seen = []
    again = cls().obtain(on_progress=lambda *step: seen.append(step), force=True)
    assert seen, "the compiler ran"
    assert again.result == first.result


def test_progress_counts_the_steps(folder):
    seen = []
    fakes.plain_op(folder)().obtain(on_progress=lambda *step: seen.append(step))
    assert seen == [(1, 2, "compile plain.cpp"), (2, 2, "link plain")]


# -- what the environment asks for -------------------------------------------------------------------------------------


def test_cxxflags_are_honoured_and_in_the_key(folder, monkeypatch):
    fakes.plain_op(folder)
    fakes.write(folder, "value.h", "#ifndef VALUE\n#define VALUE 1\n#endif\n")
    cls = fakes.builder_class(folder, "plain", abi="c")
    first = cls().obtain()
    monkeypatch.setenv("CXXFLAGS", "-DVALUE=5")
    assert cls().obtain().result != first.result
    assert cls().load().value() == 5
    monkeypatch.delenv("CXXFLAGS")
    assert cls().obtain().result == first.result


def test_ldflags_are_honoured_and_in_the_key(folder, monkeypatch):
    cls = fakes.plain_op(folder)
    first = cls().obtain()
    monkeypatch.setenv("LDFLAGS", "-Wl,-soname,from-ldflags.so")
    entry = cls().obtain()
    assert entry.result != first.result
    notes = subprocess.run(["readelf", "-d", entry.library], capture_output=True, text=True, check=True).stdout
    assert "[from-ldflags.so]" in notes


def test_cxx_is_honoured_and_in_the_key(folder, tmp_path, monkeypatch):
    cls = fakes.plain_op(folder)
    first = cls().obtain()
    wrapper = fakes.compiler(tmp_path, "my-g++", f'touch {tmp_path}/ran; exec g++ -DEXTRA "$@"')
    monkeypatch.setenv("CXX", wrapper)
    assert cls().obtain().result != first.result
    assert (tmp_path / "ran").exists()


def test_a_cpath_folder_is_watched(folder, tmp_path, monkeypatch):
    (tmp_path / "cpath").mkdir()
    cls = fakes.plain_op(folder, source=fakes.PLAIN.replace('"value.h"', "<from_cpath.h>"))
    monkeypatch.setenv("CPATH", str(tmp_path / "cpath"))
    fakes.write(tmp_path / "cpath", "from_cpath.h", "#define VALUE 1\n")
    assert cls().load().value() == 1
    fakes.write(tmp_path / "cpath", "from_cpath.h", "#define VALUE 2\n")
    assert cls().load().value() == 2


@pytest.mark.skipif(shutil.which("clang++") is None, reason="needs clang++ (apt install clang)")
def test_clang_builds_it_too(folder, monkeypatch):
    cls = fakes.plain_op(folder)
    first = cls().obtain()
    monkeypatch.setenv("CXX", "clang++")
    assert cls().obtain().result != first.result
    assert cls().load().value() == 1


def test_without_a_compiler_what_was_built_is_still_found(folder, tmp_path, monkeypatch):
    cls = fakes.plain_op(folder)
    first = cls().obtain()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cls().obtain().result == first.result


def test_without_a_compiler_an_edited_header_is_no_stale_hit(folder, tmp_path, monkeypatch):
    cls = fakes.plain_op(folder, value=1)
    cls().obtain()
    fakes.set_value(folder, 2)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolchainNotFoundError, match="apt install g\\+\\+"):
        cls().load()


# -- roots -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package with kernels in its csrc folder."""
    place = tmp_path / "site" / "kernels_of_another"
    (place / "csrc" / "include").mkdir(parents=True)
    fakes.write(place, "__init__.py", "raise ImportError('must not be imported')")
    fakes.write(place / "csrc", "theirs.cpp", f"#include <theirs.h>\n{fakes.EXPORT} int value() {{ return VALUE; }}\n")
    fakes.write(place / "csrc" / "include", "theirs.h", "#define VALUE 11\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    return place


def test_kernels_of_another_package_are_read_where_they_lie(folder, package):
    folder.mkdir()
    root = roots.package_root("theirs", "kernels_of_another")
    cls = fakes.builder_class(folder, "theirs", abi="c", kernel_roots=[root])
    assert cls().load().value() == 11
    assert os.listdir(folder) == []
    fakes.write(package / "csrc" / "include", "theirs.h", "#define VALUE 12\n")
    assert cls().load().value() == 12


def test_an_earlier_root_overrides_a_later_one(folder, package, tmp_path):
    folder.mkdir()
    (tmp_path / "mine").mkdir()
    theirs = roots.package_root("theirs", "kernels_of_another")
    mine = roots.KernelRoot("mine", str(tmp_path / "mine"))
    cls = fakes.builder_class(folder, "theirs", abi="c", kernel_roots=[mine, theirs])
    assert cls().load().value() == 11
    fakes.write(tmp_path / "mine", "theirs.cpp", f"{fakes.EXPORT} int value() {{ return 13; }}\n")
    assert cls().load().value() == 13
    fakes.write(folder, "theirs.cpp", f"{fakes.EXPORT} int value() {{ return 14; }}\n")
    assert cls().load().value() == 14


def test_an_earlier_roots_header_overrides_a_later_ones(folder, package, tmp_path):
    folder.mkdir()
    (tmp_path / "mine" / "include").mkdir(parents=True)
    theirs = roots.package_root("theirs", "kernels_of_another")
    mine = roots.KernelRoot("mine", str(tmp_path / "mine"))
    cls = fakes.builder_class(folder, "theirs", abi="c", kernel_roots=[mine, theirs])
    assert cls().load().value() == 11
    fakes.write(tmp_path / "mine" / "include", "theirs.h", "#define VALUE 15\n")
    assert cls().load().value() == 15


# -- debugging ---------------------------------------------------------------------------------------------------------


def test_debug_keeps_the_source_path(folder):
    source = str(folder / "plain.cpp")
    cls = fakes.plain_op(folder)
    for builder, seen in ((cls(debug=True), True), (cls(), False)):
        said = subprocess.run(
            ["readelf", "--debug-dump=info", builder.obtain().library], capture_output=True, text=True, check=True
        )
        assert (source in said.stdout) is seen


def test_a_debug_build_of_a_moved_tree_names_the_new_place(folder, tmp_path):
    fakes.plain_op(folder)(debug=True).obtain()
    shutil.copytree(folder, tmp_path / "moved")
    shutil.rmtree(folder)
    entry = fakes.plain_op(tmp_path / "moved")(debug=True).obtain()
    said = subprocess.run(["readelf", "--debug-dump=info", entry.library], capture_output=True, text=True, check=True)
    assert str(tmp_path / "moved") in said.stdout


@pytest.mark.skipif(shutil.which("gdb") is None, reason="needs gdb (apt install gdb)")
def test_gdb_finds_the_source_line(folder):
    entry = fakes.plain_op(folder)(debug=True).obtain()
    said = subprocess.run(
        ["gdb", "-batch", "-nx", "-ex", "info line value", entry.library], capture_output=True, text=True, check=False
    )
    assert re.search(r'Line 2 of "\S*plain.cpp"', said.stdout), said


def test_sanitize_builds_and_names_its_runtime(folder):
    entry = fakes.plain_op(folder)(sanitize="address").obtain()
    assert any("libasan" in name for name in entry.binary["needs"])


def test_loading_a_sanitized_op_without_its_runtime_is_an_error_that_says_what_to_preload(folder, own_store):
    fakes.plain_op(folder)(sanitize="address").obtain()
    code = """
import fakes, os
from opforge.errors import LoadError
try:
    fakes.plain_op(os.environ["FOLDER"])(sanitize="address").load()
except LoadError as error:
    print("LD_PRELOAD" in str(error), error)
"""
    assert fakes.python(code, env={"FOLDER": str(folder)}).startswith("True"), (
        "the process must survive and say what to do"
    )


# -- errors ------------------------------------------------------------------------------------------------------------


def refused(cls, kind=CompileError):
    with pytest.raises(kind) as caught:
        cls().load()
    return str(caught.value)


def test_a_syntax_error_shows_its_place_first(folder, own_store):
    cls = fakes.plain_op(folder, source="int ok;\nint value( { return 1; }\nint more;\n")
    text = refused(cls)
    lines = text.splitlines()
    assert re.match(rf"plain: compile plain.cpp failed: {folder}/plain.cpp:2:\d+: error: ", lines[0])
    assert lines[1:4] == ["     1 | int ok;", ">    2 | int value( { return 1; }", "     3 | int more;"]
    assert lines[4].startswith("command: ") and "g++" in lines[4]
    log = lines[5].removeprefix("full log: ")
    with open(log) as file:
        assert "error: " in file.read()
    assert len(lines) == 6
    assert staged(own_store / "v1") == []


def test_a_missing_header_says_where_to_name_its_folder(folder):
    text = refused(fakes.plain_op(folder, source='#include "no/such.h"\n'))
    assert re.search(
        r"plain.cpp:1:10: error: no/such.h: No such file or directory\n\(add the folder that holds no/such.h", text
    )


def test_a_library_that_is_not_there_is_named(folder):
    text = refused(fakes.plain_op(folder, libraries=["no_such_library_here"]))
    assert re.match(r"plain: link plain failed: .*no_such_library_here", text), text


def test_a_missing_source_is_named_with_where_it_was_sought(folder):
    text = refused(fakes.plain_op(folder, sources=["gone.cpp"]), SourceNotFoundError)
    assert f"The op 'plain' names 'gone.cpp', which does not exist. Looked in:\n  - {folder}\n" in text


def test_no_compiler_says_what_to_install(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    text = refused(fakes.plain_op(folder), ToolchainNotFoundError)
    assert "Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++" in text


def test_a_mended_source_builds(folder):
    cls = fakes.plain_op(folder, source="broken")
    refused(cls)
    fakes.plain_op(folder)
    assert cls().load().value() == 1


def test_plain_functions_need_no_attribute_and_two_versions_keep_their_state_apart(folder):
    state = """#include "value.h"
struct Inline { static inline int count = 0; };
template <typename T> struct Template { static int count; };
template <typename T> int Template<T>::count = 0;
extern "C" int step() { return VALUE; }
extern "C" int by_inline() { return Inline::count += step(); }
extern "C" int by_template() { return Template<int>::count += step(); }
"""
    builder = fakes.plain_op(folder, source=state, value=1)()
    first = builder.load()
    fakes.set_value(folder, 10)
    second = builder.load()
    for name in ("by_inline", "by_template"):
        old, new = getattr(first, name), getattr(second, name)
        assert [old(), new(), old(), new()] == [1, 10, 2, 20], name


def test_a_library_without_plain_functions_is_an_error_that_says_how(folder):
    cls = fakes.plain_op(folder, source="int value() { return 1; }\n")
    assert refused(cls).startswith(
        'plain: the library exports no function that can be called by name. Begin each with: extern "C"'
    )


def test_a_signature_gives_the_function_its_types(folder):
    import ctypes

    source = f"{fakes.EXPORT} double half(double x) {{ return x / 2; }}\n"
    cls = fakes.plain_op(folder, source=source, signatures={"half": (ctypes.c_double, [ctypes.c_double])})
    op = cls().load()
    assert op.half(3.0) == 1.5
    assert "half" in dir(op)
    with pytest.raises(AttributeError, match="the op 'plain' has no function 'whole'; it has: half"):
        op.whole


def test_other_signatures_give_another_object_and_leave_the_first(folder):
    import ctypes

    fakes.plain_op(folder, source=f"{fakes.EXPORT} double half(double x) {{ return x / 2; }}\n")
    path = folder / "plain.cpp"
    first = opforge.load("half", path, signatures={"half": (ctypes.c_double, [ctypes.c_double])})
    second = opforge.load("half", path, signatures={"half": (None, [ctypes.c_double])})
    assert (first.half(3.0), second.half(3.0), first.half(5.0)) == (1.5, None, 2.5)
    assert opforge.load("half", path, signatures={"half": (ctypes.c_double, [ctypes.c_double])}).half(3.0) == 1.5


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"abi": "c", "fakes": {"value": len}}, "fakes with abi='c'. Give them to torch.library.register_fake"),
        ({"abi": "torch", "fakes": {"value": len}}, "fakes with abi='torch'. Give them to torch.library.register_fake"),
        (
            {"abi": "torch", "signatures": {"value": (None, [])}},
            "signatures with abi='torch'. They are for abi='c' alone",
        ),
    ],
)
def test_what_an_abi_has_no_use_for_is_refused(folder, given, message):
    cls = fakes.plain_op(folder, **{name: value for name, value in given.items() if name != "abi"})
    cls.abi = given["abi"]
    with pytest.raises(BuilderError, match=re.escape(f"TestedBuilder: {message}")):
        cls().load()


def test_a_file_that_keeps_changing_is_an_error_that_names_it(folder, own_store):
    cls = fakes.plain_op(folder)
    stop = threading.Event()

    def scribble():
        number = 0
        while not stop.wait(0.002):
            number += 1
            fakes.write(folder, ".new", f"#define VALUE {number}\n")
            os.replace(folder / ".new", folder / "value.h")

    thread = threading.Thread(target=scribble)
    thread.start()
    try:
        text = refused(cls, UnstableInputError)
    finally:
        stop.set()
        thread.join()
    assert text == (
        f"plain: these files kept changing while they were compiled; stop writing to them:\n  - {folder}/value.h"
    )
    assert staged(own_store / "v1") == []


def test_a_file_that_changes_while_it_is_compiled_is_compiled_again(folder):
    cls = fakes.plain_op(folder, source=fakes.GATED, value=1)
    fakes.close_gate(folder)

    def edit():
        fakes.wait_for(lambda: fakes.compilers(folder))
        fakes.set_value(folder, 2)
        fakes.open_gate(folder)

    thread = threading.Thread(target=edit)
    thread.start()
    op = cls().load()
    thread.join()
    assert op.value() == 2
    found = cls()
    assert found.obtain().origin == "cache"


def test_a_compiler_that_is_killed_is_a_matter_of_memory(folder):
    cls = fakes.plain_op(folder, source=fakes.GATED)
    fakes.close_gate(folder)

    def kill():
        for pid in fakes.wait_for(lambda: fakes.compilers(folder)):
            os.kill(pid, 9)

    thread = threading.Thread(target=kill)
    thread.start()
    text = refused(cls, BuildResourceError)
    thread.join()
    assert "plain: the build stopped: a compiler was killed, or memory ran out. " in text and "OPFORGE_JOBS=1" in text
    fakes.open_gate(folder)
    assert cls().load().value() == 1


# -- layers ------------------------------------------------------------------------------------------------------------


def test_a_layer_is_used_without_a_compiler(folder, tmp_path, monkeypatch):
    cls = fakes.plain_op(folder, value=3)
    layer = str(tmp_path / "layer")
    monkeypatch.setenv("OPFORGE_CACHE_DIR", layer)
    cls().obtain()
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(tmp_path / "mine"))
    monkeypatch.setenv("OPFORGE_CACHE_LAYERS", layer)
    monkeypatch.setenv("PATH", str(tmp_path))
    entry = cls().obtain()
    assert entry.origin == layer and entry.library.startswith(layer)
    assert cls().load().value() == 3
    assert not (tmp_path / "mine").exists(), "nothing was written"


def test_a_layers_entry_that_does_not_fit_says_why_and_the_op_is_built(folder, tmp_path, monkeypatch):
    import json

    cls = fakes.plain_op(folder)
    layer = str(tmp_path / "layer")
    monkeypatch.setenv("OPFORGE_CACHE_DIR", layer)
    prebuilt = cls().obtain()
    manifest = os.path.join(prebuilt.folder, "manifest.json")
    with open(manifest) as file:
        said = json.load(file)
    said["binary"]["floors"]["GLIBC"] = "9.9"
    fakes.write(prebuilt.folder, "manifest.json", json.dumps(said))
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(tmp_path / "mine"))
    monkeypatch.setenv("OPFORGE_CACHE_LAYERS", layer)
    builder = cls()
    assert builder.obtain().origin == "built"
    first = builder.trace[0]
    assert first.where == prebuilt.folder
    assert re.fullmatch(r"it needs glibc 9.9, and this system has 2\.\d+", first.reason)


def test_an_edited_source_is_not_answered_by_a_layer(folder, tmp_path, monkeypatch):
    cls = fakes.plain_op(folder, value=3)
    layer = str(tmp_path / "layer")
    monkeypatch.setenv("OPFORGE_CACHE_DIR", layer)
    cls().obtain()
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(tmp_path / "mine"))
    monkeypatch.setenv("OPFORGE_CACHE_LAYERS", layer)
    fakes.write(folder, "plain.cpp", f"{fakes.EXPORT} int value() {{ return 4; }}\n")
    builder = cls()
    assert builder.load().value() == 4
    assert builder.trace[0].reason == "holds no entry for this description"


def test_an_edited_source_is_seen_by_a_builder_that_a_layer_has_served(folder, tmp_path, monkeypatch):
    cls = fakes.plain_op(folder, value=3)
    layer = str(tmp_path / "layer")
    monkeypatch.setenv("OPFORGE_CACHE_DIR", layer)
    cls().obtain()
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(tmp_path / "mine"))
    monkeypatch.setenv("OPFORGE_CACHE_LAYERS", layer)
    builder = cls()
    assert builder.load().value() == 3
    fakes.write(folder, "plain.cpp", f"{fakes.EXPORT} int value() {{ return 4; }}\n")
    assert builder.load().value() == 4
