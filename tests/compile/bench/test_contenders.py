"""The cases of the real ops: each contender can be prepared and called, and `opforge bench` measures them."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from opforge.cli import group
from opforge.ops.cases import CASES, OURS, MissingError

pytestmark = [pytest.mark.compile, pytest.mark.usefixtures("builds_are_shared")]
DEEPSPEED = "DeepSpeed"
"""It compiles its ops: not with --quick."""


OFTEN = {
    "CPUAdamBuilder",
    "PinMemoryBuilder",
    "QuantizerBuilder",
    "UtilsBuilder",
}
"""One of each kind: an optimizer, memory, a quantizer, a copy."""
RARELY = pytest.mark.long("builds each op, writes large files, and starts ranks that import torch")


@pytest.mark.parametrize("builder", [pytest.param(name, marks=() if name in OFTEN else RARELY) for name in CASES])
def test_every_contender_of_an_op_can_be_called_or_says_why_not(builder, tmp_path, monkeypatch):
    from opforge.bench.measure import make_place
    from opforge.bench.selection import select

    monkeypatch.chdir(tmp_path)
    # The cases that --quick leaves out differ in numbers alone.
    for item in select([builder]):
        for dtype in item.case.measured_dtypes if item.case.quick_sizes() else ():
            with make_place(item.case.sizes[0], dtype, "cpu", quick=True) as place:
                inputs = item.case.prepare(place, item.load("cpu"))
                missing = {}
                for name, prepare in item.case.contenders.items():
                    try:
                        prepare(inputs)()
                    except MissingError as error:
                        missing[name] = str(error)
                assert OURS not in missing
                assert all(len(reason.split()) >= 3 for reason in missing.values())
                assert set(missing) < set(item.case.contenders)


def test_the_command_measures_real_ops(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(group, ["bench", "--quick", "Utils", "PinMemory", "--json", str(tmp_path / "run.json")])
    assert done.exit_code == 0, done.output
    run = json.loads((tmp_path / "run.json").read_text())
    assert [result["op"] for result in run["results"]] == ["Utils", "PinMemory"]
    for result in run["results"]:
        assert result["own_work"] < 0.02
        assert DEEPSPEED in result["missing"]
        assert set(result["baseline"]) <= set(result["samples"])
