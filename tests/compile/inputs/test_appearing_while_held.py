"""A second load in one process after an earlier kernel root has got what the op was built without."""

from __future__ import annotations

import time

import pytest
from support import sample_ops, text_files

from opforge.builders.declaration.kernel_roots import KernelRoot
from opforge.foundation.remembered_values import RACY_NS


@pytest.fixture(autouse=True)
def later(monkeypatch):
    """Lets the process believe that it is some seconds later: the files that were just written are not racy."""
    monkeypatch.setattr("opforge.builders.base.time.time_ns", lambda now=time.time_ns: now() + 2 * RACY_NS)


@pytest.fixture(params=["built", "cache"])
def builder(request, tmp_path):
    """A kept builder whose sources are looked for in two roots, of which the second has them."""
    text_files.write(tmp_path, "second/part.cpp", f"{sample_ops.EXPORT} int value() {{ return PART; }}\n")
    text_files.write(tmp_path, "second/include/part.h", "#define PART 2\n")
    text_files.write(tmp_path, "first/other.cpp", "")
    roots = [KernelRoot(name, str(tmp_path / name)) for name in ("first", "second")]
    name = sample_ops.unique_name("op")
    flags = ["-include", "part.h"]
    attributes = {"sources": ["part.cpp"], "kernel_roots": roots, "extra_compile_args": flags}
    cls = sample_ops.builder_class(tmp_path / "own", name, abi="c", **attributes)
    if request.param == "cache":
        cls().load()
    return cls()


def test_a_source_in_an_earlier_root(builder, tmp_path):
    assert builder.load().value() == 2 and builder.current()
    text_files.write(tmp_path, "first/part.cpp", f"{sample_ops.EXPORT} int value() {{ return 1; }}\n")
    assert builder.load().value() == 1


def test_a_folder_of_headers_in_an_earlier_root(builder, tmp_path):
    assert builder.load().value() == 2 and builder.current()
    text_files.write(tmp_path, "first/include/part.h", "#define PART 3\n")
    assert builder.load().value() == 3
