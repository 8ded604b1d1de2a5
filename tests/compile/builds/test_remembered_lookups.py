"""Remembered look-ups with a real compiler: a second process makes no plan, and none leads to a stale entry."""

from __future__ import annotations

import os
import pathlib
import shutil
import time

import pytest
from support import child_processes, fake_disk, sample_ops, text_files

from opforge.builders.declaration import kernel_roots
from opforge.builders.lookup import finder
from opforge.builders.toolchains.discovery import probe
from opforge.fast_path import library
from opforge.foundation import remembered_values

LOAD = """
import os
from support import sample_ops
from opforge.builders.lookup import finder
from opforge.builders.toolchains.discovery import probe
from opforge.cache.filesystem.disk import Disk
Disk.now_ns = lambda self, real=Disk.now_ns: real(self) + 10**10
if "FORBID" in os.environ:
    def forbidden(*arguments):
        raise AssertionError("a remembered look-up must not call this")
    finder.make_plan = probe.host_info = forbidden
op = sample_ops.builder_class(os.environ["FOLDER"], "plain", abi="c")().load()
print(op.value(), op.origin)
"""


@pytest.fixture(autouse=True)
def later_clock(monkeypatch):
    """The disk's clock is 10 seconds ahead: the stamps of files that a test has just written are trusted."""
    from opforge.cache.filesystem.disk import Disk

    monkeypatch.setattr(Disk, "now_ns", lambda _self: time.time_ns() + 10 * fake_disk.SECOND)


def record_plans(monkeypatch):
    """Returns a list that gets the arguments of every call of `make_plan` from now on."""
    calls, real = [], finder.make_plan

    def make(*arguments):
        calls.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(finder, "make_plan", make)
    return calls


def build_and_remember(cls):
    """Builds the op and looks it up once, which is remembered; returns the entry."""
    cls().build()
    entry = cls().build()
    probe.reset()
    return entry


def test_a_second_process_makes_no_plan_and_runs_no_compiler(folder):
    sample_ops.plain_op(folder, value=5)
    env = {"FOLDER": str(folder)}
    assert child_processes.run_python(LOAD, env=env) == "5 built\n"
    assert child_processes.run_python(LOAD, env=env) == "5 cache\n"
    assert child_processes.run_python(LOAD, env={**env, "FORBID": "1"}) == "5 cache\n"
    sample_ops.set_value(folder, 6)
    assert child_processes.run_python(LOAD, env=env) == "6 built\n"


def test_another_compiler_earlier_on_path_is_used(folder, tmp_path, monkeypatch):
    early = tmp_path / "early"
    early.mkdir()
    monkeypatch.setenv("PATH", f"{early}:{os.environ['PATH']}")
    cls = sample_ops.plain_op(folder)
    first = build_and_remember(cls)
    plans = record_plans(monkeypatch)
    assert cls().build().key == first.key and plans == []
    text_files.write_script(early, "g++", f'exec {shutil.which("g++", path="/usr/bin:/usr/local/bin")} -DEXTRA "$@"')
    second = cls().build()
    assert second.origin == "built" and second.key != first.key
    os.unlink(early / "g++")
    assert cls().build().key == first.key


def test_another_assembler_earlier_on_path_is_used(folder, tmp_path, monkeypatch):
    """The compiler is the same, and a program that it runs is another one."""
    early = tmp_path / "early"
    early.mkdir()
    real = shutil.which("as")
    monkeypatch.setenv("PATH", f"{early}:{os.environ['PATH']}")
    cls = sample_ops.plain_op(folder)
    first = build_and_remember(cls)
    text_files.write_script(early, "as", f'touch {tmp_path}/ran; exec {real} "$@"')
    second = cls().build()
    assert second.origin == "built" and second.key != first.key
    assert (tmp_path / "ran").exists()


def test_a_compiler_that_cxx_names_is_used(folder, tmp_path, monkeypatch):
    cls = sample_ops.plain_op(folder)
    first = build_and_remember(cls)
    wrapper = text_files.write_script(tmp_path, "my-g++", 'exec g++ -DEXTRA "$@"')
    monkeypatch.setenv("CXX", wrapper)
    second = build_and_remember(cls)
    assert second.key != first.key
    text_files.write_script(tmp_path, "my-g++", 'exec g++ -DEXTRA=2 "$@"')
    assert cls().build().key not in (first.key, second.key)


@pytest.mark.parametrize("variable", ["CXXFLAGS", "CPPFLAGS"])
def test_flags_from_the_environment_are_used(folder, monkeypatch, variable):
    sample_ops.plain_op(folder)
    text_files.write(folder, "value.h", "#ifndef VALUE\n#define VALUE 1\n#endif\n")
    cls = sample_ops.builder_class(folder, "plain", abi="c")
    build_and_remember(cls)
    monkeypatch.setenv(variable, "-DVALUE=5")
    assert cls().load().value() == 5
    monkeypatch.delenv(variable)
    assert cls().load().value() == 1


