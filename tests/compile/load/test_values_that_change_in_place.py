"""A second load of a builder that code or a container of another class shapes: its spec is asked for each time."""

from __future__ import annotations

import collections
import ctypes
import os
import sys
import types

import pytest
from support import sample_ops, text_files

import opforge
from opforge import OpBuilder
from opforge.foundation.remembered_values import RACY_NS

pytestmark = pytest.mark.usefixtures("builds_are_shared")
TEXT = f"{sample_ops.EXPORT} int value() {{ return VALUE; }}\n"
_value = 1


class Listed(list):
    """A list that compares as equal to any list."""

    def __eq__(self, other):
        return True

    __hash__ = None


class Computed:
    """A descriptor that reads a global."""

    def __get__(self, instance, kind):
        return [f"-DVALUE={_value}"]


def op_of_text(folder, text=TEXT, **attributes):
    os.makedirs(folder, exist_ok=True)
    name = "op"  # of one name and text, so that the tests share what is built
    text_files.write(folder, f"{name}.cpp", text)
    return sample_ops.builder_class(folder, name, abi="c", **attributes)


@pytest.fixture(autouse=True)
def settle(monkeypatch):
    """No stamp is racy: what is loaded again is compared, and not looked up for that alone."""
    monkeypatch.setattr("opforge.foundation.remembered_values.RACY_NS", -RACY_NS)
    monkeypatch.setattr(sys.modules[__name__], "_value", 1)


def nested():
    return types.SimpleNamespace(flags=types.SimpleNamespace(value=1))


CASES = {
    "OrderedDict": (
        lambda: {"define_macros": collections.OrderedDict(VALUE="1")},
        lambda cls: cls.define_macros.update(VALUE="2"),
    ),
    "UserDict": (
        lambda: {"define_macros": collections.UserDict(VALUE="1")},
        lambda cls: cls.define_macros.update(VALUE="2"),
    ),
    "UserList": (
        lambda: {"extra_compile_args": collections.UserList(["-DVALUE=1"])},
        lambda cls: cls.extra_compile_args.__setitem__(0, "-DVALUE=2"),
    ),
    "a list of another class": (
        lambda: {"extra_compile_args": Listed(["-DVALUE=1"])},
        lambda cls: cls.extra_compile_args.__setitem__(0, "-DVALUE=2"),
    ),
    "a deque": (
        lambda: {"extra_compile_args": collections.deque(["-DVALUE=1"])},
        lambda cls: cls.extra_compile_args.__setitem__(0, "-DVALUE=2"),
    ),
    "a list in an OrderedDict": (
        lambda: {"extra_compile_args": collections.OrderedDict(cxx=["-DVALUE=1"])},
        lambda cls: cls.extra_compile_args["cxx"].__setitem__(0, "-DVALUE=2"),
    ),
    "a nested object that a method reads": (
        lambda: {"cxx_args": lambda self: [f"-DVALUE={self._held.flags.value}"], "_held": nested()},
        lambda cls: setattr(cls._held.flags, "value", 2),
    ),
    "a nested object that a property reads": (
        lambda: {"extra_compile_args": property(lambda self: [f"-DVALUE={self._held.flags.value}"]), "_held": nested()},
        lambda cls: setattr(cls._held.flags, "value", 2),
    ),
    "a global that a property reads": (
        lambda: {"extra_compile_args": property(lambda self: [f"-DVALUE={_value}"])},
        lambda cls: setattr(sys.modules[__name__], "_value", 2),
    ),
    "a global that a descriptor reads": (
        lambda: {"extra_compile_args": Computed()},
        lambda cls: setattr(sys.modules[__name__], "_value", 2),
    ),
    "a global that spec() reads": (
        lambda: {
            "spec": lambda self: OpBuilder.spec(self)._replace(cxx_flags=(f"-DVALUE={_value}",)),
        },
        lambda cls: setattr(sys.modules[__name__], "_value", 2),
    ),
}


ALIKE = {
    "OrderedDict": ("UserDict", "a list in an OrderedDict"),
    "a list of another class": ("UserList", "a deque"),
    "a nested object that a method reads": ("a nested object that a property reads",),
    "a global that a property reads": ("a global that a descriptor reads",),
}
"""Cases, and others that differ from them by a class alone: these are for `make test-all`."""
ANOTHER_CLASS = pytest.mark.test_all("asks the same of another class")


@pytest.mark.parametrize(
    ("attributes", "change"),
    [
        pytest.param(
            *case, id=name, marks=ANOTHER_CLASS if name in {one for more in ALIKE.values() for one in more} else ()
        )
        for name, case in CASES.items()
    ],
)
def test_what_a_comparison_does_not_show(tmp_path, attributes, change):
    cls = op_of_text(tmp_path / "op", **attributes())
    builder = cls()
    first = builder.load()
    assert first.value() == 1 and builder.load() is first
    change(cls)
    assert builder.load().value() == 2


