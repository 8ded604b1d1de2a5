"""Two publishers, two clients, and a mirror that holds back, mixes and replays, compared with a model.

The model says what each client may accept: what a list of its signer names, which it trusts, and does not withdraw; and
no list is older than one of that signer that the client has accepted before. An honest copy of the newest state is
always accepted, and gives the newest. HISTORIES (5) sets how many histories are tried.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from support import tiers
from support.kernels.projects import python_project
from support.remote.withdrawing import withdraw_release

from opforge.errors import OpforgeError
from opforge.packages.form import version
from opforge.packages.form.version import Version
from opforge.packages.pack.run import Options, pack
from opforge.packages.registry import index, publish, selection
from opforge.packages.sources import reading
from opforge.remote import topics
from opforge.remote.signatures import keys, trust_file
from opforge.remote.stores import open_store

LONG = tiers.is_long()
HISTORIES = int(os.environ.get("HISTORIES", "200" if LONG else "5"))
# 200 histories take minutes on a machine that does other work.
pytestmark = pytest.mark.timeout(3600 if LONG else 300)
WHO = st.sampled_from([("one",), ("two",), ("one", "two")])
VERSIONS, NAME, GROUPS = 6, "acme/plain", ("topics", "statements", "withdrawals")
INDEX = topics.name_of("package", NAME)


@functools.cache
def packed(number):
    """Returns the folder of a version of a package, packed once."""
    folder = Path(tempfile.mkdtemp(prefix="opforge-histories-"))
    python_project(folder / "project", NAME, str(number), f"VALUE = {number}\n")
    pack(reading.read(str(folder / "project")), str(folder / "project"), Options(tried=False))
    return str(folder / "project")


@pytest.fixture(scope="module", autouse=True)
def no_folder_is_left():
    yield
    for number in range(1, VERSIONS + 1):
        shutil.rmtree(os.path.dirname(packed(number)))
    packed.cache_clear()


class State(NamedTuple):
    """The store after a change by a publisher."""

    folder: Path
    withdrawn: dict
    """By version: whether it was."""

    @property
    def newest(self):
        """The version to choose; None if there is none."""
        return max((number for number, is_withdrawn in self.withdrawn.items() if not is_withdrawn), default=None)


class Histories(RuleBasedStateMachine):
    """What may happen."""

    def __init__(self):
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.scratch = Path(tempfile.mkdtemp(prefix="opforge-history-"))
        for name in ("origin", "mirror"):
            (self.scratch / name).mkdir()
        self.origin, self.url = open_store(f"file://{self.scratch}/origin"), f"file://{self.scratch}/mirror"
        self.enter("publisher")
        self.public = {name: keys.create(name) for name in ("a", "b")}
        self.signers, self.withdrawn, self.states = {}, {}, []
        self.seen, self.trusted = {}, {}
        for client in ("one", "two"):
            self.enter(client)
            self.seen[client] = {"a": 0, "b": 0}
            self.trust(client, {"a", "b"})
        self.publish("a")

    def teardown(self):
        self.patch.undo()
        shutil.rmtree(self.scratch)

    def enter(self, who):
        """Makes this process one of a user: with an own configuration, and an own memory."""
        for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
            self.patch.setenv(name, f"{self.scratch}/{who}/{name}")

    def trust(self, client, names):
        self.trusted[client] = names
        entries = tuple(trust_file.TrustedKey(self.public[name], ("package:acme/*",)) for name in sorted(names))
        trust_file.write(trust_file.read()._replace(keys=entries))

    def changed(self):
        """Keeps the store as it is after a change."""
        folder = self.scratch / f"state-{len(self.states)}"
        shutil.copytree(self.origin_path, folder)
        self.states.append(State(folder, {**self.withdrawn}))
        self.is_honest = False  # what the mirror has is not the newest any more

    @property
    def origin_path(self):
        return self.scratch / "origin"

    @property
    def mirror_path(self):
        return self.scratch / "mirror"

    @precondition(lambda self: len(self.signers) < VERSIONS)
    @rule(who=st.sampled_from("ab"))
    def publish(self, who):
        self.enter("publisher")
        number = len(self.signers) + 1
        publish.publish(self.origin, packed(number), keys.signer(who))
        self.signers[number], self.withdrawn[number] = who, False
        self.changed()

    @rule(choice=st.integers(0, VERSIONS - 1))
    def withdraw(self, choice):
        self.enter("publisher")
        number = 1 + choice % len(self.signers)
        if not self.withdrawn[number]:
            withdraw_release(self.origin, f"{NAME}@{number}", key=self.signers[number])
            self.withdrawn[number] = True
            self.changed()

    @rule(choice=st.integers(0, 20), who=WHO)
    def copy(self, choice, who):
        """Copies all files of one state to the mirror; 0 is the newest."""
        shutil.rmtree(self.mirror_path)
        number = len(self.states) - 1 - choice % len(self.states)
        shutil.copytree(self.states[number].folder, self.mirror_path)
        self.is_honest = number == len(self.states) - 1
        self.look(who)

    @rule(choice=st.integers(0, 20), group=st.sampled_from(GROUPS), is_added=st.booleans(), who=WHO)
    def mix(self, choice, group, is_added, who):
        """Copies one group of files of another state to the mirror, beside those that it has or in place of them."""
        target = self.mirror_path / "v1" / group
        if not is_added:
            shutil.rmtree(target, ignore_errors=True)
        source = self.states[choice % len(self.states)].folder / "v1" / group
        if source.exists():
            shutil.copytree(source, target, dirs_exist_ok=True)
        self.is_honest = False
        self.look(who)

    @rule(label=st.integers(1, VERSIONS + 2), choice=st.integers(0, 20), sequence=st.integers(0, 99), who=WHO)
    def forge(self, label, choice, sequence, who):
        """Names a release by another version, in a state of the mirror alone, as whoever can write there may."""
        listed = json.loads((self.states[choice % len(self.states)].folder / INDEX).read_bytes())["statements"]
        digest = sorted(listed.values(), key=str)[choice % len(listed)]["digest"]
        releases = {Version(label): topics.ListedStatement(digest)}
        path = self.mirror_path / INDEX
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(index.Index(NAME, sequence, releases).listing().data())
        self.is_honest = False
        self.look(who)

    @rule(client=st.sampled_from(["one", "two"]), names=st.sampled_from(["ab", "a", "b", ""]))
    def change_trust(self, client, names):
        self.enter(client)
        self.trust(client, {*names})
        self.look([client])

    def look(self, who):
        """Lets clients look at what the mirror has."""
        for client in who:
            self.enter(client)
            self.check(client)

    def list_of(self, signer):
        """Returns the newest state whose list of a signer is the one that the mirror has; None if it has none."""
        path = Path("v1") / "withdrawals" / f"{signer}.json"
        if not (self.mirror_path / path).exists():
            return None
        data = (self.mirror_path / path).read_bytes()
        same = [
            at
            for at, state in enumerate(self.states)
            if (state.folder / path).exists() and (state.folder / path).read_bytes() == data
        ]
        return same[-1]

    def check(self, client):
        """Compares what a client accepts with the model."""
        newest = self.states[-1]
        try:
            verified = selection.choose(NAME, version.ANY, selection.sources([self.url])).verified
        except OpforgeError as error:
            is_trusted = {self.signers[number] for number in newest.withdrawn} <= self.trusted[client]
            must = self.is_honest and is_trusted and newest.newest is not None
            assert not must, f"an honest copy of the newest state was refused: {error}"
            return
        number = verified.release.version.interface
        signer = self.signers.get(number)
        assert signer in self.trusted[client], "its signer is not trusted"
        assert verified.signer == signer
        at = self.list_of(signer)
        assert at is not None and number in self.states[at].withdrawn, "the list does not name it"
        assert not self.states[at].withdrawn[number], "the list withdraws it"
        if self.is_honest and {*self.signers.values()} <= self.trusted[client]:
            assert number == newest.newest, "it is not the newest"
        for name in self.trusted[client]:  # the lists of all keys that may sign it were read
            at = self.list_of(name)
            assert (at is not None or not self.seen[client][name]) and (at or 0) >= self.seen[client][name], (
                "older list"
            )
            self.seen[client][name] = max(self.first_of(name, at), self.seen[client][name])

    def first_of(self, signer, at):
        """Returns the first state that has the list of a signer that a state has."""
        if at is None:
            return 0
        path = Path("v1") / "withdrawals" / f"{signer}.json"
        data = (self.states[at].folder / path).read_bytes()
        return next(
            number
            for number, state in enumerate(self.states)
            if (state.folder / path).exists() and (state.folder / path).read_bytes() == data
        )


LIMITS = settings(
    max_examples=HISTORIES,
    stateful_step_count=30 if LONG else 15,
    deadline=None,
    suppress_health_check=[*HealthCheck],
    print_blob=True,
)
TestHistories = Histories.TestCase
TestHistories.settings = LIMITS
