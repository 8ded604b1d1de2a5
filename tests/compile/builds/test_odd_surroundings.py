"""Unusual names, locales and compilers: the op is built correctly, or the error says what to do."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import sys
import time

import pytest
from support import child_processes, sample_ops, text_files

import opforge
from opforge.cache.filesystem.disk import Disk
from opforge.errors import (
    BuilderError,
    BuildError,
    BuildResourceError,
    CacheDirError,
    CompileError,
    SourceNotFoundError,
)
from opforge.foundation.remembered_values import RACY_NS

WRAPPER = """\
case "$*" in *" -c "*) step=compile;; *libtorch*) step=stub;; *-shared*) step=link;; *) step=probe;; esac
for last in "$@"; do :; done
@BODY@
exec g++ "$@"
"""


NAMES = ["a b", "a'b\"c", "$HOME `id`", "a;b&c|d>e", "a\\b\\", "#a", "größe", "a\udcff"]


def test_a_folder_may_have_any_name(tmp_path, monkeypatch):
    folder = tmp_path.joinpath(*NAMES)
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(folder / "store"))
    assert sample_ops.plain_op(folder)().load().value() == 1
    assert sample_ops.builder_class(folder, "plain", abi="c")().build().origin == "cache"
    sample_ops.set_value(folder, 2)
    assert sample_ops.builder_class(folder, "plain", abi="c")().load().value() == 2


def test_a_file_below_a_folder_whose_name_is_no_text_is_an_error_that_names_it(tmp_path):
    sample_ops.plain_op(tmp_path / "a\udcff")
    path = tmp_path / "a\udcff" / "plain.cpp"
    other = text_files.write(tmp_path, "other.cpp", "")
    problem = (
        r"plain: it cannot be recorded: its record would name 'a\\udcff/plain.cpp', which is not UTF-8. Rename that"
    )
    with pytest.raises(BuildError, match=problem):
        opforge.load("plain", [path, other], abi="c")


@pytest.mark.parametrize("name", ["a\nb", "a\rb"])
def test_a_line_break_in_a_path_is_an_error(tmp_path, name):
    with pytest.raises(
        BuilderError, match=r"compile plain.cpp: .* has a line break. Rename it, or remove the line break"
    ):
        sample_ops.plain_op(tmp_path / name)().load()


def test_a_malformed_signature_is_an_error(tmp_path):
    sample_ops.plain_op(tmp_path)
    with pytest.raises(BuilderError, match=r"signatures={'value': 5}. Expected function -> \(result, \[arguments\]\)"):
        opforge.load("plain", tmp_path / "plain.cpp", signatures={"value": 5})


def test_paths_and_errors_are_decoded_in_an_ascii_locale(tmp_path):
    folder = tmp_path / "größe"
    sample_ops.plain_op(folder)
    text_files.write(folder, "broken.cpp", "größe x;\n")
    code = """
import os, sys, opforge
from opforge.errors import CompileError
assert sys.getfilesystemencoding() == "ascii"
os.chdir(os.environ["FOLDER"])
print(opforge.load("plain", "plain.cpp").value())
try:
    opforge.load("broken", "broken.cpp")
except CompileError as error:
    print("broken.cpp:1" in str(error) and ">    1 | " in str(error))
"""
    env = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "FOLDER": str(folder)}
    assert child_processes.run_python(code, env=env).split() == ["1", "True"]


def test_a_python_embedded_in_another_program_builds(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", "")
    assert sample_ops.plain_op(tmp_path)().load().value() == 1


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        (
            "[ $step = compile ] && exit 0",
            CompileError,
            r"compile plain.cpp failed: .* did not write 0.plain.o. .*suffix",
        ),
        ("[ $step = link ] && exit 0", CompileError, r"link plain failed: .* did not write plain.so. Try another CXX"),
        ('[ $step = compile ] && { g++ "$@"; rm *.d; exit 0; }', CompileError, r"did not write 0.plain.o.d"),
        ('[ $step = link ] && { g++ "$@"; : > "$last"; exit 0; }', CompileError, r"linked library cannot be loaded"),
        ("[ $step = compile ] && kill -KILL $$", BuildResourceError, r"a compiler was killed"),
        ("[ $step = compile ] && { echo odd; exit 3; }", CompileError, r"compile plain.cpp failed: odd\ncommand: "),
    ],
)
def test_a_compiler_without_its_output_or_that_fails_is_an_error(tmp_path, monkeypatch, body, error, message):
    cls = sample_ops.plain_op(tmp_path)
    monkeypatch.setenv("CXX", text_files.write_script(tmp_path, "wrapper", WRAPPER.replace("@BODY@", body)))
    with pytest.raises(error, match=message):
        cls().load()
    monkeypatch.delenv("CXX")
    assert cls().load().value() == 1


def test_a_failed_build_is_an_error_although_sigchld_is_ignored(tmp_path):
    source = text_files.write(tmp_path, "broken.cpp", "int value() { return missing; }\n")
    code = """
