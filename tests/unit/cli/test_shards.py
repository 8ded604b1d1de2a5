"""`build-ops --shard` and `--report`: shares that are disjoint and balanced, and what became of each op."""

from __future__ import annotations

import json
import os

import click
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import sample_ops
from support.child_processes import run_command

from opforge.cli.prebuild import shards
from opforge.cli.selection import Selected


class Spec:
    def __init__(self, sources):
        self.sources, self.target = ["x"] * sources, type("Target", (), {"arch": ("native",)})()


def op(name, sources):
    builder = type("Builder", (), {"spec": lambda self: Spec(sources)})
    selected = Selected(name, None, lambda: None, True)
    return type("Fixed", (Selected,), {"builder": lambda self: builder()})(*selected)


@given(st.lists(st.integers(1, 20), max_size=30), st.integers(1, 8))
@settings(max_examples=60, deadline=None)
def test_the_shares_are_all_ops_once_and_balanced(sizes, count):
    ops = [op(f"op{number}", size) for number, size in enumerate(sizes)]
    shares = [shards.share(ops, shards.Shard(number + 1, count)) for number in range(count)]
    assert sorted(each.name for part in shares for each in part) == sorted(each.name for each in ops)
    loads = [sum(len(each.builder().spec().sources) for each in part) for part in shares]
    assert max(loads) - min(loads) <= max(sizes, default=0)


def test_an_op_that_cannot_be_declared_is_in_one_share():
    broken = Selected("broken", None, lambda: 1 / 0, True)
    assert [len(shards.share([broken], shards.Shard(number, 3))) for number in (1, 2, 3)] == [1, 0, 0]


@pytest.mark.parametrize(
    ("environment", "shard"),
    [
        ({"SLURM_ARRAY_TASK_ID": "7", "SLURM_ARRAY_TASK_COUNT": "4", "SLURM_ARRAY_TASK_MIN": "5"}, (3, 4)),
        (
            {
                "SLURM_ARRAY_TASK_ID": "7",
                "SLURM_ARRAY_TASK_COUNT": "4",
                "SLURM_ARRAY_TASK_MIN": "1",
                "SLURM_ARRAY_TASK_STEP": "3",
            },
            (3, 4),
        ),
        ({"JOB_COMPLETION_INDEX": "0", "JOB_COMPLETIONS": "3"}, (1, 3)),
        ({"CI_NODE_INDEX": "3", "CI_NODE_TOTAL": "3"}, (3, 3)),
        ({"CIRCLE_NODE_INDEX": "1", "CIRCLE_NODE_TOTAL": "2"}, (2, 2)),
        ({"BUILDKITE_PARALLEL_JOB": "1", "BUILDKITE_PARALLEL_JOB_COUNT": "2"}, (2, 2)),
        ({"RANK": "5", "WORLD_SIZE": "8"}, (6, 8)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "2"}, (1, 2)),
        ({"SLURM_ARRAY_TASK_ID": "1", "SLURM_ARRAY_TASK_COUNT": "2", "SLURM_PROCID": "0", "SLURM_NTASKS": "9"}, (2, 2)),
    ],
)
def test_a_scheduler_says_the_share(environment, shard):
    assert shards.automatic(environment) == shard


@pytest.mark.parametrize("value", ["0/4", "5/4", "1", "1/0", "a/b", "1/2/3", "-1/2"])
def test_what_is_no_share(value):
    with pytest.raises(click.BadParameter, match="expected I/N with I from 1 to N, or auto"):
        shards.parsed(value)


@pytest.mark.parametrize(
    ("environment", "text"),
    [
        ({}, "expected one of these pairs"),
        ({"RANK": "3", "WORLD_SIZE": "2"}, "do not say which part"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, "do not say which part"),
        (
            {"SLURM_ARRAY_TASK_ID": "9", "SLURM_ARRAY_TASK_COUNT": "3", "SLURM_ARRAY_TASK_MIN": "1"},
            r"SLURM_ARRAY_TASK_ID='9', .* do not say which part of how many this is: type --shard I/N",
        ),
    ],
)
def test_a_scheduler_that_says_nothing(environment, text):
    with pytest.raises(click.BadParameter, match=text):
        shards.automatic(environment)


@pytest.mark.compile
def test_two_shards_build_all_and_report_each(tmp_path, monkeypatch):
    folder = tmp_path / "op"
    for name in ("one", "two", "three"):
        sample_ops.plain_op(folder, name)
    (folder / "my_ops.py").write_text(
        "from opforge import OpBuilder\n"
        + "".join(
            f"class {name.title()}Builder(OpBuilder):\n    name, sources, abi = '{name}', ['{name}.cpp'], 'c'\n"
            for name in ("one", "two", "three")
        )
    )
    monkeypatch.chdir(folder)
    names, units = [f"my_ops:{name}Builder" for name in ("One", "Two", "Three")], []
    for number in (1, 2):
        report = tmp_path / f"{number}.json"
        arguments = ("--shard", f"{number}/2", "--report", str(report))
        done = run_command("build-ops", *names, *arguments)
        assert done.returncode == 0, done.stderr
        document = json.loads(report.read_text())
        assert (document["shard"], document["host"]) == ([number, 2], os.uname().nodename)
        units += document["units"]
    assert sorted(unit["name"] for unit in units) == sorted(names)
    assert all(unit["state"] == "built" and unit["bytes"] > 0 and unit["peak_bytes"] for unit in units)