def test_a_file_that_a_property_reads(tmp_path):
    text_files.write(tmp_path, "flags", "-DVALUE=1")
    builder = op_of_text(
        tmp_path / "op", extra_compile_args=property(lambda self: (tmp_path / "flags").read_text().split())
    )()
    assert builder.load().value() == 1
    text_files.write(tmp_path, "flags", "-DVALUE=2")
    assert builder.load().value() == 2


def test_what_is_set_on_the_class_of_all_builders_and_changed_in_place(tmp_path, monkeypatch):
    cls = op_of_text(tmp_path / "op")
    macros = {"VALUE": "1"}
    monkeypatch.setattr(OpBuilder, "define_macros", macros)
    builder = cls()
    assert builder.load().value() == 1 == cls().load().value()
    macros["VALUE"] = "2"
    assert builder.load().value() == 2 == cls().load().value()
    monkeypatch.undo()
    with pytest.raises(opforge.errors.CompileError):
        cls().load()


@pytest.mark.parametrize("container", [dict, collections.OrderedDict, collections.UserDict])
def test_signatures_that_are_changed_in_place(tmp_path, container):
    text = f"{sample_ops.EXPORT} double half(double x) {{ return x / 2; }}\n"
    signatures = container(half=(ctypes.c_double, [ctypes.c_double]))
    builder = op_of_text(tmp_path / "op", text, signatures=signatures)()
    first = builder.load()
    assert first.half(3.0) == 1.5
    signatures["half"][1].append(ctypes.c_int)
    second = builder.load()
    assert second is not first and second.half.argtypes == [ctypes.c_double, ctypes.c_int]
    assert first.half.argtypes == [ctypes.c_double] or first.half(3.0) == 1.5


@pytest.mark.parametrize("change", ["switched", "removed"])
def test_a_link_to_a_folder_of_headers(tmp_path, change):
    for name, value in (("first", 1), ("second", 2)):
        text_files.write(tmp_path / name, "given.h", f"#define VALUE {value}\n")
    os.symlink("first", tmp_path / "link")
    builder = op_of_text(tmp_path / "op", f'#include "given.h"\n{TEXT}', include_dirs=[str(tmp_path / "link")])()
    assert builder.load().value() == 1
    os.unlink(tmp_path / "link")
    if change == "switched":
        os.symlink("second", tmp_path / "link")
        assert builder.load().value() == 2
    else:
        with pytest.raises(opforge.errors.OpforgeError):
            builder.load()


def test_another_working_folder_and_a_class_without_a_file(tmp_path, monkeypatch):
    for name, value in (("first", 1), ("second", 2)):
        text_files.write(tmp_path / name, "op.cpp", TEXT.replace("VALUE", str(value)))
    cls = op_of_text(tmp_path / "op", sources=["op.cpp"])
    del sys.modules[cls.__module__].__file__
    monkeypatch.chdir(tmp_path / "first")
    builder = cls()
    assert builder.load().value() == 1
    monkeypatch.chdir(tmp_path / "second")
    assert builder.load().value() == 2


def test_python_functions_of_a_module_that_is_loaded_again(tmp_path, monkeypatch):
    module = types.ModuleType(sample_ops.unique_name("functions"))
    module.more = lambda op: {"more": lambda: 1}
    monkeypatch.setitem(sys.modules, module.__name__, module)
    cls = op_of_text(tmp_path / "op", define_macros={"VALUE": "1"}, python_functions=f"{module.__name__}:more")
    builder = cls()
    first = builder.load()
    assert first.more() == 1 and builder.load() is first
    module.more = lambda op: {"more": lambda: 2}
    assert (builder.load().more(), cls().load().more()) == (2, 2)


def test_other_devices_choose_the_target_again(tmp_path):
    cls = op_of_text(tmp_path / "op", devices=["cuda"], sources=["missing.cu"])
    builder = cls()
    assert builder.target.device == "cuda"
    cls.devices = ["cpu"]
    assert builder.target.device == "cpu"


def test_an_argument_of_a_call_that_changes_in_place(tmp_path):
    text_files.write(tmp_path, "op.cpp", TEXT)
    flags = collections.UserList(["-DVALUE=1"])
    name = "op"  # of one name and text, so that the tests share what is built

    def load():
        return opforge.load(name, [str(tmp_path / "op.cpp")], abi="c", extra_cflags=flags)

    assert load().value() == 1
    flags[0] = "-DVALUE=2"
    assert load().value() == 2


def test_a_plain_builder_is_not_asked_again(tmp_path, monkeypatch):
    builder = op_of_text(tmp_path / "op", define_macros={"VALUE": "1"})()
    first, asked = builder.load(), []
    monkeypatch.setattr("opforge.builders.declaration.op_spec.resolve", lambda *arguments: asked.append(arguments))
    assert builder.load() is first and asked == []
