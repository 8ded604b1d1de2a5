"""For every test: a store of its own, and no setting of the machine's."""

from __future__ import annotations

import os
import signal
import sys

import pytest

sys.path.append(os.path.dirname(os.path.abspath(__file__)))  # `import fakes`, from any folder of tests

# Who starts the tests in the background may have these ignored, and every process that a test interrupts would be too.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

SETTINGS = (
    "DS_ACCELERATOR",
    "MAX_JOBS",
    "CXX",
    "CPPFLAGS",
    "CXXFLAGS",
    "LDFLAGS",
    "CPATH",
    "CPLUS_INCLUDE_PATH",
    "LIBRARY_PATH",
    "COMPILER_PATH",
    "LD_RUN_PATH",
    "SOURCE_DATE_EPOCH",
)


@pytest.fixture(autouse=True)
def own_store(tmp_path, monkeypatch):
    """An empty store of this test's own; gives its path. What the process remembers of others is dropped."""
    for name in [*SETTINGS, *(name for name in os.environ if name.startswith("OPFORGE_"))]:
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "store"
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(folder))
    from opforge.builders import opened
    from opforge.builders.toolchains import identity

    opened._stores.clear()
    identity._asked.clear()
    identity._unsaved.clear()
    yield folder
    opened._stores.clear()
    identity._asked.clear()
    identity._unsaved.clear()


@pytest.fixture
def relu_folder(tmp_path):
    """A folder with relu.cpp, on the stable ABI, whose namespace no other test has; `relu_folder.name` says which."""
    import fakes

    folder = tmp_path / fakes.fresh("relu")
    folder.mkdir()
    (folder / "relu.cpp").write_text(fakes.STABLE.replace("@NAME@", folder.name))
    return folder


@pytest.fixture
def warnings_of_the_cache(caplog):
    """The texts of the warnings that the store has logged so far."""
    import logging

    caplog.set_level(logging.WARNING, logger="opforge")
    return lambda: [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
