"""Packages that are in a lock file because others need them: they stay, too, until they are upgraded."""

from __future__ import annotations

import pytest
from support.remote.withdrawing import withdraw_release
from support.text_files import write

from opforge.packages.project import lock_file, locking


@pytest.fixture
def locked(registry, tmp_path):
    """Locks a project that requires acme/top; returns what is locked, and what changed."""
    write(tmp_path / "mine", "pyproject.toml", '[tool.opforge.kernels]\n"acme/top" = ">=1"\n')

    def run(upgrade=None):
        lock, changes = locking.make(str(tmp_path / "mine"), registry.sources(), upgrade)
        lock_file.write(str(tmp_path / "mine"), lock)
        return {kernel.name: str(kernel.version) for kernel in lock.kernels}, changes

    return run


@pytest.fixture
def newer(registry, locked):
    """The project was locked; since then there are newer releases of all."""
    registry.publish("acme/base", "1")
    registry.publish("acme/top", "1", depends={"acme/base": ">=1"})
    locked()
    registry.publish("acme/base", "2", text="VALUE = 2\n")
    registry.publish("acme/top", "2", text="VALUE = 2\n", depends={"acme/base": ">=1"})


def test_what_another_needs_stays_until_it_is_upgraded(newer, locked):
    assert locked() == ({"acme/base": "1", "acme/top": "1"}, [])
    assert locked(["acme/base"])[1] == ["changed acme/base 1 to 2"]
    assert locked(["acme/top"]) == ({"acme/base": "2", "acme/top": "2"}, ["changed acme/top 1 to 2"])


def test_what_another_needs_stays_if_that_one_is_upgraded(newer, locked):
    assert locked(["acme/top"])[1] == ["changed acme/top 1 to 2"]


def test_all_are_upgraded_together(newer, locked):
    assert locked(())[0] == {"acme/base": "2", "acme/top": "2"}


def test_it_changes_if_the_one_that_needs_it_cannot_be_used_with_it(newer, registry, locked):
    registry.publish("acme/top", "3", text="VALUE = 3\n", depends={"acme/base": ">=2"})
    assert locked(["acme/top"])[0] == {"acme/base": "2", "acme/top": "3"}


def test_one_that_was_withdrawn_stays_with_a_warning(newer, registry, locked):
    withdraw_release(registry.store, "acme/base@1", "wrong")
    assert locked() == ({"acme/base": "1", "acme/top": "1"}, ["warning: acme/base 1 was withdrawn: wrong"])
