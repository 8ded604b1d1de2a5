"""Fetching for another machine: what this one has is no reason to refuse an entry for a target that it cannot run."""

from __future__ import annotations

import json

import pytest
from support import sample_ops
from support.remote.nodes import reasons

from opforge.builders import batch
from opforge.builders.declaration import machine
from opforge.builders.lookup import fit, remotes
from opforge.remote.entry_source import RemoteEntries

OTHER = "cpu:x86-64-v4"

pytestmark = pytest.mark.skipif(machine.cpu_level() == "aarch64", reason="it is about the levels of x86-64")


@pytest.fixture
def on_old_processor(nodes, tmp_path, monkeypatch):
    """An op that was built and published for a newer processor; this process is on an old one."""
    builder = sample_ops.plain_op(tmp_path / "op")(OTHER)
    nodes.built(builder)
    monkeypatch.setattr(machine, "cpu_level", lambda: "x86-64-v2")
    return builder


def test_an_op_for_another_processor_is_fetched_and_not_built(nodes, on_old_processor, monkeypatch):
    nodes.enter("node")
    entry = batch.look_up(on_old_processor, force=False, any_machine=True)
    assert (entry.record["target"], entry.origin) == (OTHER, nodes.url)
    monkeypatch.delenv("OPFORGE_REMOTES")
    assert batch.look_up(on_old_processor, force=False, any_machine=True).key == entry.key


def test_it_is_not_loaded_here(nodes, on_old_processor, tmp_path):
    entry, rejected = nodes.fetch(sample_ops.plain_op(tmp_path / "op")())
    assert entry is None and "it is built for x86-64-v4, and this processor offers x86-64-v2" in reasons(rejected)
    batch.look_up(on_old_processor, force=False, any_machine=True)
    assert nodes.fetch(sample_ops.plain_op(tmp_path / "op")())[0] is None


def test_an_entry_for_a_lower_level_is_not_enough_if_a_level_is_requested(nodes, tmp_path, monkeypatch):
    old = sample_ops.plain_op(tmp_path / "op")("cpu:x86-64")
    nodes.built(old)
    monkeypatch.setattr(machine, "cpu_level", lambda: "x86-64-v2")
    store = nodes.enter("node")
    request = remotes.request_for(sample_ops.plain_op(tmp_path / "op")(OTHER).spec(), store, exact=True)
    is_new, rejected = RemoteEntries(is_fresh=True).fetch(request)
    assert not is_new
    assert "it is built for cpu:x86-64, not for cpu:x86-64-v4" in reasons(rejected)


def test_the_command_fetches_for_another_level(nodes, on_old_processor, tmp_path, monkeypatch):
    from click.testing import CliRunner

    from opforge.cli.remote.fetch import command

    folder = tmp_path / "op"
    (folder / "older_ops.py").write_text(
        "from opforge import OpBuilder\n"
        "class PlainBuilder(OpBuilder):\n    name, sources, abi = 'plain', ['plain.cpp'], 'c'\n"
    )
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    nodes.enter("node")
    for state in ("fetched", "present"):
        done = CliRunner().invoke(command, ["older_ops:PlainBuilder", "--target", OTHER, "--json"])
        (outcome,) = json.loads(done.stdout)["ops"]
        assert (outcome["state"], outcome["target"]) == (state, OTHER), outcome


def test_device_code_for_another_machine_is_judged_by_its_target():
    here = machine.this_machine()._replace(device="cuda", devices=("sm_80",), driver=(11, 8), torch="2.13.0+cpu")
    record = {
        "target": "cuda:sm_90",
        "machine": here.processor,
        "floors": {"GLIBC": "9.99"},
        "requires": {"cuda": "13.0"},
        "abi": "torch-stable",
        "torch_target": "2.10",
        "needs": ["libtorch_cuda.so"],
        "user_flags": {},
        "interface": 1,
    }
    fields = {"target": machine_target("cuda:sm_90"), "abi": "torch-stable", "portable": False, "name": "op"}
    spec = type("Spec", (), fields)
    where = fit._machine_of(spec, record, here)
    assert fit.is_of_another_machine(spec, here)
    assert fit.host_problem(record, where) is None
    assert not fit._device_fit(record, where, spec).problem
    other = fit._device_fit({**record, "target": "cuda:sm_80"}, where, spec)
    assert "the target is sm_90" in other.problem


def machine_target(text):
    from opforge.accelerator.target import Target

    return Target.parse(text)