def test_a_folder_added_to_cpath_is_searched(folder, tmp_path, monkeypatch):
    cls = sample_ops.plain_op(folder, source=sample_ops.PLAIN_SOURCE.replace('"value.h"', "<from_cpath.h>"))
    for name, value in (("one", 1), ("two", 2)):
        (tmp_path / name).mkdir()
        text_files.write(tmp_path / name, "from_cpath.h", f"#define VALUE {value}\n")
    monkeypatch.setenv("CPATH", str(tmp_path / "one"))
    build_and_remember(cls)
    monkeypatch.setenv("CPATH", f"{tmp_path}/two:{tmp_path}/one")
    assert cls().load().value() == 2
    monkeypatch.setenv("CPATH", str(tmp_path / "one"))
    assert cls().load().value() == 1


def test_changed_defines_flags_and_sources_are_used(folder):
    sample_ops.plain_op(folder, source=f'{sample_ops.EXPORT} int value() {{ return VALUE; }}\n#include "value.h"\n')
    text_files.write(folder, "value.h", "")
    text_files.write(folder, "other.cpp", f"{sample_ops.EXPORT} int value() {{ return 9; }}\n")

    def declare(**attributes):
        return sample_ops.builder_class(folder, "plain", abi="c", **attributes)

    build_and_remember(declare(define_macros={"VALUE": "1"}))
    assert declare(define_macros={"VALUE": "1"})().load().value() == 1
    assert declare(define_macros={"VALUE": "2"})().load().value() == 2
    assert declare(extra_compile_args=["-DVALUE=3"])().load().value() == 3
    assert declare(sources=["other.cpp"])().load().value() == 9
    assert declare(define_macros={"VALUE": "1"})().load().value() == 1


def test_a_new_source_in_an_earlier_root_is_used(folder, tmp_path):
    folder.mkdir()
    (tmp_path / "theirs").mkdir()
    text_files.write(tmp_path / "theirs", "kernel.cpp", f"{sample_ops.EXPORT} int value() {{ return 1; }}\n")
    cls = sample_ops.builder_class(
        folder,
        "kernel",
        abi="c",
        kernel_roots=[
            kernel_roots.KernelRoot("mine", str(tmp_path / "mine")),
            kernel_roots.KernelRoot("theirs", str(tmp_path / "theirs")),
        ],
    )
    build_and_remember(cls)
    (tmp_path / "mine").mkdir()
    text_files.write(tmp_path / "mine", "kernel.cpp", f"{sample_ops.EXPORT} int value() {{ return 2; }}\n")
    assert cls().load().value() == 2
    text_files.write(folder, "kernel.cpp", f"{sample_ops.EXPORT} int value() {{ return 3; }}\n")
    assert cls().load().value() == 3


def test_a_new_include_folder_in_an_earlier_root_is_searched(folder, tmp_path):
    for name in ("mine", "theirs/include"):
        (tmp_path / name).mkdir(parents=True)
    text_files.write(tmp_path / "theirs" / "include", "inner.h", "#define VALUE 1\n")
    mine, theirs = (kernel_roots.KernelRoot(name, str(tmp_path / name)) for name in ("mine", "theirs"))
    source = sample_ops.PLAIN_SOURCE.replace('"value.h"', "<inner.h>")
    cls = sample_ops.plain_op(folder, source=source, kernel_roots=[mine, theirs])
    build_and_remember(cls)
    (tmp_path / "mine" / "include").mkdir()
    text_files.write(tmp_path / "mine" / "include", "inner.h", "#define VALUE 2\n")
    assert cls().load().value() == 2


def test_an_edit_that_keeps_the_mtime_and_a_header_that_shadows_another_are_detected(folder):
    cls = sample_ops.plain_op(
        folder, source=sample_ops.PLAIN_SOURCE.replace('"value.h"', "<inner.h>"), include_dirs=["early", "late"]
    )
    for name in ("early", "late"):
        (folder / name).mkdir()
    text_files.write(folder / "late", "inner.h", "#define VALUE 1\n")
    build_and_remember(cls)
    header = folder / "late" / "inner.h"
    old = header.stat()
    text_files.write(folder / "late", "inner.h", "#define VALUE 2\n")
    os.utime(header, ns=(old.st_atime_ns, old.st_mtime_ns))
    assert cls().load().value() == 2
    build_and_remember(cls)
    text_files.write(folder / "early", "inner.h", "#define VALUE 3\n")
    builder = cls()
    assert builder.load().value() == 3
    assert f"{folder}/early/inner.h has appeared, and may shadow a header" in [why.reason for why in builder.trace]
    (folder / "early" / "inner.h").unlink()
    assert cls().load().value() == 2


