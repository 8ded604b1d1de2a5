"""A package whose variants are packed one after the other, such as each on the machine that can."""

from __future__ import annotations

import json
import shutil

from support.kernels.projects import python_project
from support.kernels.registries import QUICK

from opforge.packages.form import version
from opforge.packages.pack.run import pack
from opforge.packages.registry import publish, selection
from opforge.packages.sources import reading
from opforge.remote.signatures import keys


def packed(folder, backend):
    """Packs the variant of a backend into build/."""
    python_project(folder)
    with (folder / "kernel.toml").open("a") as file:
        file.write(f'backends = ["{backend}"]\n')
    pack(reading.read(str(folder)), str(folder), QUICK)


def test_the_outcome_of_the_checks_of_each_is_published(registry, tmp_path):
    folder = tmp_path / "project"
    packed(folder, "cpu")
    packed(folder, "cuda")
    publish.publish(registry.store, str(folder), keys.signer())
    there = selection.choose("acme/plain", version.ANY, registry.sources(), all_platforms=True).verified.release
    assert {part.label: part.checks["import"] for part in there.variants} == {
        "torch-cpu": "not run: not requested",
        "torch-cuda": "not run: not requested",
    }


def test_of_one_that_was_removed_nothing_is_kept(tmp_path):
    folder = tmp_path / "project"
    packed(folder, "cpu")
    shutil.rmtree(folder / "build" / "torch-cpu")
    packed(folder, "cuda")
    assert [*json.loads((folder / "build" / "checks.json").read_text())] == ["torch-cuda"]


def test_damaged_outcomes_stop_nothing(tmp_path):
    folder = tmp_path / "project"
    packed(folder, "cpu")
    (folder / "build" / "checks.json").write_text('{"torch-cpu": ')
    packed(folder, "cuda")
    assert [*json.loads((folder / "build" / "checks.json").read_text())] == ["torch-cuda"]
