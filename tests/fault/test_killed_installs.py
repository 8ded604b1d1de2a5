"""Installations that are killed at any moment, and many processes that install the same package."""

from __future__ import annotations

import os
import random
import signal
import sys
import time

import pytest
from support.kernels.registries import Registry

from opforge.packages.form import version
from opforge.packages.installed import releases
from opforge.packages.registry import install_release, selection, verify_installed
from opforge.remote import blobs

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks processes and kills them")
PROCESSES = 8


@pytest.fixture
def registry(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    served = Registry(tmp_path)
    # Of many files, so that there is much to be interrupted.
    served.publish(text="VALUE = 1\n" + "# filler\n" * 20_000)
    return served


def forked(work):
    """Runs work in a child process; returns its id. The child ends without running anything of pytest."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    finally:
        os._exit(code)


def state(registry):
    """Returns what is installed: "nothing", or "intact"; anything else is a failure."""
    for name in releases.names(registry.root):
        for release in releases.matching(registry.root, name, version.ANY):
            problems = verify_installed.problems(release, deep=True)
            assert problems == [] and release.variants
            return "intact"
    return "nothing"


def test_an_installation_that_is_killed_at_any_moment_leaves_nothing_or_everything(registry):
    began = time.monotonic()
    registry.install()
    seconds, chance, states = time.monotonic() - began, random.Random(3), []
    from opforge.packages.installed import remove

    for _number in range(10):
        remove.remove(registry.root, "acme/plain", version.ANY)
        child = forked(registry.install)
        time.sleep(chance.uniform(0, seconds))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        states.append(state(registry))
    assert set(states) <= {"nothing", "intact"}
    registry.install()
    assert state(registry) == "intact"


def test_many_processes_that_install_the_same_download_it_once(registry, monkeypatch):
    log = registry.scratch / "downloads"
    unpack = blobs.unpack

    def counted(*arguments):
        with log.open("a") as file:
            file.write("x")
        return unpack(*arguments)

    monkeypatch.setattr(blobs, "unpack", counted)
    choice = selection.choose("acme/plain", version.ANY, registry.sources())
    children = [forked(lambda: install_release.install_release(registry.root, choice)) for _number in range(PROCESSES)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert codes == [0] * PROCESSES
    assert log.read_text() == "x" and state(registry) == "intact"


def test_installations_and_removals_that_are_killed_disturb_no_other(registry):
    """Four processes install, remove and verify at random; every tenth of a second one of them is killed."""
    from opforge.packages.installed import remove

    for number in ("1", "2"):
        registry.publish("acme/other", number)
    problems = registry.scratch / "problems"

    def work(seed):
        chance = random.Random(seed)
        while True:
            name, number = chance.choice([("acme/plain", "1"), ("acme/other", "1"), ("acme/other", "2")])
            try:
                if chance.random() < 0.6:
                    registry.install(name, number)
                else:
                    remove.remove(registry.root, name, version.parse_range(number))
            except Exception as error:
                with problems.open("a") as file:
                    file.write(f"{error}\n")

    chance, seeds = random.Random(5), iter(range(1000))
    children = [forked(lambda: work(next(seeds))) for _number in range(4)]
    for _number in range(8):
        time.sleep(chance.uniform(0, 0.1))
        child = children.pop(0)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        seed = next(seeds)
        children.append(forked(lambda seed=seed: work(seed)))
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert not problems.exists(), problems.read_text()
    state(registry)
    for name in [*releases.names(registry.root), "acme/plain"]:
        remove.remove(registry.root, name, version.ANY)
    registry.install()
    remove.remove(registry.root, "acme/plain", version.ANY)
    walked = os.walk(registry.root.join())
    assert not [name for parent, _folders, names in walked for name in names if "locks" not in parent]


def test_what_a_killed_removal_has_left_is_removed_by_the_next_one(registry, monkeypatch):
    from opforge.packages.installed import folders, remove

    registry.install()

    def rmtree(path, **options):
        raise KeyboardInterrupt  # in place of SIGKILL: the files beside the metadata are gone by then

    with monkeypatch.context() as patch:
        patch.setattr(folders.shutil, "rmtree", rmtree)
        with pytest.raises(KeyboardInterrupt):
            remove.remove(registry.root, "acme/plain", version.ANY)
    (left,) = os.listdir(registry.root.join("trees"))
    assert "metadata.json" in os.listdir(registry.root.tree(left))
    remove.sweep(registry.root)
    assert os.listdir(registry.root.join("trees")) == []
