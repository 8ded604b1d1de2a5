"""What is said of a symbol that no library defines, with the place that uses it, and of a library that is not found."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from click.testing import CliRunner
from support import sample_ops

from opforge.builders import load_advice
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


def test_a_library_that_the_loader_does_not_find_is_to_be_installed_or_its_folder_named(tmp_path):
    subprocess.run(["cc", "-shared", "-x", "c", "/dev/null", "-o", str(tmp_path / "libgiven.so")], check=True)
    flags = [f"-L{tmp_path}", "-Wl,--no-as-needed", "-lgiven"]
    with pytest.raises(LoadError) as error:
        sample_ops.plain_op(tmp_path, extra_link_args=flags)().load()
    assert "libgiven.so: cannot open shared object file" in str(error.value)
    assert error.value.advice.startswith(
        "Install libgiven.so, or name its folder: in LD_LIBRARY_PATH, or by extra_link"
    )
    removed = "cannot open shared object file: No such file or directory"  # of the op's own library
    assert load_advice.advice(removed) == "Rebuild it with: build-ops --force"
