"""What a hostile source, or an honest one that knows less, does to the target of a mirror: nothing of it is lost."""

from __future__ import annotations

import time

import pytest
from support.remote.withdrawing import entries_of, withdraw

from opforge.remote import contents, mirror, statements, topics, withdrawal_lists
from opforge.remote.op_statements import OP
from opforge.remote.signatures import keys, signing, trust_file
from opforge.remote.statements import Signed
from opforge.remote.stores import open_store
from opforge.remote.withdrawal_lists import Unverified

OTHER = "0" * 32 + "-" + "0" * 16


@pytest.fixture
def target(tmp_path):
    (tmp_path / "mirror").mkdir()
    return open_store(f"file://{tmp_path}/mirror")


@pytest.fixture
def lab(nodes):
    """A second key that is trusted."""
    public = keys.create("lab")
    nodes.trust(nodes.public, public)
    return keys.signer("lab")


def items(store, entry):
    stored = store.get(OP.topic_file(entry.record["description"]), topics.MAX_FRAME_BYTES)
    return topics.read_frame(stored.data) if stored else []


def put(store, entry, offered):
    name = OP.topic_file(entry.record["description"])
    store.delete(name)
    store.put_if_absent(name, topics.frame(offered))


def copied(nodes, target):
    return list(mirror.copy(nodes.store, target))


def junk(number):
    """Returns a statement that nobody trusted has signed."""
    data = statements.Statement("op", "0" * 32, (), {"number": number}).data()
    return Signed(data, (signing.sign(data, signing.new_secret("ci")),))


class TestSignatures:
    @pytest.fixture
    def with_lab(self, nodes, target, entry, lab):
        """The target has the offer with a second signature, which the source has not."""
        copied(nodes, target)
        (item,) = items(target, entry)
        both = item._replace(signatures=(lab(item.data),))
        put(target, entry, [both])
        return both

    def test_those_of_both_stay(self, nodes, target, entry, with_lab):
        (done,) = copied(nodes, target)
        (item,) = items(target, entry)
        assert (done.statements, [one.name for one in item.signatures]) == (1, ["lab", "ci"])
        assert [again.statements for again in copied(nodes, target)] == [0]

    def test_a_junk_signature_is_not_copied(self, nodes, target, entry, with_lab):
        (item,) = items(nodes.store, entry)
        bad = signing.Named("lab", bytes(64))
        put(nodes.store, entry, [item._replace(signatures=(bad, *item.signatures))])
        copied(nodes, target)
        (item,) = items(target, entry)
        assert [one.name for one in item.signatures] == ["lab", "ci"] and bad not in item.signatures

    def test_a_signature_that_finds_no_place_is_an_error(self, nodes, target, entry, with_lab):
        many = tuple(signing.sign(with_lab.data, signing.new_secret(f"k{number}")) for number in range(8))
        put(target, entry, [with_lab._replace(signatures=many)])
        (done,) = copied(nodes, target)
        assert done.problems == ("it has 8 signatures there, at most 8 are read: not by ci",)
        assert items(target, entry)[0].signatures == many

    def test_those_of_a_release_in_a_file_of_its_own(self, nodes, target, lab, monkeypatch):
        from support import note_kind

        note_kind.register(monkeypatch)
        trust_file.write(
            trust_file.read()._replace(keys=tuple(one._replace(scopes=("note:*",)) for one in trust_file.read().keys))
        )
        digest = note_kind.publish(nodes.store, "greetings", 1, b"one", keys.signer("ci"))
        note_kind.publish(target, "greetings", 1, b"one", lab)
        copied(nodes, target)
        there = statements.read_file(target.get(statements.name_of(digest), 1 << 20).data, digest)
        assert there.signers == {"lab", "ci"}
        assert [again.statements for again in copied(nodes, target)] == [0]


