"""Which op `opforge cache explain` takes a name for, and how it describes one difference."""

from __future__ import annotations

import types

import pytest
from click.testing import CliRunner
from support import sample_ops

from opforge.accelerator.target import Target
from opforge.cache.maintenance.explain import Difference
from opforge.cli import group
from opforge.cli.cache.explain import describe
from opforge.report import ops


@pytest.mark.parametrize(
    ("difference", "text"),
    [
        (Difference("compile_flags", ["-O3"], ["-O2", "-g"]), "compile_flags: added -O2 -g, removed -O3"),
        (Difference("include", ["a", "b"], ["b", "a"]), "include: the order has changed"),
        (Difference("defines", [], [["N", "4"], ["M", ""]]), "defines: added N=4 M"),
        (Difference("toolchain.version", "g++ 12", "g++ 13"), "toolchain.version: was g++ 12, is g++ 13"),
        (Difference("environment.CPATH", None, "/a"), "environment.CPATH: is new: /a"),
        (Difference("environment.CPATH", "/a", None), "environment.CPATH: was /a"),
    ],
)
def test_a_difference_in_words(difference, text):
    assert describe(difference) == text


def test_an_op_for_a_device_that_is_not_here_is_found_by_its_target(monkeypatch, tmp_path):
    fused = sample_ops.plain_op(tmp_path, "fused", devices=("cuda",))
    device = types.SimpleNamespace(
        name="cuda", target=lambda: Target("cuda", ("sm_90",)), get_op_builder=lambda _name: fused
    )
    offers = {"cpu": [], "cuda": [ops.OfferedOp("FusedBuilder", device)]}
    monkeypatch.setattr(ops, "offers", lambda devices=(): [op for name in devices or ["cpu"] for op in offers[name]])
    done = CliRunner().invoke(group, ["cache", "explain", "Fused", "--target", "cuda:sm_90"])
    assert done.stdout.startswith("miss: FusedBuilder for cuda:sm_90"), done.output
    assert CliRunner().invoke(group, ["cache", "explain", "Fused"]).exit_code == 2