def remembered_paths():
    """Returns the paths of what look-ups have remembered."""
    lookups = (os.path.join(folder, remembered_values.LOOKUPS) for folder in remembered_values.folders())
    return sorted(path for folder in lookups for path in pathlib.Path(folder).glob("*.json"))


def test_remembered_lookups_whose_contents_are_swapped_are_rejected(folder):
    sample_ops.plain_op(folder, source=f'#include "value.h"\n{sample_ops.EXPORT} int value() {{ return WANTED; }}\n')
    first, second = (
        sample_ops.builder_class(folder, "plain", abi="c", define_macros={"WANTED": value}) for value in "12"
    )
    build_and_remember(first), build_and_remember(second)
    paths = remembered_paths()
    texts = [path.read_text() for path in paths]
    assert len(texts) == 2
    for path, text in zip(paths, reversed(texts), strict=True):
        path.write_text(text)
    assert (first().load().value(), second().load().value()) == (1, 2)


def with_misspelt_key(text, key):
    """Returns JSON in which the last letter of a key is another. It is still valid JSON."""
    assert f'"{key}"' in text
    return text.replace(f'"{key}"', f'"{key[:-1]}~"')


@pytest.mark.parametrize("key", ["exports", "needs", "python_module", "abi", "op", "floors", "file", "sha256", "stamp"])
@pytest.mark.parametrize("which", ["remembered", "record", "build", "all"])
def test_a_misspelt_key_in_any_file_of_the_store_is_repaired(folder, which, key):
    cls = sample_ops.plain_op(folder, value=5)
    entry = pathlib.Path(build_and_remember(cls).folder)
    files = {"remembered": remembered_paths(), "record": [entry / "record.json"], "build": [entry / "build.json"]}
    if which in ("record", "build"):
        for path in files["remembered"]:
            path.unlink()  # otherwise neither would be read
        files["remembered"] = []
    for name, paths in files.items():
        for path in paths:
            if which in (name, "all") and f'"{key}"' in path.read_text():
                path.write_text(with_misspelt_key(path.read_text(), key))
    for origin in ("", "cache"):
        library.reset()  # so that this process loads it as a new one would
        op = cls().load()
        assert op.value() == 5 and "value" in dir(op)
        assert origin in op.origin, "the file is correct again"


@pytest.mark.parametrize("name", ["record.json", "build.json"])
def test_an_entry_that_names_a_missing_input_is_quarantined_and_rebuilt(folder, own_store, name):
    cls = sample_ops.plain_op(folder, value=5)
    path = pathlib.Path(build_and_remember(cls).folder) / name
    assert "value.h" in path.read_text()
    path.write_text(path.read_text().replace("value.h", "valud.h"))
    os.utime(folder / "value.h")
    assert cls().load().value() == 5
    assert "valud.h" not in path.read_text()
    assert len(os.listdir(own_store / "v2" / "quarantine")) == 1


def test_a_header_is_seen_in_a_folder_that_came_after_the_build(folder):
    """A look-up in between has found the folder empty."""
    source = sample_ops.PLAIN_SOURCE.replace('"value.h"', "<sub/inner.h>")
    cls = sample_ops.plain_op(folder, source=source, include_dirs=["early", "late"])
    text_files.write(folder, "late/sub/inner.h", "#define VALUE 1\n")
    (folder / "early").mkdir()
    first = build_and_remember(cls)
    (folder / "early" / "sub").mkdir()
    assert cls().build().key == cls().build().key == first.key
    text_files.write(folder, "early/sub/inner.h", "#define VALUE 2\n")
    assert cls().load().value() == 2


def test_a_header_is_seen_behind_a_link_that_came_after_the_build(folder, tmp_path):
    """A look-up in between has found nothing behind the link."""
    source = sample_ops.PLAIN_SOURCE.replace('"value.h"', "<inner.h>")
    cls = sample_ops.plain_op(folder, source=source, include_dirs=["early", "late"])
    text_files.write(folder, "late/inner.h", "#define VALUE 1\n")
    (folder / "early").mkdir()
    (tmp_path / "elsewhere").mkdir()
    first = build_and_remember(cls)
    os.symlink(tmp_path / "elsewhere" / "inner.h", folder / "early" / "inner.h")
    assert cls().build().key == cls().build().key == first.key
    text_files.write(tmp_path, "elsewhere/inner.h", "#define VALUE 2\n")
    assert cls().load().value() == 2
