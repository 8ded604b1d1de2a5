"""The commands about packages, from packing to removing, as a user types them."""

from __future__ import annotations

import json
import os
import sys
import time

import pytest
from click.testing import CliRunner
from support.kernels.projects import python_project
from support.text_files import write

from opforge.cli import group
from opforge.packages.load import get_kernel as loading
from opforge.remote.signatures import keys, trust_file

pytestmark = [pytest.mark.compile, pytest.mark.skipif(sys.platform != "linux", reason="packages are made on Linux")]


@pytest.fixture
def user(tmp_path, monkeypatch):
    """Runs a command in a project's folder; returns its exit code, and its output or the document it printed."""
    from opforge.foundation import settings

    for name, folder in (("XDG_CONFIG_HOME", "config"), ("XDG_DATA_HOME", "data"), ("OPFORGE_KERNEL_PATH", "kernels")):
        monkeypatch.setenv(name, str(tmp_path / folder))
    (tmp_path / "registry").mkdir()
    monkeypatch.setenv("OPFORGE_REMOTES", f"file://{tmp_path}/registry")
    monkeypatch.chdir(python_project(tmp_path / "plain", text="def value():\n    return 7\n"))
    trust_file.write(
        trust_file.Trust(settings.trust_file(), (trust_file.TrustedKey(keys.create("ci"), ("package:acme/*",)),))
    )
    loading.reset()

    def run(*words):
        done = CliRunner().invoke(group, list(words), catch_exceptions=False)
        output = json.loads(done.stdout) if "--json" in words else done.output
        return done.exit_code, output

    yield run
    loading.reset()


def test_from_a_project_to_a_loaded_kernel_and_back(user, tmp_path):
    remote, into = os.environ["OPFORGE_REMOTES"], os.environ["OPFORGE_KERNEL_PATH"]
    code, packed = user("pack", "--no-try", "--json")
    assert (code, [variant["label"] for variant in packed["variants"]]) == (0, ["torch-universal"])
    assert user("pack", "--check") == (0, "two packings of acme/plain 1 are the same, byte for byte\n")
    assert user("publish", remote)[1].startswith("published acme/plain 1, ")
    assert user("publish", remote)[1].startswith("is there already, unchanged: acme/plain 1")
    code, output = user("install", "acme/plain@1", "--into", into)
    assert (code, output) == (0, f"installed acme/plain 1 (torch-universal) in {into}\n")
    assert user("install", "acme/plain@1", "--into", into, "--json")[1]["kernels"][0]["new"] is False
    import opforge

    assert opforge.get_kernel("acme/plain").value() == 7
    assert user("ls", "--json")[1]["packages"][0]["source"] == remote
    assert user("ls", remote, "acme/plain")[1].splitlines()[1].startswith("package\tacme/plain\ttorch-universal\t")
    assert user("verify", "acme/plain", "--deep") == (
        0,
        f"acme/plain 1 in {into}: intact, signed by ci\n",
    )
    assert user("rm", "acme/plain", "--into", into) == (0, f"removed acme/plain 1 from {into}\n")
    assert user("rm", "acme/plain", "--into", into)[0] == 1
    assert user("ls", "--kind", "package")[1] == "PACKAGE\tVERSION\tVARIANTS\tSIZE\tWHERE\tSIGNATURE\tFROM\n"


def test_resolving_for_this_machine_and_for_another(user, tmp_path):
    user("pack", "--no-try")
    code, table = user("install", "build", "--dry-run")
    assert (code, table.splitlines()[1].split("\t")[:2]) == (0, ["torch-universal", "chosen"])
    _code, machine = user("report", "--machine", "--json")
    machine["machines"]["cpu"]["torch"] = None
    path = write(tmp_path, "other.json", json.dumps(machine))
    code, results = user("install", "build", "--dry-run", "--for", path, "--json")
    (result,) = results["kernels"]
    assert (code, result["chosen"]) == (1, [])
    assert result["variants"][0]["problem"] == "it needs torch, and torch is not installed"
    assert user("install", "build", "--dry-run", "--for", write(tmp_path, "no.json", "{"))[0] == 1


def test_a_project_is_locked_and_installed_by_its_lock(user, tmp_path, monkeypatch):
    remote, into = os.environ["OPFORGE_REMOTES"], os.environ["OPFORGE_KERNEL_PATH"]
    user("pack", "--no-try")
    user("publish", remote)
    write(tmp_path / "project", "pyproject.toml", '[tool.opforge.kernels]\n"acme/plain" = ">=1"\n')
    monkeypatch.chdir(tmp_path / "project")
    assert user("lock", "--check")[0] == 1
    assert user("lock")[1] == "added acme/plain 1\n1 kernel in opforge.lock\n"
    assert user("lock")[1] == "1 kernel in opforge.lock, unchanged\n"
    assert user("lock", "--check") == (0, "opforge.lock is what the project requires\n")
    assert user("install", "--frozen", "--into", into)[0] == 0
    write(tmp_path / "project", "pyproject.toml", '[tool.opforge.kernels]\n"acme/plain" = ">=2"\n')
    code, output = user("lock", "--check")
    assert (code, output) == (1, "error: acme/plain >=2 is required, and 1 is locked\n")
    code, result = user("install", "--frozen", "--into", into, "--json")
    assert (code, result["error"]) == (1, "KernelLockError")


def test_wrong_usage_is_said(user):
    assert user("install", "acme/plain", "--frozen")[0] == 2
    assert user("install", "x", "--into", "a", "--user")[0] == 2
    code, result = user("install", "../x", "--json")
    assert (code, result["error"]) == (1, "KernelFormatError")


def test_listing_needs_no_torch(user):
    from support import child_processes

    code = (
        "import sys; sys.argv = ['opforge', 'ls'];"
        " from opforge.cli import group; group(standalone_mode=False); print('torch' in sys.modules)"
    )
    began = time.monotonic()
    import subprocess

    environment = child_processes.environment()
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout.endswith("False\n"), done.stderr
    assert time.monotonic() - began < 10
