"""A second load in one process after another compiler is found: what a build would give now is loaded."""

from __future__ import annotations

import os
import shutil
import time

import pytest
from support import sample_ops, text_files

from opforge.builders import base
from opforge.builders.base import COMPARE_SECONDS
from opforge.foundation.remembered_values import RACY_NS

WHICH = f"{sample_ops.EXPORT} int value() {{\n#ifdef __clang__\n  return 2;\n#else\n  return 1;\n#endif\n}}\n"
"""Returns which compiler made it."""
GCC, CLANG = shutil.which("g++"), shutil.which("clang++")
QUIET_PATH = "/usr/bin:/bin"
"""No folder of the user's PATH, where other programs may write between two loads."""
pytestmark = pytest.mark.skipif(CLANG is None, reason="needs clang++ (apt install clang)")


def settled(builder):
    """Loads, waits until no stamp is racy, and loads again; returns the op."""
    builder.load()
    time.sleep(RACY_NS / 1e9 + 0.1)
    return builder.load()


def op_class(folder):
    """Writes the source of a plain op; returns its builder class."""
    name = sample_ops.unique_name("op")
    text_files.write(folder, f"{name}.cpp", WHICH)
    return sample_ops.builder_class(folder, name, abi="c")


def switch(link, target):
    """Points a link at another file, as update-alternatives does."""
    os.symlink(target, f"{link}.new")
    os.replace(f"{link}.new", link)


@pytest.mark.parametrize("found_by", ["CXX", "PATH"])
def test_a_compiler_that_is_switched_behind_a_link(tmp_path, monkeypatch, found_by):
    (tmp_path / "bin").mkdir()
    (tmp_path / "alternatives").mkdir()
    link = str(tmp_path / "alternatives" / "g++")
    os.symlink(link, tmp_path / "bin" / "g++")
    switch(link, GCC)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{QUIET_PATH}")
    if found_by == "CXX":
        monkeypatch.setenv("CXX", f"{tmp_path}/bin/g++")
    builder = op_class(tmp_path / "op")()
    first = settled(builder)
    switch(link, CLANG)
    time.sleep(COMPARE_SECONDS)
    second = builder.load()
    assert (first.value(), second.value()) == (1, 2)
    switch(link, GCC)
    time.sleep(COMPARE_SECONDS)
    assert builder.load() is first
    time.sleep(RACY_NS / 1e9 + 0.1)
    assert builder.load() is first
    monkeypatch.setattr(base.lookup, "load", lambda *_arguments: pytest.fail("nothing is racy any more"))
    assert builder.load() is first


def test_a_compiler_that_appears_earlier_on_path(tmp_path, monkeypatch):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    os.symlink(GCC, tmp_path / "second" / "g++")
    monkeypatch.setenv("PATH", f"{tmp_path}/first:{tmp_path}/second:{os.environ['PATH']}")
    builder = op_class(tmp_path / "op")()
    assert settled(builder).value() == 1
    os.symlink(CLANG, tmp_path / "first" / "g++")
    time.sleep(COMPARE_SECONDS)
    assert builder.load().value() == 2


def test_a_compiler_that_is_replaced_in_place_after_a_hit_from_memory(tmp_path, monkeypatch):
    program = text_files.write_script(tmp_path, "g++", f'exec {GCC} "$@"')
    monkeypatch.setenv("CXX", str(program))
    cls = op_class(tmp_path / "op")
    settled(cls())
    settled(cls())
    builder = cls()
    assert builder.load().value() == 1
    text_files.write_script(tmp_path, "g++", f'exec {CLANG} "$@"')
    time.sleep(COMPARE_SECONDS)
    assert builder.load().value() == 2


def changes_since(loaded, builder):
    """Returns what differs now from the state that a module was loaded in, for a failure's text."""
    states = zip(base._state(builder), [loaded._environment, *loaded.attributes], strict=True)
    names = [name for now, then in states for name in {*now, *then} if now.get(name) != then.get(name)]
    often = dict(loaded._often.pairs())
    now = base.remembered_values.FlatStamps([*often], base.remembered_values.stamps_of([*often]))
    files = [path for path, stamp in now.pairs() if stamp != often[path]]
    said = loaded.said is None or loaded.said == base.said_by(builder)
    racy = [
        path
        for path, stamp in loaded.watched.pairs()
        if base.remembered_values.FlatStamps.of([(path, stamp)]).is_racy(loaded._began)
    ]
    return {
        "attributes": names,
        "files": files,
        "racy": racy,
        "said": said,
        "computed": loaded.said is not None,
        "adds": loaded.adds is base._adding(builder),
        "tables": base.lookup.tables_for_all(type(builder)),
    }


def test_the_compiler_is_compared_once_a_second(tmp_path, monkeypatch):
    folder = tmp_path / "a" / "b"  # the folders above an op's are watched, and other tests write above `tmp_path`
    program = text_files.write_script(folder, "g++", f'exec {GCC} "$@"')
    monkeypatch.setenv("CXX", str(program))
    monkeypatch.setenv("PATH", QUIET_PATH)
    builder = op_class(folder / "op")()
    paths, stamps_of = [], base.remembered_values.stamps_of
    monkeypatch.setattr(
        base.remembered_values, "stamps_of", lambda these, links=0: paths.extend(these) or stamps_of(these, links)
    )
    compared, changes = [], []
    for _ in range(5):  # a folder that others write too, such as the checkout's, may change between two loads
        op = settled(builder)
        with monkeypatch.context() as patch:
            seconds = [time.monotonic() + COMPARE_SECONDS]
            patch.setattr(base.time, "monotonic", lambda seconds=seconds: seconds[0])
            compared = []
            for later in (0, COMPARE_SECONDS / 2, COMPARE_SECONDS):
                seconds[0] += later
                paths.clear()
                before = builder._loaded
                assert builder.load() is op
                if builder._loaded is not before:
                    changes.append(changes_since(before, builder))
                assert any(path.startswith(str(folder / "op")) for path in paths), "its own files are, each time"
                compared.append(str(program) in paths)
        base._seen.clear()  # the times in it were ahead
        if compared == [True, False, True]:
            return
    pytest.fail(f"the compiler was compared {compared}, and the op loaded anew for {changes}")
