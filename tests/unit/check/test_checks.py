"""What a run of checks makes of the time that it has."""

from __future__ import annotations

import json

import pytest
from support import child_processes

pytest.importorskip("torch", reason="pip install torch")

CODE = """
import json, time
from types import SimpleNamespace
from opforge.check import checks, kernels

installed = [SimpleNamespace(name=name, accelerator="cpu", label="", package="") for name in ("acme/one", "acme/two")]
checks.selected = lambda names, devices: ([], installed)
kernels.prepare = lambda kernel, say: None
kernels.check_kernel = lambda kernel, say: time.sleep(100)
for checks.MOST_SECONDS, timeout in ((1, 50.0), (100, 0.5)):
    print(json.dumps([(row.name, row.state, row.reason) for row in checks.run([], ["cpu"], timeout, lambda row: None)]))
"""


def test_an_op_that_runs_when_the_time_is_over_is_skipped_and_one_that_takes_too_long_has_crashed():
    over, too_long = map(json.loads, child_processes.run_python(CODE).splitlines())
    text = "the 1 s of a run were over: check it with: opforge check"
    assert over == [["acme/one", "skipped", f"{text} acme/one"], ["acme/two", "skipped", f"{text} acme/two"]]
    assert too_long == [[name, "crashed", "it did not end within 0.5 s"] for name in ("acme/one", "acme/two")]
