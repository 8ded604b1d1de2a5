"""`opforge publish --bench FILE`: a release carries what was measured of it, and `opforge ls` shows it by machine."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from support.text_files import write

from opforge.bench import machine
from opforge.bench.results import Result, Run
from opforge.cli import group
from opforge.packages.registry import index


@pytest.fixture
def measured(tmp_path):
    """Returns the path of a file of `opforge bench --json`, of a machine."""

    def run(cpu, seconds):
        samples = {"opforge": [seconds] * 3, "torch": [2 * seconds] * 3}
        result = Result("Scale", "forward", 1 << 20, "elements", "float32", "cpu", "GB/s", 4 << 20, ["torch"], samples)
        facts = {**machine.describe(), "cpu": cpu}
        return write(tmp_path, f"{cpu}.json", json.dumps(Run(facts, "cpu", True, [result]).to_json()))

    return run


def opforge(*words):
    return CliRunner().invoke(group, [*words])


def test_what_was_measured_is_signed_with_the_release_and_shown_by_machine(registry, measured):
    folder = registry.packed()
    done = opforge(
        *("publish", registry.url, folder, "--key", "ci", "--bench", measured("fast", 0.001)),
        *("--bench", measured("slow", 0.01)),
    )
    assert done.exit_code == 0, done.output
    assert len(index.read(registry.store, "acme/plain").releases) == 1
    in_store = opforge("ls", registry.url, "acme/plain").output
    registry.install()
    installed = opforge("ls", "acme/plain").output
    for shown in (in_store, installed):
        fast, slow = (shown.split("measured on cpu ")[number].split("measured on")[0] for number in (1, 2))
        assert fast.startswith("fast, ") and slow.startswith("slow, ")
        assert "4.19 (4.19 .. 4.19)" in fast and "2.1 (2.1 .. 2.1)" in fast and "0.419 (0.419 .. 0.419)" in slow
    assert "measured on" not in opforge("ls").output


def test_a_release_without_results_is_as_before(registry):
    registry.publish()
    assert "measured" not in opforge("ls", registry.url, "acme/plain").output
    (name,) = (name for name in registry.files() if "/statements/" in name)
    assert b"benchmarks" not in registry.content(name)


def test_what_is_no_file_of_results_is_refused_and_nothing_is_published(registry, tmp_path):
    folder = registry.packed()
    done = opforge("publish", registry.url, folder, "--bench", write(tmp_path, "x.json", "{}"))
    assert done.exit_code == 1 and "it is not a file of `opforge bench`" in done.output
    done = opforge("publish", registry.url, folder, registry.packed("acme/two"), "--bench", "x.json")
    assert done.exit_code == 2 and "--bench is of one package: publish it alone." in done.output
    assert not registry.files()
