"""An op of torch's stable ABI is built on one node, published, fetched on another, and computes the same there."""

from __future__ import annotations

import json
import os

import pytest
from support import child_processes, sample_ops
from support.remote.nodes import Nodes

torch = pytest.importorskip("torch", reason="pip install torch")
pytestmark = pytest.mark.compile

LOAD = """
import json, os, sys, torch
from support import sample_ops
op = sample_ops.builder_class(os.environ["OP"], os.environ["NAME"])().load()
x = torch.tensor([-1.0, 2.0])
print(json.dumps([op.origin, op.relu(x).tolist(), "filelock" in sys.modules, "opforge.remote" in sys.modules]))
"""


def test_an_op_that_was_built_elsewhere_computes_here(tmp_path, monkeypatch):
    nodes = Nodes(tmp_path / "nodes", monkeypatch)
    name = sample_ops.unique_name("relu")
    builder = sample_ops.stable_op(tmp_path / "op", name)()
    nodes.built(builder)
    env = {
        "OP": str(tmp_path / "op"),
        "NAME": name,
        "OPFORGE_CACHE_DIR": str(tmp_path / "node"),
        "OPFORGE_PREBUILT": "require",
        "OPFORGE_REMOTES": nodes.url,
        "PATH": "/nowhere",
    }
    origin, values, _locked, imported = json.loads(child_processes.run_with_torch(LOAD, env=env))
    assert (origin, values, imported) == (nodes.url, [0.0, 2.0], True)
    os.utime(nodes.folder / "config" / "opforge" / "trust.json", (1, 1))  # its stamp is no longer a racy one
    child_processes.run_with_torch(LOAD, env=env)
    import time

    time.sleep(2.1)
    child_processes.run_with_torch(LOAD, env=env)
    origin, values, locked, imported = json.loads(child_processes.run_with_torch(LOAD, env=env))
    assert (origin, values) == (nodes.url, [0.0, 2.0])
    assert not locked and not imported, "a remembered hit does not import remotes"
