"""The facade is written on a part of torch's headers: a torch without them is said before anything is compiled."""

import pytest
from support import sample_ops

from opforge.builders import planner
from opforge.builders.facade import flags
from opforge.errors import OpIncompatibleError


def test_the_first_folder_that_is_missing_is_named(tmp_path):
    for name in flags.OF_TORCH[:-1]:
        (tmp_path / name).mkdir(parents=True)
    assert flags.missing(str(tmp_path)) == str(tmp_path / flags.OF_TORCH[-1])
    (tmp_path / flags.OF_TORCH[-1]).mkdir(parents=True)
    assert flags.missing(str(tmp_path)) == ""


def test_a_torch_without_its_headers_is_the_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(planner.facade_headers, "missing", lambda include: f"{include}/torch/csrc/stable")
    builder = sample_ops.plain_op(tmp_path, "on_facade")
    builder.abi = "torch-facade"
    with pytest.raises(OpIncompatibleError, match="is installed without the headers that the facade is written on"):
        builder().build()
