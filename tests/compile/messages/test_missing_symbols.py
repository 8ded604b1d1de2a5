"""A symbol that no library defines is written as in the sources, with the place that uses it."""

from __future__ import annotations

import shutil

import pytest
from click.testing import CliRunner
from support import sample_ops

from opforge.cli.inspect import command
from opforge.errors import LoadError
from opforge.foundation import symbols

pytestmark = pytest.mark.skipif(shutil.which("c++filt") is None, reason="needs c++filt (apt install binutils)")
SOURCE = """
namespace mine { template <class T> T scaled(T x, double by); }
extern "C" __attribute__((visibility("default"))) int value(int x) {
  return mine::scaled<int>(x, 2.0);
}
"""


def test_a_missing_symbol_names_the_line_that_uses_it(tmp_path):
    builder = sample_ops.plain_op(tmp_path, source=SOURCE)
    for _ in ("built", "from the cache"):
        with pytest.raises(LoadError) as caught:
            builder().load()
        assert caught.value.problem == (
            f"undefined symbol: int mine::scaled<int>(int, double), which {tmp_path}/plain.cpp:4 uses"
        )
        assert "Name the source or the library that defines it" in str(caught.value)
        assert isinstance(caught.value.__context__, OSError) and caught.value.__cause__ is None


def test_inspect_shows_functions_as_they_are_written(tmp_path):
    scaled = "namespace mine { int scaled(int x) { return 3 * x; } }"
    source = f'{scaled}\nextern "C" int value(int x) {{ return mine::scaled(x); }}'
    entry = sample_ops.plain_op(tmp_path, source=source, extra_compile_args=["-fvisibility=default"])().build()
    assert "mine::scaled(int)" in CliRunner().invoke(command, [entry.folder]).stdout


def test_what_cannot_be_translated_stays(monkeypatch):
    assert symbols.demangled(["main", "_Z", "_ZN4mine6scaledEi"]) == {
        "main": "main",
        "_Z": "_Z",
        "_ZN4mine6scaledEi": "mine::scaled(int)",
    }
    monkeypatch.setenv("PATH", "/nonexistent")
    assert symbols.demangled(["_ZN4mine6scaledEi"]) == {"_ZN4mine6scaledEi": "_ZN4mine6scaledEi"}
