"""Texts for declarations that look right: a relative folder, sources that are not preprocessed; and slots."""

from __future__ import annotations

import re
import shutil

import pytest
from support import sample_ops, text_files

from opforge.errors import BuilderError, CompileError


def test_a_relative_folder_says_what_to_write(tmp_path):
    cls = sample_ops.builder_class(tmp_path, "plain", abi="c")
    cls.folder = "csrc"
    line = "os.path.join(os.path.dirname(os.path.abspath(__file__)), 'csrc')"
    with pytest.raises(BuilderError, match=re.escape(f"folder='csrc'. Expected an absolute path, such as {line}")):
        cls().build()


@pytest.mark.parametrize(("suffix", "advice"), [(".s", "rename it to .S"), (".ii", "name the .cpp that it was made")])
def test_a_source_that_is_not_preprocessed_says_what_to_do(tmp_path, suffix, advice):
    text_files.write(tmp_path, f"plain{suffix}", "")
    cls = sample_ops.builder_class(tmp_path, "plain", abi="c", sources=[f"plain{suffix}"])
    with pytest.raises(CompileError, match=rf"Of a {re.escape(suffix)} file, which is not preprocessed, .* {advice}"):
        cls().build()


@pytest.mark.parametrize(
    "compiler",
    [
        "g++",
        pytest.param(
            "clang++", marks=pytest.mark.skipif(not shutil.which("clang++"), reason="needs clang++ (apt install clang)")
        ),
    ],
)
@pytest.mark.parametrize("place", ["plain.cpp", "include/list.h"])
def test_a_file_may_include_itself_by_its_name(tmp_path, monkeypatch, place, compiler):
    monkeypatch.setenv("CXX", compiler)
    again = "#ifndef AGAIN\n#define AGAIN\n#include __FILE__\n#else\n#define VALUE {}\n#endif\n"
    value = f"{sample_ops.EXPORT} int value() {{ return VALUE; }}\n"
    text_files.write(tmp_path, "plain.cpp", "#include <list.h>\n" + value)
    cls = sample_ops.builder_class(tmp_path, "plain", abi="c", include_dirs=["include"])
    for number in (1, 2):
        text = again.format(number)
        if place == "plain.cpp":
            text = text.replace("#endif\n", f"{value}#endif\n")
        path = tmp_path / place
        text_files.write(path.parent, path.name, text)
        assert cls().load().value() == number


def test_a_builder_may_have_slots(tmp_path):
    text_files.write(tmp_path, "plain.cpp", f"{sample_ops.EXPORT} int value() {{ return 1; }}\n")
    builder = sample_ops.builder_class(tmp_path, "plain", abi="c", __slots__=("mine",))()
    assert builder.load().value() == 1
    builder.mine = 2
    assert builder.load().value() == 1
