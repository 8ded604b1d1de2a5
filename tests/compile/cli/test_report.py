"""`opforge report` as a user runs it, with the compilers of this machine."""

from __future__ import annotations

import json

import pytest
from support import child_processes

pytestmark = pytest.mark.compile
run = child_processes.run_command


def test_the_report_lists_every_op_and_tool(own_store):
    done = run("report", "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 0, report
    assert {op["state"] for op in report["ops"]} == {"buildable"}
    assert {"CPUAdamBuilder", "CPUAdagradBuilder", "CPULionBuilder"} <= {op["name"] for op in report["ops"]}
    assert report["accelerators"]["in_use"]["name"] == "cpu"
    tools = {tool["name"]: tool for tool in report["compilers"]}
    assert all(tools[name]["version"] and tools[name]["path"] for name in ("host", "linker", "ninja"))


def test_an_unknown_accelerator_is_reported_and_hides_nothing_else():
    done = run("report", OPFORGE_ACCELERATOR="cpuu")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "problem: 'cpuu', requested by OPFORGE_ACCELERATOR, is not a known accelerator." in done.stdout
    assert "CPUAdamBuilder\tcpu" in done.stdout
