"""The text that an op's declaration is remembered by: what changes the spec changes it, or there is none."""

from __future__ import annotations

import ast
import os
import types
from typing import NamedTuple

import pytest
from support import sample_ops

from opforge import OpBuilder
from opforge.accelerator.target import Target
from opforge.builders.declaration import attributes
from opforge.builders.declaration.kernel_roots import KernelRoot
from opforge.builders.lookup import remembered_lookups
from opforge.cache.current_store import current_store
from opforge.fast_path import lookup, machine
from opforge.foundation.lazy import cached_property

VALUES = {"debug": True, "sanitize": "address", "signatures": {"value": (None, [])}}
VALUES |= {"kernel_roots": [KernelRoot("mine", "/tmp")]}
"""Another value of what the table of attributes has no plain example of."""
ATTRIBUTES = sorted(name for name in OpBuilder.__annotations__ if name not in ("trace", "_directory"))


def text_of(builder):
    return lookup.declaration(builder, OpBuilder)


@pytest.fixture
def builder(tmp_path):
    """A builder whose declaration has a text."""
    builder = sample_ops.builder_class(tmp_path, "op", abi="c")()
    assert text_of(builder)
    return builder


@pytest.mark.parametrize("place", ["class", "instance"])
@pytest.mark.parametrize("name", [*ATTRIBUTES, "debug", "sanitize"])
def test_every_attribute_changes_the_text_or_leaves_none(builder, name, place):
    before = text_of(builder)
    if name not in lookup.IN_TEXT and name in ATTRIBUTES:
        setattr(type(builder) if place == "class" else builder, name, ["anything"])
        assert text_of(builder) == ""
    elif place == "class" and name in ("debug", "sanitize"):
        assert name in vars(builder), "the instance has its own"
    else:
        value = VALUES[name] if name in VALUES else ast.literal_eval(attributes.ATTRIBUTES[name].example)
        setattr(type(builder) if place == "class" else builder, name, value)
        assert text_of(builder) not in ("", before)


def test_portable_ops_take_the_long_way(builder):
    assert text_of(type(builder)(portable=True)) == ""


@pytest.mark.parametrize(
    ("target", "has_text"),
    [
        (None, True),
        (Target("cpu"), True),
        (Target("cpu", ("native",)), True),
        (Target("cpu", (machine.level_here(),)), True),
        (Target("cpu", ("x86-64",)), machine.level_here() == "x86-64"),
        (Target("cuda"), False),
    ],
    ids=str,
)
def test_only_the_hosts_own_target_has_a_text(builder, target, has_text):
    assert bool(text_of(type(builder)(target))) is has_text


OTHER_KINDS = {
    "a method of OpBuilder": {"spec": lambda self: OpBuilder.spec(self)},
    "the gate": {"gate": lambda self, capabilities: ()},
    "a private method of OpBuilder": {"_bind": lambda self, library: library},
    "a store of its own": {"_directory": "/tmp"},
    "a method of DeepSpeed's": {"cxx_args": lambda self: ["-O1"]},
    "what may be one": {"link_flags": lambda self: ["-O1"]},
    "a property": {"sources": property(lambda self: ["op.cpp"])},
    "a property of another name": {"helper": property(lambda self: 1)},
    "a cached property": {"helper": cached_property(lambda self: 1)},
    "a path": {"include_dirs": [types.SimpleNamespace(__fspath__=lambda: "/tmp")]},
    "an object": {"helper": object()},
    "any attribute": {"__getattr__": lambda self, name: None},
    "flags for this processor": {"extra_compile_args": ["-march=native"]},
    "a file of flags": {"extra_compile_args": ["@/tmp/flags"]},
    "no device of the host": {"devices": ["cuda"]},
    "a text of devices": {"devices": "cpu"},
}


@pytest.mark.parametrize("attributes", OTHER_KINDS.values(), ids=OTHER_KINDS)
def test_what_a_text_does_not_say_takes_the_long_way(builder, attributes):
    kind = type("Derived", (type(builder),), {**attributes, "__module__": type(builder).__module__})
    assert text_of(kind()) == ""