class TestStatements:
    def test_junk_pushes_nothing_out(self, nodes, target, entry):
        copied(nodes, target)
        before = items(target, entry)
        put(nodes.store, entry, [*map(junk, range(256))])
        (done,) = copied(nodes, target)
        assert items(target, entry) == before and done.statements == 0
        assert done.problems == ("the signature by ci is not of these bytes (256 times)",)

    def test_a_key_that_is_not_trusted_here(self, nodes, target, entry):
        nodes.trust(signing.public_of(signing.new_secret("lab")))
        (done,) = copied(nodes, target)
        assert done.problems == ("the key ci is not in the trust file",)
        assert not list(target.list(""))

    def test_a_key_for_other_names(self, nodes, target, entry):
        nodes.trust(nodes.public, scopes=("op:other",))
        (done,) = copied(nodes, target)
        assert "no key that signed it may sign op:plain" in done.problems[0] and not list(target.list(""))

    def test_a_full_topic_is_an_error(self, nodes, target, entry):
        full = [*map(junk, range(256))]
        put(target, entry, full)
        (done,) = copied(nodes, target)
        assert "has 256 statements already. Remove old ones: opforge gc URL --unused-for AGE" in done.problems[0]
        assert items(target, entry) == full

    def test_unsigned_ones_are_copied_between_unsigned_stores_alone(self, nodes, target, entry):
        (item,) = items(nodes.store, entry)
        put(nodes.store, entry, [item._replace(signatures=())])
        assert copied(nodes, target)[0].problems == ("it has no signature",)
        (done,) = mirror.copy(nodes.store, target, is_unsigned=True)
        assert (done.statements, done.problems) == (1, ())


class TestReleases:
    @pytest.fixture
    def other(self, tmp_path):
        (tmp_path / "other").mkdir()
        return open_store(f"file://{tmp_path}/other")

    def test_a_foreign_release_does_not_come_into_an_index(self, nodes, other, monkeypatch):
        """Its version would be taken: the owner could not publish it, and an installation would fail."""
        from support import note_kind

        note_kind.register(monkeypatch)
        nodes.trust(nodes.public, scopes=("note:*",))
        keys.create("foreign")
        note_kind.publish(nodes.store, "greetings", 1, b"foreign", keys.signer("foreign"))
        (done,) = copied(nodes, other)
        assert done.problems == ("1: the key foreign is not in the trust file",)
        assert topics.read_named(other, "note", "greetings") is None
        note_kind.publish(other, "greetings", 1, b"own", keys.signer("ci"))

    def test_a_label_that_its_statement_contradicts(self, nodes, other, monkeypatch):
        from support import note_kind

        note_kind.register(monkeypatch)
        nodes.trust(nodes.public, scopes=("note:*",))
        note_kind.publish(nodes.store, "greetings", 1, b"one", keys.signer("ci"))
        listed = topics.read_named(nodes.store, "note", "greetings").statements
        topics.edit_listing(
            nodes.store, "note", "greetings", lambda there: there._replace(statements={"9": listed["1"]})
        )
        (done,) = copied(nodes, other)
        assert done.problems == ("its topic names it 9, and it is 1",)
        assert topics.read_named(other, "note", "greetings") is None


