"""A user's folders: nothing of this process's state is needed to follow what a promise says."""

from __future__ import annotations

import shutil

import pytest
from support import declared_op, sample_ops
from support.paths import OF_A_USER


@pytest.fixture(autouse=True)
def needs_a_compiler():
    """Skips the tests of a machine on which nothing can be built."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++ (apt install g++)")


@pytest.fixture(scope="session")
def made_once(tmp_path_factory):
    """A function that has a user's folders made once, and copies them to a test's own: what was made can be moved."""
    folders = {}

    def copied(make, scratch):
        if make not in folders:
            folders[make] = template = tmp_path_factory.mktemp(make.__name__)
            with pytest.MonkeyPatch.context() as patch:
                for name, part in OF_A_USER.items():
                    patch.setenv(name, str(template / part))
                make(template)
        shutil.copytree(folders[make], scratch, symlinks=True, dirs_exist_ok=True)

    return copied


@pytest.fixture
def quick_builds(builds_are_shared, monkeypatch):
    """For tests of what our own ops compute: they are compiled with less optimization, which takes a third less.

    tests/contract has them as users do.
    """
    monkeypatch.setenv("CXXFLAGS", "-O1")


@pytest.fixture
def folder(tmp_path):
    """The folder of an op of plain C, `plain`, whose `value()` is the number in its header: 1."""
    sample_ops.plain_op(tmp_path / "op")
    return tmp_path / "op"


@pytest.fixture
def declared(folder):
    """The variables with which other processes find `plain_ops:Plain`, the declaration of the op in `folder`."""
    declared_op.declare(folder)
    return declared_op.variables(folder)
