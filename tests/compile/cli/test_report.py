"""`opforge report`, with the compilers of this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from support import child_processes, text_files
from support.paths import SOURCE_TREE

from opforge.builders.cpu.async_io import AsyncIOBuilder
from opforge.report import summary

pytestmark = pytest.mark.compile
run = child_processes.run_command


def test_the_report_lists_every_op_and_tool(own_store):
    done = run("report", "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 0, report
    assert {op["state"] for op in report["ops"]} == {"buildable"} and not report["aio"]["engines"]
    assert {"CPUAdamBuilder", "CPUAdagradBuilder", "CPULionBuilder"} <= {op["name"] for op in report["ops"]}
    assert report["accelerators"]["in_use"]["name"] == "cpu"
    tools = {tool["name"]: tool for tool in report["compilers"]}
    assert all(tools[name]["version"] and tools[name]["path"] for name in ("host", "linker", "ninja"))


def test_an_unknown_accelerator_is_reported_and_hides_nothing_else():
    done = run("report", OPFORGE_ACCELERATOR="cpuu")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "problem: 'cpuu', requested by OPFORGE_ACCELERATOR, is not a known accelerator." in done.stdout
    assert "CPUAdamBuilder\tcpu" in done.stdout


def test_the_first_line_comes_before_torch_is_imported(tmp_path):
    text_files.write(tmp_path, "torch.py", "import time; time.sleep(60)\n")
    code = "from opforge.cli import main; main()"
    env = child_processes.environment(PYTHONPATH=f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}:{SOURCE_TREE}")
    process = subprocess.Popen([sys.executable, "-c", code, "report"], env=env, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline().startswith("opforge ") and process.stdout.readline().startswith("Python ")
    process.kill()
    process.communicate()


def test_the_engines_of_async_io_are_tried_once_the_op_is_built(builds_are_shared):
    AsyncIOBuilder().build()
    aio = summary.aio_engines([{"name": "AsyncIOBuilder", "state": "cached"}])
    assert {*aio["engines"]} == {"io_uring", "libaio", "threads"} and aio["engines"]["threads"] == ""
    assert aio["problem"] == ""
