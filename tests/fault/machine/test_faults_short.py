"""A short round of the torture of faults, and what longer ones have found."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support import child_processes, sample_ops
from support.paths import TESTS
from support.store.fake_store import FakeStore

from opforge.builders.run import ninja
from opforge.cache.maintenance import limits, listing
from opforge.cache.records import size_log
from opforge.errors import CompileError

pytestmark = [
    pytest.mark.compile,
    pytest.mark.timeout(150),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="uses Linux's limits and devices"),
]


def test_a_broken_store_and_a_starved_machine_violate_nothing():
    script = os.path.join(TESTS, "fault", "machine", "faults.py")
    done = subprocess.run(
        [sys.executable, script, "--rounds", "6", "--processes", "4", "--seed", "3"],
        env=child_processes.environment(),
        capture_output=True,
        text=True,
        timeout=140,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "seed 3, 6 rounds of 4 processes" in done.stdout and "0 violations" in done.stdout


@pytest.fixture(params=["a pipe", "a link to another file"])
def planted(request, tmp_path):
    """A function that puts something in the place of a file of the store. The other file must not change."""
    other = tmp_path / "thesis.txt"
    other.write_text("mine")

    def plant(path):
        if os.path.lexists(path):
            os.unlink(path)
        if request.param == "a pipe":
            os.mkfifo(path)
        else:
            os.symlink(other, path)

    yield plant
    assert other.read_text() == "mine"


def test_what_lies_in_place_of_the_summaries_is_not_written_to(tmp_path, planted):
    store = FakeStore(tmp_path / "store", tmp_path / "src")
    store.add("relu")
    planted(store.layout.path("summaries"))
    assert [entry.op for entry in listing.entries(store.layout)] == ["relu"]


def test_what_lies_in_place_of_the_running_sum_is_not_written_to(tmp_path, planted):
    store = FakeStore(tmp_path / "store", tmp_path / "src")
    planted(store.layout.path(size_log.FILE))
    store.add("relu")
    assert size_log.total(store.layout) > 1000


def test_what_lies_in_place_of_the_time_of_the_last_sweep_is_replaced(tmp_path, planted):
    store = FakeStore(tmp_path / "store", tmp_path / "src")
    path = store.layout.path("swept")
    planted(path)
    os.utime(path, (1, 1))
    limits.enforce(store.layout, None, 3600.0)
    assert os.path.isfile(path) and not os.path.islink(path)


def test_what_lies_in_place_of_the_measured_memory_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "peak")
    assert ninja.peak_memory(str(tmp_path)) == 0


def test_what_lies_in_place_of_a_log_is_replaced_by_the_log(tmp_path, own_store, planted):
    cls = sample_ops.plain_op(tmp_path / "op", source="#error wrong\n")
    with pytest.raises(CompileError) as caught:
        cls().build()
    planted(caught.value.log)
    with pytest.raises(CompileError) as again:
        cls().build()
    assert again.value.log == caught.value.log
    assert os.path.isfile(again.value.log) and not os.path.islink(again.value.log)


def test_a_folder_of_locks_that_disappears_while_it_is_waited_for_is_no_traceback(tmp_path, own_store):
    from opforge.cache.filesystem import lock

    folder = tmp_path / "locks"
    folder.mkdir()
    path = str(folder / "key")
    with lock.acquire(path, "op", None):

        def ready():
            if folder.is_dir() and not folder.is_symlink():
                folder.rename(tmp_path / "moved")
                folder.symlink_to("/dev/zero")
            return False

        with lock.acquire(path, "op", 20, ready) as result:
            assert result is lock.LockResult.FREE
