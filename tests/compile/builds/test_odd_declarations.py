"""Texts for declarations that look right: a relative folder, sources that are not preprocessed; and slots."""

from __future__ import annotations

import re

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


def test_a_builder_may_have_slots(tmp_path):
    text_files.write(tmp_path, "plain.cpp", f"{sample_ops.EXPORT} int value() {{ return 1; }}\n")
    builder = sample_ops.builder_class(tmp_path, "plain", abi="c", __slots__=("mine",))()
    assert builder.load().value() == 1
    builder.mine = 2
    assert builder.load().value() == 1
