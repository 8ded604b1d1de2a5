"""Loads of an op as those of new processes, without the start of one."""

from __future__ import annotations

import pytest
from support import sample_ops

from opforge.builders.toolchains.discovery import probe
from opforge.cache import current_store
from opforge.cache.filesystem.disk import Disk
from opforge.fast_path import library, lookup
from opforge.foundation import remembered_values


@pytest.fixture
def load_anew(folder, monkeypatch):
    """Loads the plain op in `folder` as a new process does; returns its value and where it came from.

    With FORCE among the variables it is built first. The disk's clock is 10 seconds ahead: the stamps of files that a
    test has just written are trusted.
    """
    monkeypatch.setattr(Disk, "now_ns", lambda self, real=Disk.now_ns: real(self) + 10**10)

    def run(**env):
        for module in (probe, current_store, library, lookup, remembered_values):
            module.reset()
        with pytest.MonkeyPatch.context() as patch:
            for name, value in env.items():
                patch.setenv(name, value)
            builder = sample_ops.builder_class(folder, "plain", abi="c")()
            if "FORCE" in env:
                builder.build(force=True)
            op = builder.load()
            return f"{op.value()} {op.origin}"

    return run
