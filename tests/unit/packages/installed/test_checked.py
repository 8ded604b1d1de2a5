"""`opforge check ORG/NAME`: an installed package says which of its variants were checked, and on which device."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from opforge.bench import machine
from opforge.check import checks, stages
from opforge.cli import group
from opforge.errors import KernelNotFoundError
from opforge.ops.cases import Case
from opforge.packages.load import get_kernel as loading
from opforge.packages.load import tree


def is_one(loaded, _device):
    """Checks a package whose value must be 1."""
    assert loaded.VALUE == 1, f"the value is {loaded.VALUE}"


ONE = (Case("value", lambda place: (), checks={"the value is one": is_one}),)


def command(*arguments):
    """Runs `opforge check`. Returns the exit code, and what --json prints."""
    done = CliRunner().invoke(group, ["check", *arguments, "--json"])
    return done.exit_code, json.loads(done.stdout)


@pytest.fixture(autouse=True)
def no_kernel_is_loaded():
    """What other tests have imported would be taken for a package with the same files."""
    loading.reset()
    tree._modules.clear()


def test_what_was_checked_is_remembered_of_each_installed_variant(registry, monkeypatch):
    for number, value in (("1", 1), ("2", 2)):
        registry.publish("acme/plain", number, text=f"VALUE = {value}\n")
        registry.install("acme/plain", number)
    code, (second, first) = command("--list", "acme/plain")
    assert code == 0 and (first["package"], second["package"]) == ("acme/plain 1", "acme/plain 2")
    assert "state" not in first and "state" not in second

    code, report = command("acme/plain")
    assert code == 0 and [row["state"] for row in report["results"]] == ["unchecked", "unchecked"]
    assert report["results"][0]["reason"] == stages.UNCHECKED

    monkeypatch.setattr(stages, "cases_of_package", lambda name: ONE if name == "acme/plain" else ())
    code, report = command("acme/plain")
    second, first = report["results"]
    assert code == 1 and (first["state"], first["tests"], second["state"]) == ("ok", 1, "failed")
    assert "the value is 2" in second["reason"] and second["stage"] == "reference"

    _code, (second, first) = command("--list", "acme/plain")
    assert (first["state"], second["state"]) == ("ok", "failed")
    assert first["device"] == machine.device_name("cpu") and first["at"] > 1.7e9
    assert (first["target"], first["name"]) == ("torch-universal", "acme/plain")


def test_a_package_that_is_not_installed_is_refused(registry):
    with pytest.raises(KernelNotFoundError) as error:
        checks.run(["acme/none"], ["cpu"], 1.0, lambda _row: None)
    assert "The kernel acme/none was not found. Looked in:" in str(error.value)
    assert "opforge ls shows installed packages." in str(error.value)