class TestListsOfWithdrawals:
    @pytest.fixture
    def mirrored(self, nodes, target, entry):
        withdraw(nodes.store, OTHER)
        copied(nodes, target)
        assert entries_of(Unverified(target).of("ci")) == [OTHER]
        return nodes.folder / "remote" / "v1" / "withdrawals" / "ci.json"

    def test_a_junk_list_of_the_future_takes_the_place_of_none(self, nodes, target, mirrored):
        data = withdrawal_lists.to_bytes(withdrawal_lists.Withdrawals("ci", time.time() + 1e7))
        mirrored.write_bytes(Signed(data, (signing.sign(data, signing.new_secret("ci")),)).file())
        (done,) = copied(nodes, target)
        assert "the list of withdrawals of ci is not signed by that key" in done.problems[0]
        assert entries_of(Unverified(target).of("ci")) == [OTHER]

    @pytest.fixture
    def damaged(self, nodes, target, entry, lab):
        """The list of `ci` in the source is damaged. Returns its path, and what it was before."""
        path = nodes.folder / "remote" / "v1" / "withdrawals" / "ci.json"
        good = path.read_bytes()
        path.write_bytes(b"{}")
        return path, good

    def test_what_is_signed_by_a_key_is_not_copied_without_its_list(self, nodes, target, entry, damaged):
        (done,) = copied(nodes, target)
        assert (done.statements, done.size, len(done.problems)) == (0, 0, 1) and not list(target.list(""))
        damaged[0].write_bytes(damaged[1])
        assert [(again.statements, again.problems) for again in copied(nodes, target)] == [(1, ())]

    def test_of_two_signatures_that_of_the_other_key_is_copied(self, nodes, target, entry, lab, damaged):
        (item,) = items(nodes.store, entry)
        put(nodes.store, entry, [item._replace(signatures=(*item.signatures, lab(item.data)))])
        (done,) = copied(nodes, target)
        assert done.statements == 1 and len(done.problems) == 1
        assert [one.name for one in items(target, entry)[0].signatures] == ["lab"]

    def test_a_list_that_failed_once_is_copied_with_the_next_topic(self, nodes, target, entry, damaged):
        copying = mirror.Copying(nodes.store, target, mirror.ignore, False)
        (topic,) = topics.in_store(nodes.store, "op")
        assert copying.topic(topic, lambda _kind, _name, _label: True).statements == 0
        damaged[0].write_bytes(damaged[1])
        assert copying.topic(topic, lambda _kind, _name, _label: True).statements == 1
        assert target.get(withdrawal_lists.name_of("ci"), withdrawal_lists.MAX_BYTES).data == damaged[1]

    def test_a_newer_one_that_knows_less_takes_the_place_of_none(self, nodes, target, entry, mirrored):
        """The signer has withdrawn something in the target alone."""
        withdraw(target, entry.key)
        withdraw(nodes.store, "1" * 32 + "-" + "1" * 16)
        (done,) = copied(nodes, target)
        assert "differs from the one in" in done.problems[0]
        assert set(entries_of(Unverified(target).of("ci"))) == {OTHER, entry.key}

    def test_a_newer_one_that_says_all_of_it_is_copied(self, nodes, target, entry, mirrored):
        withdraw(nodes.store, entry.key)
        (done,) = copied(nodes, target)
        assert not done.problems and set(entries_of(Unverified(target).of("ci"))) == {OTHER, entry.key}

    def test_an_older_one_is_left_alone(self, nodes, target, entry, mirrored):
        older = mirrored.read_bytes()
        withdraw(nodes.store, entry.key)
        copied(nodes, target)
        mirrored.write_bytes(older)
        assert not copied(nodes, target)[0].problems
        assert set(entries_of(Unverified(target).of("ci"))) == {OTHER, entry.key}


def test_whatever_a_source_holds_the_target_keeps_what_it_has(nodes, target, entry, lab):
    """A property: after any copy each statement, signature and withdrawal of the target is there."""
    import random

    chance = random.Random(7)
    copied(nodes, target)
    (own,) = items(target, entry)
    withdraw(target, OTHER)
    for _round in range(30):
        pool = [*map(junk, range(4)), own, own._replace(signatures=(lab(own.data),)), own._replace(signatures=())]
        bad = signing.Named(chance.choice(["ci", "lab", "x"]), chance.randbytes(64))
        pool.append(own._replace(signatures=(bad,)))
        put(nodes.store, entry, chance.sample(pool, chance.randrange(1, 5)))
        if chance.random() < 0.3:
            withdraw(nodes.store, f"{chance.randrange(9):032x}-{0:016x}")
        before, said = items(target, entry), set(entries_of(Unverified(target).of("ci")))
        copied(nodes, target)
        after = {item.data: set(item.signatures) for item in items(target, entry)}
        assert all(set(item.signatures) <= after[item.data] for item in before)
        assert said <= set(entries_of(Unverified(target).of("ci")))
        for item in items(target, entry):
            assert trust_file.read().signers("it", item.data, item.signatures)
    assert not [item.problem for item in contents.items(target) if item.problem]
