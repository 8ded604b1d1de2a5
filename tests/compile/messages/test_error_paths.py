"""The errors of a loaded op name the files where they are, though its library names roots."""

from __future__ import annotations

import os

import pytest
import torch
from support import sample_ops, text_files, tiers

SOURCE = """\
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>
#include <stdexcept>
#include "check.h"
using torch::stable::Tensor;
Tensor own(const Tensor& x) {
  STD_TORCH_CHECK(false, "in own/@NAME@.cpp");
  return x;
}
Tensor header(const Tensor& x) { fail(); return x; }
Tensor other(const Tensor& x) { throw std::range_error("own/x.cpp:3, kept as it is"); }
Tensor number(const Tensor& x) { throw 7; }
STABLE_TORCH_LIBRARY(@NAME@, m) {
  m.def("own(Tensor x) -> Tensor"); m.def("header(Tensor x) -> Tensor");
  m.def("other(Tensor x) -> Tensor"); m.def("number(Tensor x) -> Tensor");
}
STABLE_TORCH_LIBRARY_IMPL(@NAME@, CPU, m) {
  m.impl("own", TORCH_BOX(&own)); m.impl("header", TORCH_BOX(&header));
  m.impl("other", TORCH_BOX(&other)); m.impl("number", TORCH_BOX(&number));
}
"""
HEADER = 'inline void fail() { STD_TORCH_CHECK(false, "checked"); }\n'


LONG = tiers.is_long()


@pytest.fixture(params=["host", "portable"])
def op(request, tmp_path, precompiled):
    text_files.write(tmp_path, "check.h", HEADER)
    builder = sample_ops.op_from_source(tmp_path, SOURCE)
    if request.param == "portable":
        pytest.importorskip("ziglang", reason="pip install ziglang")
        if not LONG:
            pytest.skip("`make test-long` builds with zig")
    return builder(portable=request.param == "portable").load(), request.param == "portable"


def text_of(function):
    with pytest.raises(RuntimeError) as raised:
        function(torch.ones(1))
    return str(raised.value)


def test_an_error_names_the_file_where_it_is_and_nothing_else_is_changed(op, tmp_path):
    op, is_portable = op
    source = next(name for name in os.listdir(tmp_path) if name.endswith(".cpp"))
    assert text_of(op.own) == f"own, {tmp_path}/{source}:7, in own/{source}"
    assert text_of(op.header) == f"fail, {tmp_path}/check.h:1, checked"
    assert text_of(op.number)
    with pytest.raises(RuntimeError if is_portable else ValueError) as raised:
        op.other(torch.ones(1))
    folder = tmp_path if is_portable else "own"  # the message of another class is left as it is
    assert str(raised.value) == f"{folder}/x.cpp:3, kept as it is"


PLAIN = f"""\
#include "check.h"
{sample_ops.EXPORT} const char* source() {{ return __FILE__; }}
{sample_ops.EXPORT} const char* header() {{ return of_header(); }}
"""


def test_the_library_holds_no_path_and_is_the_same_elsewhere(tmp_path):
    entries = []
    for name in ("a", "b"):
        text_files.write(tmp_path / name, "check.h", "inline const char* of_header() { return __FILE__; }\n")
        text_files.write(tmp_path / name, "moved.cpp", PLAIN)
        entries.append(sample_ops.builder_class(tmp_path / name, "moved", abi="c")().build())
    assert entries[0].key == entries[1].key
    with open(entries[0].library, "rb") as file:
        content = file.read()
    assert b"own/moved.cpp" in content and b"own/check.h" in content and os.fsencode(tmp_path) not in content
