"""For every test: a store of its own, and no setting of the machine's."""

from __future__ import annotations

import gc
import itertools
import logging
import os
import signal
import sys
from collections.abc import Generator
from pathlib import Path

import hypothesis
import pytest
from support import paths, processor_time, rewritten, tiers
from support.processes import left_behind, shared_torch

# Who starts the tests in the background may have these ignored, and every process that a test interrupts would be too.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Threads that wait for the next tensor would spin, on a processor that other tests need. Read when torch and numpy are
# imported, here and in the processes that tests start.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# What a power failure would leave is no subject of a test in this process, and some disks take 10 ms to write each file
# at once. The processes that tests start do wait for it.
os.fsync = os.fstat  # type: ignore[assignment]

# What inductor would otherwise do in each new folder: start workers, precompile its headers, try the compiler. That is
# most of the time of a test that compiles one graph. Read when inductor is imported, which some test files do; a
# process that read other values has other keys of graphs.
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
os.environ["TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"] = "0"
os.environ["TORCHINDUCTOR_VEC_ISA_OK"] = "1"

SETTINGS = (
    "DS_ACCELERATOR",
    "MAX_JOBS",
    "CXX",
    "CPPFLAGS",
    "CXXFLAGS",
    "LDFLAGS",
    "CPATH",
    "CPLUS_INCLUDE_PATH",
    "C_INCLUDE_PATH",
    "LIBRARY_PATH",
    "LPATH",
    "GCC_ROOT",
    "G++_ROOT",
    "BINUTILS_ROOT",
    "GNUTARGET",
    "LDEMULATION",
    "COMPILER_PATH",
    "LD_RUN_PATH",
    "SOURCE_DATE_EPOCH",
)
LAYERS = "OPFORGE_CACHE_LAYERS"
MANY_MODULES = 200
_kept_modules = [0]
"""How many modules were imported when the garbage collector was last kept from all that there was."""
_numbers = itertools.count()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Returns one more than there are cores: tests wait for processes, servers and clocks for a fifth of their time."""
    return len(os.sched_getaffinity(0)) + 1 if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1) + 1


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--tier` and `--processor-time`."""
    parser.addoption("--tier", choices=tiers.TIERS, help="which of the tests: tests/support/tiers.py")
    text = "print the N files and tests that take most of a processor, with the processes that they start"
    parser.addoption("--processor-time", type=int, metavar="N", default=0, help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Chooses the tier before a test file is imported. Random examples are the same each time but in the third tier."""
    tiers.choose(config.getoption("tier"))
    if most := config.getoption("processor_time"):
        config.pluginmanager.register(processor_time.ProcessorTime(most))
    # No test measures time: on a busy machine a test would fail that took long.
    slow = [hypothesis.HealthCheck.too_slow]
    hypothesis.settings.register_profile(
        "fixed", derandomize=not tiers.is_long(), database=None, deadline=None, suppress_health_check=slow
    )
    hypothesis.settings.load_profile("fixed")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Has each of the workers prepare a part of the test files for all of them."""
    rewritten.make_part(session)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """Waits for the process with torch that other workers still use; what it took counts as this process's."""
    shared_torch.wait()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leaves out the garbage collector, which took a third of the time of collecting tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leaves out the files of other tiers without importing them."""
    return tiers.is_left_out(collection_path) or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the tests of other tiers."""
    left = [item for item in items if tiers.is_of_the_tier(item)]
    left = left if tiers.is_long() else tiers.without_products(left)
    kept = set(left)
    if others := [item for item in items if item not in kept]:
        config.hook.pytest_deselected(items=others)
        items[:] = left


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips what is marked as long, with its reason.

    Keeps the garbage collector from what has been imported, which stays: with torch and its compiler it takes seconds.
    """
    if len(sys.modules) > _kept_modules[0] + MANY_MODULES:
        _kept_modules[0] = len(sys.modules)
        gc.collect()
        gc.freeze()
    mark = item.get_closest_marker("long")
    if mark and not tiers.is_long():
        pytest.skip(f"{mark.args[0]}: `make test-long` runs it")


@pytest.fixture(scope="session")
def shared_store(tmp_path_factory):
    """A store that lives as long as the session, for what takes long to build; processes that share its tests share it.

    What a fixture of a module builds is put here.
    """
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared-store"


@pytest.fixture(scope="session", autouse=True)
def nothing_of_the_machines(shared_store):
    """Fixtures that outlive a test neither use nor fill the user's own store, and ignore the machine's settings.

    But for layers: those of tests/device may have brought their ops along.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name in [*SETTINGS, *(name for name in os.environ if name.startswith("OPFORGE_"))]:
            if name != LAYERS:
                patch.delenv(name, raising=False)
        patch.setenv("OPFORGE_CACHE_DIR", str(shared_store))
        # What other tools have cached stays where it is; XDG_CACHE_HOME is for what look-ups remember.
        caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        for name, folder in (("ZIG_GLOBAL_CACHE_DIR", "zig"), ("PIP_CACHE_DIR", "pip")):
            if name not in os.environ:
                patch.setenv(name, os.path.join(caches, folder))
        patch.setenv("XDG_CACHE_HOME", str(shared_store.parent / "shared-caches"))
        patch.setenv("XDG_CONFIG_HOME", str(shared_store.parent / "shared-config"))
        patch.setenv("XDG_STATE_HOME", str(shared_store.parent / "shared-state"))
        shared_torch.session = str(shared_store.parent)
        yield
        from support.processes import forked_python, torch_server

        from opforge.foundation import remembered_values

        torch_server.end()
        forked_python.end()
        remembered_values.reset()  # what was counted would be written to the user's own folder


@pytest.fixture(autouse=True)
def leaves_nothing_behind():
    """Fails a test that leaves another variable, working folder or setting of torch to the tests after it.

    It is set up before the other fixtures of a test, by its name, and ends after them. What fixtures of a module set is
    there before.
    """
    before = left_behind.settings()
    yield
    if changed := left_behind.changes(before):
        pytest.fail(f"the test did not put back: {'; '.join(changed)}. Use monkeypatch", pytrace=False)


@pytest.fixture(scope="session")
def probed_compilers():
    """What the machine's own compilers have reported about themselves in this process. It is filled by `own_folders`.

    A test asks them again if their programs have changed, as the second build of a process does.
    """
    return {}


@pytest.fixture(autouse=True)
def own_folders(request, monkeypatch, tmp_path_factory, probed_compilers):
    """The folders of a store, of settings and of state of this test's own. What the process remembers is dropped.

    For a test that needs no folder by its fixtures none is made: the variables name a path at which nothing is.
    """
    if "tmp_path" in request.fixturenames:
        folder = request.getfixturevalue("tmp_path")
    else:
        folder = tmp_path_factory.getbasetemp() / f"unmade-{next(_numbers)}"
    for name, part in paths.OF_A_USER.items():
        monkeypatch.setenv(name, f"{folder}/{part}")
    monkeypatch.delenv(LAYERS, raising=False)
    _forget(probed_compilers)
    yield
    from opforge.builders.toolchains.discovery import probe

    for name, (info, stamps) in probe._infos.items():
        if not any(path.startswith(f"{folder.parent}/") for path in stamps.paths):
            probed_compilers[name] = info, stamps
    _forget({})
    logging.getLogger("opforge").setLevel(logging.NOTSET)  # a command that was called with -v or -q has set it


@pytest.fixture
def own_store(tmp_path, own_folders):
    """An empty store of this test's own, which is not there yet; gives its path."""
    return tmp_path / "store"


def _forget(probed_compilers):
    """Makes this process one that has used no store and read no setting; of compilers it knows these."""
    from opforge.builders.toolchains.discovery import probe
    from opforge.cache import current_store
    from opforge.foundation import remembered_values, settings

    current_store.reset()
    probe.reset()
    probe._infos.update(probed_compilers)
    probe._unsaved.update(probed_compilers)  # the new store has none of them
    remembered_values.reset()
    settings.reset()


@pytest.fixture
def builds_are_shared(own_store, shared_store, monkeypatch):
    """For tests of what ops compute: they are built once in a session, not in each test's own store.

    What look-ups remember is shared too: a load without it takes 0.1 s.
    """
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(shared_store))
    monkeypatch.setenv("XDG_CACHE_HOME", str(shared_store.parent / "shared-caches"))


@pytest.fixture
def relu_folder(tmp_path):
    """A folder with relu.cpp, on the stable ABI, whose namespace no other test has; `relu_folder.name` says which."""
    from support import sample_ops

    folder = tmp_path / sample_ops.unique_name("relu")
    folder.mkdir()
    (folder / "relu.cpp").write_text(sample_ops.STABLE_SOURCE.replace("@NAME@", folder.name))
    return folder


@pytest.fixture
def warnings_of_the_cache(caplog):
    """The texts of the warnings that the store has logged so far."""
    caplog.set_level(logging.WARNING, logger="opforge")
    return lambda: [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
