"""What Python shows of a loaded op, a builder and an entry: a few lines. help() of an op shows its schemas."""

from __future__ import annotations

import pydoc
import re

import pytest
from support import sample_ops

import opforge

torch = pytest.importorskip("torch", reason="pip install torch")
pytestmark = pytest.mark.usefixtures("precompiled")

MANY = """\
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>
int64_t same(int64_t x) { return x; }
STABLE_TORCH_LIBRARY(@NAME@, m) {
@DEFS@
}
"""


def many_functions(count):
    """Returns the source of an op with this number of functions."""
    return MANY.replace("@DEFS@", "\n".join(f'  m.def("f{number}(int x) -> int");' for number in range(count)))


def test_an_op_shows_where_it_came_from_and_its_schemas_and_using_it_changes_nothing(relu_op):
    shown = repr(relu_op)
    relu_op.relu(torch.ones(1))
    assert repr(relu_op) == shown and shown.endswith("\n  relu(Tensor x) -> Tensor>")
    assert re.match(rf"<op '{relu_op.__name__}' \((built|cache)\) from /", shown)


def test_an_op_with_many_functions_fits_in_a_few_lines(tmp_path):
    op = sample_ops.op_from_source(tmp_path, many_functions(20))().load()
    lines = repr(op).splitlines()
    assert len(lines) == 8 and lines[-1] == "  ... and 14 more: help(op) shows all>"
    assert op.__doc__.count("(int x) -> int") == 20


def test_help_shows_the_schemas_the_library_and_the_key(relu_op):
    page = pydoc.plain(pydoc.render_doc(relu_op))
    assert "Functions:\n        relu(Tensor x) -> Tensor\n" in page
    for fact in (f"library: {relu_op.__file__}", "origin: ", "target: cpu:", f"key: {relu_op.__entry__.key}"):
        assert fact in page
    assert "__getattr__" not in page, "it is the op's help, and not its class's"


def test_plain_and_overloaded_functions_are_shown_by_name_and_by_overload(tmp_path):
    plain = sample_ops.plain_op(tmp_path / "plain")().load()
    assert repr(plain).endswith("\n  value>")
    source = many_functions(0).replace(
        "\n\n}", '\n  m.def("f.int(int x) -> int");\n  m.def("f.float(float x) -> float");\n}'
    )
    op = sample_ops.op_from_source(tmp_path / "overloads", source)().load()
    assert repr(op).splitlines()[1:] == ["  f.int(int x) -> int", "  f.float(float x) -> float>"]


def test_a_builder_shows_its_name_target_sources_and_what_it_loaded(tmp_path):
    builder = sample_ops.plain_op(tmp_path / "op")(debug=True)
    assert repr(builder) == "<TestedBuilder 'plain' for this machine, debug\n  plain.cpp\n  not loaded>"
    op = builder.load()
    assert repr(builder).startswith("<TestedBuilder 'plain' for cpu:")
    assert repr(builder).endswith(f"\n  loaded from {op.__file__}>")


def test_the_representation_of_a_builder_raises_no_error_of_its_author():
    class Broken(opforge.OpBuilder):
        name = "broken"

        @property
        def sources(self):
            raise OSError("no such list")

    assert "OSError: no such list" in repr(Broken("cpu:x86-64"))


def test_an_entry_shows_its_op_target_and_origin_and_not_its_record(tmp_path):
    entry = sample_ops.plain_op(tmp_path / "op")("cpu:native").build()
    target = entry.record["target"]
    assert repr(entry) == f"<entry {entry.key} of 'plain' for {target} (built)\n  {entry.folder}>"
