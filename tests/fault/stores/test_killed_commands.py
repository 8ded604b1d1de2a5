"""Processes that are killed while they publish, withdraw, mirror, collect and install, for each kind.

What a store offers afterwards is what was published, whole; the next process does the same without an error, and what
was left over is collected. A short run kills a few; in the third tier, as `make torture` runs it, 300 of each
kind.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
import traceback

import pytest
from support import tiers

from opforge.remote import contents, gc, mirror, remotes
from opforge.remote.stores import open_store

LONG = tiers.is_long()
KILLS = 60 if LONG else 2  # of each of five acts
LATER = 90_000.0
UNFINISHED = ("the list of the key ci does not name it",)
"""What is said of a release whose publisher was killed before the signer's list, which is written last: no client takes
it, and whoever publishes it again completes it."""
pytestmark = [
    pytest.mark.compile,
    pytest.mark.timeout(3600 if LONG else 300),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks processes and kills them"),
]


def forked(work, errors=None):
    """Runs work in a child process; returns its id. The child ends without running anything of pytest.

    What it raises is appended to the file `errors`.
    """
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        if errors is not None:
            with errors.open("a") as file:
                traceback.print_exc(file=file)
    finally:
        os._exit(code)


def problems(shop, unfinished=()):
    """Returns what is wrong with what the topics of a store name: each statement and each blob is read.

    Problems whose text is in `unfinished` are left out.
    """
    items = contents.verify(shop.store, remotes.parse(shop.url))
    return [item for item in items if item.problem and item.problem not in unfinished]


class Acts:
    """What is killed, by name. Each is done again afterwards, without a kill."""

    def __init__(self, shop):
        self.shop = shop
        os.mkdir(shop.scratch / "mirror")
        self.mirror = open_store(f"file://{shop.scratch}/mirror")

    def publish(self):
        self.shop.publish()

    def publish_again(self):
        self.shop.publish_again()

    def withdraw(self):
        self.shop.withdraw()

    def install(self):
        assert self.shop.take() in self.shop.genuine

    def copy(self):
        for copied in mirror.copy(self.shop.store, self.mirror):
            assert not copied.problems

    def collect(self):
        for _unused in gc.collect(self.shop.store, time.time() + LATER):
            pass

    def begin(self, act):
        """Puts things so that there is something to do."""
        if act == "copy":
            for name in [listed.name for listed in self.mirror.list("v1/")]:
                self.mirror.delete(name)
        if act == "collect":
            for number in range(5):
                self.shop.store.put_if_absent(f"v1/blobs/sha256/00/{number:064x}", b"nothing names it")


@pytest.mark.parametrize("act", ["publish", "withdraw", "install", "copy", "collect"])
def test_what_was_killed_harms_nothing_and_is_done_again(shop, act):
    acts = Acts(shop)
    acts.begin(act)
    began = time.monotonic()
    getattr(acts, act)()
    seconds = time.monotonic() - began
    seed = tiers.seed()
    chance, killed = random.Random(seed), 0
    for number in range(KILLS):
        acts.begin(act)
        is_last_chance = number == KILLS - 1 and not killed  # all children before were quicker
        # What a killed publisher may have published counts as genuine.
        child = forked(getattr(acts, act))
        time.sleep(0 if is_last_chance else chance.uniform(0, seconds))
        os.kill(child, signal.SIGKILL)
        killed += os.WIFSIGNALED(os.waitpid(child, 0)[1])
        assert problems(shop, UNFINISHED if act == "publish" else ()) == [], f"seed {seed}"
        acts.begin(act)
        getattr(acts, act)()
        assert problems(shop) == [], f"seed {seed}"
        assert shop.take() in shop.genuine, f"seed {seed}"
    assert killed
    acts.collect()
    acts.copy()
    assert problems(shop) == [] and shop.take() in shop.genuine
    named = {listed.name for listed in shop.store.list("v1/blobs/")}
    assert named == {listed.name for listed in acts.mirror.list("v1/blobs/")} or act == "copy"
    assert not [listed.name for listed in shop.store.list("v1/removals/")], "no removal is left half done"


def test_whoever_collects_while_others_publish_removes_nothing_of_theirs(shop):
    """What is published again lies in the store already, old and named by nothing, when the collection begins."""
    acts, seed = Acts(shop), tiers.seed()
    chance = random.Random(seed)
    topics_folder, errors = shop.folder / "v1" / "topics", shop.scratch / "errors"
    for _number in range(100 if LONG else 4):  # 300 for the three kinds
        shutil.rmtree(topics_folder)  # now nothing names the blobs and the statements
        children = []
        for act in (acts.collect, acts.publish_again, acts.publish_again):
            children.append(forked(act, errors))
            time.sleep(chance.uniform(0, 0.02))
        for child in children:
            os.waitpid(child, 0)
        assert not errors.exists(), f"seed {seed}: {errors.read_text()}"
        assert problems(shop) == [], f"seed {seed}"
        assert shop.take() in shop.genuine, f"seed {seed}"