def test_helpers_of_the_author_do_not_change_the_way(builder):
    attributes = {"_private": object(), "helper": lambda self: 1, "made": classmethod(lambda cls: 1), "text": "x"}
    kind = type("Derived", (type(builder),), {**attributes, "__module__": type(builder).__module__})
    assert text_of(kind())


def test_flags_of_the_environment_that_are_for_this_processor_take_the_long_way(builder, monkeypatch):
    monkeypatch.setenv("CXXFLAGS", "-march=native")
    assert text_of(builder) == ""


def test_an_include_folder_behind_a_link_is_known_by_what_it_leads_to(builder, tmp_path):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    link = tmp_path / "link"
    texts = []
    for name in ("first", "second"):
        os.symlink(tmp_path / name, tmp_path / "new")
        os.replace(tmp_path / "new", link)
        for value in ([str(link)], {"cpu": [str(link)]}):
            type(builder).include_dirs = value
            texts.append(text_of(builder))
    assert len({*texts}) == 4 and "" not in texts


def test_equal_classes_in_two_folders_are_two_ops(builder, tmp_path):
    (tmp_path / "other").mkdir()
    other = sample_ops.builder_class(tmp_path / "other", "op", abi="c")()
    assert text_of(other) not in ("", text_of(builder))


def test_the_text_says_all_of_attributes_alone():
    assert attributes.ATTRIBUTES.keys() >= lookup.IN_TEXT


# -- what is set on OpBuilder itself, and values of other classes ------------------------------------------------------


class Secret(str):
    """A text whose repr does not say what it is."""

    __slots__ = ()

    def __repr__(self):
        return "'secret'"


class Pair(NamedTuple):
    """A pair whose repr does not say what is in it."""

    name: str
    value: str

    def __repr__(self):
        return "()"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("define_macros", [("X", "1")]),
        ("extra_compile_args", ["-DX"]),
        ("include_dirs", ["/tmp"]),
        ("spec", lambda self: None),
        ("gate", lambda self, capabilities: ()),
        ("new_name", 1),
    ],
)
def test_what_is_set_on_the_class_of_all_builders_leaves_no_text(builder, monkeypatch, name, value):
    monkeypatch.setattr(OpBuilder, name, value, raising=False)
    assert text_of(builder) == ""
    monkeypatch.undo()
    assert text_of(builder)


@pytest.mark.parametrize("value", [[Secret("-DX=1")], [Pair("X", "1")], (Secret("a"),), {"cxx": Pair("a", "b")}])
def test_a_value_whose_repr_hides_it_leaves_no_text(builder, value):
    type(builder).extra_compile_args = value
    assert text_of(builder) == ""


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("extra_compile_args", [Secret("-DX=1")], [Secret("-DX=2")]),
        ("extra_compile_args", Pair("-DX=1", "-w"), Pair("-DX=2", "-w")),
        ("define_macros", [Pair("X", "1")], [Pair("X", "2")]),
        ("define_macros", [("X", Secret("1"))], [("X", Secret("2"))]),
        ("version", Secret("1"), Secret("2")),
    ],
)
def test_two_values_whose_repr_is_the_same_are_two_look_ups(builder, name, first, second):
    names = set()
    for value in (first, second):
        setattr(type(builder), name, value)
        spec = builder.spec()
        names.add(remembered_lookups.Lookup(spec, current_store(), (), {}).name({}))
    assert len(names) == 2


def test_a_value_of_the_authors_own_needs_no_truth_value(tmp_path):
    """A tensor of more than one element has none; such a builder is looked up by its spec."""

    class Without:
        def __bool__(self):
            raise RuntimeError("ambiguous")

    builder = sample_ops.plain_op(tmp_path, "without_truth")
    builder.weights_of_mine = Without()
    assert lookup.declaration(builder(), OpBuilder) == ""
    assert builder().load().value() == 1
