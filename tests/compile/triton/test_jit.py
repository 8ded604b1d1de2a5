"""Kernels that are launched through Triton itself, while they are written: an edit counts at the next load."""

from __future__ import annotations

import os

import pytest
import torch
from support import text_files
from support.gpu import triton_parts
from support.gpu.triton_cases import INTERPRETED

from opforge.errors import KernelLaunchError
from opforge.foundation.remembered_values import FlatStamps

pytestmark = INTERPRETED
KERNELS = triton_parts.KERNELS
FACTOR = triton_parts.FACTOR.replace("import triton\n", "import triton\nimport triton.language as tl\n")
"""Interpreted functions need the name."""


def scale_op(folder):
    builder = triton_parts.scale_op(folder)
    text_files.write(folder, "factor.py", FACTOR)
    return builder


def scaled(op, by=3.0):
    x = torch.tensor([1.0, 2.0])
    y = torch.empty(2)
    op.scale(x, y, by)
    return y.tolist()


@pytest.mark.parametrize(
    ("file", "text", "edited"),
    [
        ("kernels.py", KERNELS, KERNELS.replace(", by), mask", ", by) + 1, mask")),
        ("factor.py", FACTOR, FACTOR.replace("value * by", "value * by + 1")),
    ],
    ids=["the kernel", "a function of another file"],
)
def test_an_edit_counts_at_the_next_load_and_leaves_the_op_that_is_loaded(tmp_path, file, text, edited):
    builder = scale_op(tmp_path / "op")("cuda:sm_80")
    for name in ("kernels.py", "factor.py"):
        os.utime(tmp_path / "op" / name, (10**9, 10**9))
    first = builder.load()
    assert scaled(first) == [3.0, 6.0]
    text_files.write(tmp_path / "op", file, edited)
    second = builder.load()
    assert (scaled(first), scaled(second)) == ([3.0, 6.0], [4.0, 7.0])
    text_files.write(tmp_path / "op", file, text)
    assert scaled(builder.load()) == [3.0, 6.0]


def test_the_op_is_kept_until_an_edit(tmp_path, monkeypatch):
    monkeypatch.setattr(FlatStamps, "is_racy", lambda *_arguments: False)  # as if the files were two seconds old
    builder = scale_op(tmp_path / "op")("cuda:sm_80")
    first = builder.load()
    assert builder.load() is first
    text_files.write(tmp_path / "op", "factor.py", FACTOR.replace("value * by", "value + by"))
    assert builder.load() is not first


def test_a_constant_of_the_same_length_is_noticed_within_a_second(tmp_path):
    """Python would take the bytecode of the old source."""
    builder = scale_op(tmp_path / "op")("cuda:sm_80")
    text = KERNELS.replace("@triton.jit", "MORE = tl.constexpr(1)\n\n\n@triton.jit")
    text = text.replace(", by), mask", ", by) + MORE, mask")
    for number in (1, 2):
        text_files.write(tmp_path / "op", "kernels.py", text.replace("(1)", f"({number})"))
        assert scaled(builder.load()) == [3.0 + number, 6.0 + number]


def test_a_tensor_of_the_host_needs_the_interpreter(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with pytest.raises(KernelLaunchError, match="expected one on a GPU: OPFORGE_TRITON_JIT=1 and TRITON_INTERPRET=1"):
        scaled(scale_op(tmp_path / "op")("cuda:sm_80").load())


def test_folders_with_similar_names_are_told_apart(tmp_path):
    ops = [scale_op(tmp_path / name) for name in ("my-op", "my_op")]
    text_files.write(tmp_path / "my_op", "factor.py", FACTOR.replace("*", "-"))
    assert [scaled(op("cuda:sm_80").load()) for op in ops] == [[3.0, 6.0], [-2.0, -1.0]]


def test_a_function_below_triton_autotune_is_launched_with_the_declared_constants(tmp_path):
    builder = scale_op(tmp_path / "op")
    tuned = '@triton.autotune([triton.Config({"BLOCK": 64})], key=["count"])\n@triton.jit'
    text_files.write(tmp_path / "op", "kernels.py", KERNELS.replace("@triton.jit", tuned))
    assert scaled(builder("cuda:sm_80").load()) == [3.0, 6.0]
