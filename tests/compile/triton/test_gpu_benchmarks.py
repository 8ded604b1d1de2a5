"""The GPU benchmarks of attention and paged memory make their calls, by Triton's interpreter. Nothing is timed."""

from __future__ import annotations

import json

import pytest
import torch
from support.gpu import fake_gpu
from support.gpu.triton_cases import INTERPRETED, builder_of
from support.paths import CHECKOUT

from opforge.builders.triton import attention as builders
from opforge.builders.triton.ragged import RaggedOpsBuilder
from opforge.ops import attention as core
from opforge.ops import host_op
from opforge.ops.triton import attention as device

pytestmark = INTERPRETED


@pytest.fixture
def benchmarks(interpreted, monkeypatch):
    """The benchmarks with small shapes in float16, over kernels that are interpreted."""
    monkeypatch.syspath_prepend(CHECKOUT)
    from benchmarks.gpu import attention, paged, sparse

    for module in (core, host_op):
        monkeypatch.setattr(module, "on_host", lambda tensor: False)
    for builder in (builders.EvoformerAttnBuilder, builders.SparseAttnBuilder, RaggedOpsBuilder):
        builder("cuda:sm_90").load()
    assert device.DTYPES
    small = {
        attention: {"DENSE": ((1, 20, 2, 16),), "EVOFORMER": ((2, 18, 2, 16),)},
        sparse: {"SHAPE": (1, 1, 128, 64)},
    }
    small[paged] = {"SEQUENCES": (3, 32), "PAGE": 8, "HEADS": 2, "GROUP": 2, "SIZE": 16}
    small[paged] |= {"TOKENS": 16, "RETAINED": 5, "CHANNELS": 64}
    for module, values in small.items():
        for name, value in ({"DTYPE": torch.float16} | values).items():
            monkeypatch.setattr(module, name, value)
    return attention, sparse, paged


def test_they_run_to_their_end_and_compare_with_their_goals(benchmarks, capsys):
    from benchmarks.gpu import __main__ as main
    from benchmarks.gpu import selected_parts

    gpu = fake_gpu.create({"opforge": 90.0, "copy": 90.0})
    results = json.loads(json.dumps(main.measure(gpu, selected_parts(["attention", "sparse", "paged"]))))
    assert not results["failed"] and not results["stopped"]
    judged = {figure["task"]: figure for figure in results["figures"] if figure["contender"] == "opforge"}
    goals = [figure["target"].partition(" ")[0] for figure in judged.values()]
    assert len(judged) == 7 and goals == ["0.60", "1.50", "1.60", "6.40", "0.8", "0.8", "0.8"]
    for result in gpu.results:
        if any("SDPA" in name or "flash" in name for name in result):
            first, *others = (tensor.float() for tensor in result.values())
            assert all(torch.allclose(first.view(-1), other.reshape(-1), atol=2e-2) for other in others)


def test_an_attention_is_as_fast_as_its_goal_or_not(benchmarks):
    from benchmarks.gpu.targets import against
    from benchmarks.gpu.timing import Figure

    def figures(ours, rival):
        return [Figure("t", name, time, time, None, None) for name, time in (("opforge", ours), ("rival", rival))]

    assert against(figures(100.0, 150.0), "rival", "evoformer")[0].met is True
    assert against(figures(100.0, 149.0), "rival", "evoformer")[0].met is False
    ours = against(figures(10.0, 64.0), "rival", "sparse", fewer=8.0)[0]
    assert ours.met is True and ours.target == "6.40 times as fast as rival"
    absent = against(figures(1.0, 1.0)[:1], "rival", "dense")[0]
    assert absent.met is None and absent.note == "rival took no part"


def test_the_builders_are_those_of_the_accelerator(benchmarks):
    assert builder_of("RandomLTDBuilder") is benchmarks[2].RandomLTDBuilder
