"""A loaded op's functions come before its own attributes."""

from __future__ import annotations

import pytest
from support import sample_ops
from support.sample_ops import EXPORT, STABLE_HEADERS

NAMES = ("path", "origin", "result", "_find", "_names", "__entry", "library", "load")


def test_plain_functions_named_like_attributes_are_the_functions(tmp_path):
    text = "".join(f"{EXPORT} int {name}() {{ return {number}; }}\n" for number, name in enumerate(NAMES))
    op = sample_ops.plain_op(tmp_path / "op", source=text)().load()
    assert [getattr(op, name)() for name in NAMES] == [*range(len(NAMES))]
    assert op.__file__ == op.__entry__.library
    shown = "\n  ".join([*sorted(NAMES)[:6], "... and 2 more: help(op) shows all"])
    assert repr(op) == f"<op 'plain' (built) from {op.__file__}\n  {shown}>"
    assert (op.__entry__.origin, op.__entry__.key) == ("built", op.__entry__.folder.rpartition("/")[2])


def test_an_op_without_such_functions_has_the_attributes(tmp_path):
    # A number that no other test has: a process loads equal libraries once, and keeps where the first came from.
    op = sample_ops.plain_op(tmp_path / "op", value=90517)().load()
    assert (op.path, op.origin, op.result) == (op.__file__, "built", op.__entry__.key)
    assert {"path", "origin", "result", "value"} <= {*dir(op)}
    with pytest.raises(TypeError, match="the op 'plain' is not a function; call one of its functions: value"):
        op(1, out=2)
    with pytest.raises(AttributeError, match="the op 'plain' has no function 'paths'; it has: value"):
        op.paths


def test_stable_functions_named_like_attributes_are_the_functions(tmp_path, precompiled):
    text = STABLE_HEADERS + (
        "static int64_t same(int64_t x) { return x; }\n"
        'STABLE_TORCH_LIBRARY(@NAME@, m) { m.def("path(int x) -> int"); m.def("origin.one(int x) -> int"); }\n'
        "STABLE_TORCH_LIBRARY_IMPL(@NAME@, CompositeExplicitAutograd, m) {\n"
        '  m.impl("path", TORCH_BOX(&same)).impl("origin.one", TORCH_BOX(&same));\n'
        "}\n"
    )
    op = sample_ops.op_from_source(tmp_path / "op", text)().load()
    assert (op.path(1), op.origin.one(2), op.result) == (1, 2, op.__entry__.key)


def test_python_functions_named_like_attributes_are_the_functions(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "front_of_plain", type("Front", (), {"make": staticmethod(front)}))
    op = sample_ops.plain_op(tmp_path / "op", python_functions="front_of_plain:make")().load()
    assert (op.path(), op.value()) == ("a function", 1)


def front(op):
    return {"path": lambda: "a function"}
