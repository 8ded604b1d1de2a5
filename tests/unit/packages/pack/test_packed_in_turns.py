"""A package whose variants are packed one after the other, such as each on the machine that can."""

from __future__ import annotations

import json
import os
import shutil
import stat

import pytest
from support.kernels.projects import python_project
from support.kernels.registries import QUICK
from support.text_files import write

from opforge.errors import PublishError
from opforge.packages.form import version
from opforge.packages.pack.run import pack
from opforge.packages.registry import publish, selection
from opforge.packages.sources import reading
from opforge.remote.signatures import keys


def packed(folder, backend, note=lambda _text: None, **changed):
    """Packs the variant of a backend into build/."""
    python_project(folder, **changed)
    with (folder / "kernel.toml").open("a") as file:
        file.write(f'backends = ["{backend}"]\n')
    pack(reading.read(str(folder)), str(folder), QUICK, note=note)


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


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"text": "VALUE = 2\n"}, "it was packed from another __init__.py"),
        ({"version": "1.1"}, "it was acme/plain 1"),
        ({"name": "acme/other"}, "it was acme/plain 1"),
    ],
)
def test_those_of_another_state_of_the_project_are_removed(tmp_path, changed, reason):
    """For a backend that is not packed any more: loaded from the checkout, or published, it would be old code."""
    folder, notes = tmp_path / "project", []
    packed(folder, "cpu")
    packed(folder, "cuda", notes.append, **changed)
    assert sorted(os.listdir(folder / "build")) == ["checks.json", "torch-cuda"]
    assert notes == [f"{folder / 'build' / 'torch-cpu'} was removed: {reason}"]
    assert os.listdir(tmp_path) == ["project"]


def test_what_another_tool_has_put_there_stays(tmp_path):
    folder = tmp_path / "project"
    write(folder, "build/torch-cpu/metadata.json", "{}")
    write(folder, "build/notes.txt", "mine")
    packed(folder, "cuda")
    assert sorted(os.listdir(folder / "build")) == ["checks.json", "notes.txt", "torch-cpu", "torch-cuda"]


def test_two_that_were_packed_from_different_files_are_no_release(registry, tmp_path):
    """As jobs of CI bring them together, of a project without git."""
    one, other = tmp_path / "one", tmp_path / "other"
    packed(one, "cpu")
    packed(other, "cuda", text="VALUE = 2\n")
    shutil.copytree(other / "build" / "torch-cuda", one / "build" / "torch-cuda")
    reason = "torch-cpu and torch-cuda were packed from different contents of __init__.py. Remove those that are not"
    with pytest.raises(PublishError, match=reason):
        publish.publish(registry.store, str(one), keys.signer())


def test_everybody_can_read_the_outcomes_as_they_can_read_the_variants(tmp_path):
    packed(tmp_path / "project", "cpu")
    assert stat.S_IMODE(os.stat(tmp_path / "project" / "build" / "checks.json").st_mode) == 0o644