import os, signal, opforge
from opforge.errors import CompileError
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
try:
    opforge.load("broken", os.environ["SOURCE"], abi="c")
except CompileError as error:
    print("'missing' was not declared" in str(error))
"""
    assert child_processes.run_python(code, env={"SOURCE": source}).split() == ["True"]


def test_a_build_writes_to_no_closed_pipe(tmp_path):
    """SIGPIPE would end a program that embeds Python and does not ignore the signal, and gdb would stop."""
    sample_ops.plain_op(tmp_path)
    code = """
import os, signal, opforge
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
print(opforge.load("plain", os.environ["SOURCE"]).value())
"""
    assert child_processes.run_python(code, env={"SOURCE": str(tmp_path / "plain.cpp")}).split() == ["1"]


def test_a_source_with_an_unknown_suffix_is_an_error(tmp_path):
    source = text_files.write(tmp_path, "plain.CC", sample_ops.EXPORT + " int value() { return 1; }\n")
    with pytest.raises(CompileError, match=r"compile plain.CC failed: .*knows a source by its suffix"):
        opforge.load("plain", source)


def test_a_python_module_of_another_name_is_an_error(tmp_path):
    source = text_files.write(tmp_path, "bound.cpp", 'extern "C" void* PyInit_other() { return nullptr; }\n')
    with pytest.raises(
        CompileError, match=r"module is named 'other', and the op 'bound'. Write PYBIND11_MODULE\(TORCH"
    ):
        opforge.load("bound", source, abi="torch", extra_cflags=["-fvisibility=default"])


def test_an_empty_build_directory_is_ignored(tmp_path, monkeypatch):
    sample_ops.plain_op(tmp_path / "op")
    monkeypatch.chdir(tmp_path / "op")
    assert opforge.load("plain", "plain.cpp", build_directory="").value() == 1
    assert sorted(os.listdir()) == ["plain.cpp", "value.h"]


def test_paths_may_be_path_objects(tmp_path):
    sample_ops.plain_op(tmp_path / "op")
    include = os.path.join(tmp_path, "include")
    os.mkdir(include)
    assert opforge.load("plain", tmp_path / "op" / "plain.cpp", extra_include_paths=tmp_path / "include").value() == 1
    for folders in ([tmp_path / "include"], {"cpu": (os.fsencode(include),)}):
        builder = sample_ops.builder_class(tmp_path / "op", "plain", abi="c", include_dirs=folders)()
        assert [builder.load().value(), builder.load().value()] == [1, 1]


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"include_dirs": [5]}, "include_dirs=[5]. Expected a list of strings"),
        ({"include_dirs": 5}, "include_dirs=5. Expected a list of strings"),
        ({"groups": ["a.cpp"]}, "groups=['a.cpp']. Expected a list of dicts"),
        ({"groups": 5}, "groups=5. Expected a list of dicts"),
        ({"groups": [{"sources": ["plain.cpp"], "include_dirs": 5}]}, "groups[0]['include_dirs']=5. Expected a list"),
    ],
)
def test_what_is_no_list_of_folders_is_an_error_of_the_load(tmp_path, declared, message):
    with pytest.raises(BuilderError, match=re.escape(message)):
        sample_ops.builder_class(tmp_path, "plain", abi="c", **declared)().load()


def test_a_link_in_place_of_a_folder_of_the_store_is_an_error(tmp_path, own_store):
    cls = sample_ops.plain_op(tmp_path)
    cls().build()
    (own_store / "v2" / "entries").rename(own_store / "kept")
    (own_store / "v2" / "entries").symlink_to("/proc/self/task")
    sample_ops.set_value(tmp_path, 2)
    with pytest.raises(CacheDirError, match=r"/v2/entries is a symbolic link, and a store has none inside\. Run: rm "):
        cls().build()


def test_a_header_is_searched_for_beside_the_symlink_to_a_source(tmp_path):
    sample_ops.plain_op(tmp_path / "real")
    (tmp_path / "farm").mkdir()
    (tmp_path / "farm" / "plain.cpp").symlink_to(tmp_path / "real" / "plain.cpp")
    sample_ops.set_value(tmp_path / "farm", 2)
    assert opforge.load("plain", tmp_path / "farm" / "plain.cpp").value() == 2
    (tmp_path / "farm" / "plain.cpp").unlink()
    (tmp_path / "farm" / "plain.cpp").symlink_to(
        text_files.write(tmp_path, "plain.cpp", f"{sample_ops.EXPORT} int value() {{ return 3; }}")
    )
    assert opforge.load("plain", tmp_path / "farm" / "plain.cpp").value() == 3


def test_a_source_and_a_header_may_have_any_name(tmp_path):
    """An object is reused unless its own header is seen to have changed."""
    names = ["a\tb", "a\\ b", "a$$b", "a\\#b", "50%", "-x", "a:b", "@a"]
    values = [f"value{number}" for number in range(len(names))]
    sources = []
    for name, value in zip(names, values, strict=True):
        text = sample_ops.PLAIN_SOURCE.replace("value.h", f"{name}.h").replace("value()", f"{value}()")
        sources.append(text_files.write(tmp_path, f"{name}.cpp", text))
    for number in (1, 2):
        for name in names:
            text_files.write(tmp_path, f"{name}.h", f"#define VALUE {number}\n")
        op = opforge.load("plain", sources)
        assert {name: getattr(op, value)() for name, value in zip(names, values, strict=True)} == dict.fromkeys(
            names, number
        )


@pytest.mark.parametrize("flags", [[], ["-fdiagnostics-color=always"]])
def test_forced_colours_are_removed_from_an_error(tmp_path, monkeypatch, flags):
    source = text_files.write(tmp_path, "broken.cpp", "int value() { return missing; }\n")
    monkeypatch.setenv("CLICOLOR_FORCE", "1")
    monkeypatch.setenv("GCC_COLORS", "error=01;31")
    with pytest.raises(CompileError) as caught:
        opforge.load("broken", source, abi="c", extra_cflags=flags)
    error = caught.value
    assert "\x1b" not in str(error) and error.step == "compile broken.cpp" and source in error.command
    assert [(diagnostic["line"], diagnostic["severity"]) for diagnostic in error.diagnostics] == [(1, "error")]


def test_a_wrapper_may_print_before_the_compiler_does(tmp_path, monkeypatch):
    cls = sample_ops.plain_op(tmp_path)
    monkeypatch.setenv("CXX", text_files.write_script(tmp_path, "wrapper", 'echo "hello"; exec g++ "$@"'))
    assert cls().load().value() == 1


def test_a_removed_working_folder_is_an_error_only_if_a_path_is_relative(tmp_path, monkeypatch):
    sample_ops.plain_op(tmp_path / "op")
    source = str(tmp_path / "op" / "plain.cpp")
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert opforge.load("plain", source).value() == 1
    typed = type("Typed", (opforge.OpBuilder,), {"__module__": "__main__", "name": "plain", "abi": "c"})
    typed.sources = [source]
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)  # as at an interactive prompt
    builder = typed()
    assert [builder.load().value(), builder.load().value()] == [1, 1]
    for arguments in ({"sources": "plain.cpp"}, {"sources": source, "extra_include_paths": ["include"]}):
        with pytest.raises(SourceNotFoundError, match="Looked in:\\n  - the working folder, which has been removed"):
            opforge.load("plain", **arguments)


@pytest.mark.parametrize("path", ["{}:", ":{}", ".:{}"])
def test_a_removed_working_folder_that_path_names_holds_no_compiler(tmp_path, monkeypatch, path):
    monkeypatch.setattr(Disk, "now_ns", lambda _disk: time.time_ns() + 10 * RACY_NS)  # so that look-ups are remembered
    cls = sample_ops.plain_op(tmp_path / "op")
    assert cls().build().origin == "built"
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    monkeypatch.setenv("PATH", path.format(os.environ["PATH"]))
    assert [cls().build().origin for _load in range(2)] == ["cache", "cache"]


def test_unusual_names_and_values_are_quoted_for_nvcc(tmp_path, monkeypatch):
    if not shutil.which("nvcc"):
        pytest.skip("needs nvcc (the CUDA toolkit)")
    folder = tmp_path / "a b" / "größe;&"
    folder.mkdir(parents=True)
    text_files.write(
        folder, "plain.cu", f"int values[] = {{VALUES}};\n{sample_ops.EXPORT} int value() {{ return values[1]; }}\n"
    )
    monkeypatch.setenv("CXX", "g++ -DHOST='a b,c'")
    cls = sample_ops.builder_class(
        folder, "plain", abi="c", sources=["plain.cu"], devices=["cuda"], define_macros={"VALUES": "1,2"}
    )
    assert ctypes.CDLL(cls("cuda:sm_90").build().library).value() == 2
