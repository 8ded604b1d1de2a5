"""Configs from the tables that other projects ship."""

from __future__ import annotations

import json
import os

import pytest

from opforge.builders.triton import Kernel, configs_of
from opforge.builders.triton_op_builder.kernel import check_kernels
from opforge.errors import BuilderError, TuningError

# As vLLM's tables of fused mixture-of-experts kernels are.
SMALL = {"BLOCK_SIZE_M": 16, "GROUP_SIZE_M": 1, "num_warps": 4, "num_stages": 3}
LARGE = {"BLOCK_SIZE_M": 64, "GROUP_SIZE_M": 8, "num_warps": 8, "num_stages": 4}
NAMES = {"BLOCK_SIZE_M": "BLOCK", "GROUP_SIZE_M": ""}


def written(folder, value, name="table.json"):
    path = folder / name
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return str(path)


def test_each_config_is_a_candidate_once_in_the_kernels_own_names(tmp_path):
    first = written(tmp_path, {"triton_version": "3.4.0", "1": SMALL, "2": SMALL, "64": LARGE})
    second = written(tmp_path, {"1": {**LARGE, "GROUP_SIZE_M": 1}}, "second.json")
    small, large = {"BLOCK": 16, "warps": 4, "stages": 3}, {"BLOCK": 64, "warps": 8, "stages": 4}
    configs = configs_of([first, second], NAMES)
    assert configs == (small, large), "a size is no part of a config"
    kernel = Kernel("scale", "scale.py", "scale", {"x": "*fp32"}, {"BLOCK": 128}, configs=configs)
    check_kernels("ScaleBuilder", [kernel])
    assert (kernel.variant(large).warps, kernel.variant(large).constants) == (8, {"BLOCK": 64})


def test_a_name_that_the_kernel_lacks_is_an_error_of_the_builder(tmp_path):
    configs = configs_of([written(tmp_path, {"1": SMALL})])
    kernel = Kernel("scale", "scale.py", "scale", {"x": "*fp32"}, {"BLOCK_SIZE_M": 128}, configs=configs)
    with pytest.raises(BuilderError, match=r"scale: configs has .*Expected numbers for BLOCK_SIZE_M, warps, stages"):
        check_kernels("ScaleBuilder", [kernel])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "it is not valid JSON"),
        ("[1]", "expected an object"),
        ({"many": SMALL}, "a size"),
        ({"1": {"BLOCK": "64"}}, "a whole number"),
        ({"1": {"BLOCK": 1.5}}, "a whole number"),
        ({"1": {"BLOCK": -1}}, "is -1: expected a whole number"),
        ({"1": {f"n{number}": 1 for number in range(65)}}, "at most 64"),
        (" " * ((1 << 20) + 1), ": is not a regular file of at most 1048576 bytes"),
    ],
)
def test_what_is_no_such_table_is_refused_with_its_name(tmp_path, text, problem):
    path = written(tmp_path, text)
    with pytest.raises(TuningError, match=problem) as caught:
        configs_of([path])
    assert str(caught.value).startswith(f"{path} cannot be used for tuning: ")
    assert "A table maps sizes to configs, such as {" in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    path = os.path.join(tmp_path, "missing.json")
    with pytest.raises(TuningError, match=r"missing.json cannot be used for tuning: it cannot be read \(No such file"):
        configs_of([path])
