"""The files of opforge that shape plans: a look-up is remembered as long as these have not changed."""

from __future__ import annotations

import os

import pytest
from support import sample_ops

from opforge.builders import toolchains


@pytest.mark.parametrize("target", ["cpu:x86-64", "cuda:sm_90", "hip:gfx90a", "xpu", "opencl"])
def test_every_file_that_shapes_plans_exists(tmp_path, target):
    """A file that is not there has a stamp too, which would stay the same while another file shapes the plan."""
    spec = sample_ops.builder_class(tmp_path, "op", devices=[target.partition(":")[0]])(target).spec()
    code = toolchains.plan_code(spec)
    assert code and [file for file in code if not os.path.isfile(file)] == []
