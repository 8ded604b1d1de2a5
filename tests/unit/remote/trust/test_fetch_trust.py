"""Whose offers a look-up takes: signatures, revoked keys, withdrawn offers, and what was fetched before that."""

from __future__ import annotations

import logging
import os
import shutil

import pytest
from support import sample_ops
from support.remote.nodes import reasons
from support.remote.withdrawing import entries_of, withdraw

from opforge.cache.current_store import current_store
from opforge.cache.maintenance import listing
from opforge.errors import PublishError
from opforge.remote import reverification, statements, take, topics, withdrawal_lists
from opforge.remote.entry_source import WantedEntry
from opforge.remote.signatures import keys, signing, trust_file


class TestSignatures:
    def refused(self, nodes, builder, problem, caplog):
        with caplog.at_level(logging.WARNING, "opforge"):
            match, rejected = nodes.fetch(builder)
        assert match is None
        assert problem in reasons(rejected)
        assert sum(problem in record.getMessage() for record in caplog.records) == 1
        assert not listing.entries(current_store().layout)

    def test_no_signature(self, nodes, builder, entry, caplog):
        (item,) = topics.read_frame(nodes.offers_file(entry).read_bytes())
        nodes.put_offer(entry, item.data, signatures=())
        self.refused(nodes, builder, "it has no signature", caplog)

    def test_an_unknown_key(self, nodes, builder, entry, caplog):
        nodes.trust(signing.public_of(signing.new_secret("lab")))
        self.refused(nodes, builder, "the key ci is not in the trust file", caplog)

    def test_a_flipped_byte_in_the_offer(self, nodes, builder, entry, caplog):
        (item,) = topics.read_frame(nodes.offers_file(entry).read_bytes())
        data = item.data.replace(b'"size":', b'"sizE":', 1)
        nodes.put_offer(entry, data, signatures=item.signatures)
        self.refused(nodes, builder, "the signature by ci is not of these bytes", caplog)

    def test_the_signature_of_another_offer(self, nodes, builder, entry, tmp_path, caplog):
        other = nodes.built(sample_ops.plain_op(tmp_path / "other", "other")(), "other")
        (item,), (theirs,) = (topics.read_frame(nodes.offers_file(each).read_bytes()) for each in (entry, other))
        nodes.put_offer(entry, item.data, signatures=theirs.signatures)
        self.refused(nodes, builder, "the signature by ci is not of these bytes", caplog)

    def test_a_key_that_has_ended(self, nodes, builder, entry, caplog):
        nodes.trust(nodes.public, until="2020-01-01")
        self.refused(nodes, builder, "the key ci ended on 2020-01-01", caplog)

    def test_a_revoked_key(self, nodes, builder, entry, caplog):
        nodes.trust(nodes.public, revoked="2026-01-01")
        self.refused(nodes, builder, "the key ci was revoked", caplog)

    def test_a_key_for_other_ops(self, nodes, builder, entry, caplog):
        nodes.trust(nodes.public, scopes=("op:other_*", "package:*/*"))
        self.refused(nodes, builder, "no key that signed it may sign op:plain", caplog)

    def test_a_trust_file_that_others_can_write(self, nodes, builder, entry, caplog):
        os.chmod(nodes.folder / "config" / "opforge" / "trust.json", 0o666)
        self.refused(nodes, builder, "so others can change it", caplog)

    def test_a_second_signature_is_enough(self, nodes, builder, entry):
        secret = signing.new_secret("lab")
        nodes.push(entry, signer=lambda data: signing.sign(data, secret))
        nodes.trust(signing.public_of(secret))
        (item,) = topics.read_frame(nodes.offers_file(entry).read_bytes())
        assert [signature.name for signature in item.signatures] == ["ci", "lab"]
        assert nodes.fetch(builder)[0].key == entry.key


class TestWithdrawing:
    def test_a_withdrawn_offer_is_refused_and_what_was_fetched_is_no_longer_used(self, nodes, builder, entry):
        assert nodes.fetch(builder)[0]
        withdraw(nodes.store, entry.key)
        nodes.enter("other")
        match, rejected = nodes.fetch(builder, "other")
        assert match is None
        assert "the key ci has withdrawn it" in reasons(rejected)
        nodes.enter("node")  # which reads the list again when it next asks that remote, here for another op
        request = _request(builder)
        take.judged(nodes.store, _remote(nodes), WantedEntry(request), True)
        assert not os.listdir(request.store.layout.fetched(entry.record["description"]))

    def test_what_is_not_chosen_any_more_stays_where_it_was_fetched(self, nodes, builder, entry):
        assert nodes.fetch(builder)[0]
        said = {f"op:{entry.key}": withdrawal_lists.Withdrawal(withdrawal_lists.CHOOSING, "slow")}
        withdrawal_lists.publish(nodes.store, keys.signer("ci"), "ci", said)
        match, rejected = nodes.fetch(builder, "other")
        assert match is None and "the key ci has withdrawn it: slow" in reasons(rejected)
        nodes.enter("node")
        request = _request(builder)
        take.judged(nodes.store, _remote(nodes), WantedEntry(request), True)
        assert os.listdir(request.store.layout.fetched(entry.record["description"])) == [entry.key]

    def test_a_withdrawal_can_be_taken_back(self, nodes, builder, entry):
        withdraw(nodes.store, entry.key)
        said = {f"op:{entry.key}": withdrawal_lists.Withdrawal(withdrawal_lists.NOTHING)}
        listed = withdrawal_lists.publish(nodes.store, keys.signer("ci"), "ci", said)
        assert listed.of(f"op:{entry.key}").stops == withdrawal_lists.NOTHING
        assert nodes.fetch(builder)[0].key == entry.key

    def test_a_list_that_is_too_old_stops_fetching_if_the_trust_file_says_so(self, nodes, builder, entry, monkeypatch):
        later = withdrawal_lists.time.time() + 31 * 86400
        with monkeypatch.context() as patch:
            patch.setattr(withdrawal_lists.time, "time", lambda: later)
            assert nodes.fetch(builder)[0]
        trust_file.write(trust_file.read()._replace(withdrawal_days=30.0))
        with monkeypatch.context() as patch:
            patch.setattr(withdrawal_lists.time, "time", lambda: later)
            match, rejected = nodes.fetch(builder, "other")
        assert match is None
        assert "more than 30 days ago" in reasons(rejected)

    def test_a_list_from_the_future_is_refused(self, nodes, builder, entry, monkeypatch):
        earlier = withdrawal_lists.time.time() - 10 * 86400
        with monkeypatch.context() as patch:
            patch.setattr(withdrawal_lists.time, "time", lambda: earlier)
            match, rejected = nodes.fetch(builder)
        assert match is None
        assert "so the clock here is behind: set it" in reasons(rejected)

    def test_without_a_list_nothing_is_fetched(self, nodes, builder, entry):
        os.unlink(nodes.folder / "remote" / "v1" / "withdrawals" / "ci.json")
        match, rejected = nodes.fetch(builder)
        assert match is None
        assert "there is no list of withdrawals of the key ci" in reasons(rejected)

    def test_an_older_list_does_not_take_back_what_was_withdrawn(self, nodes, builder, entry):
        path = nodes.folder / "remote" / "v1" / "withdrawals" / "ci.json"
        older = path.read_bytes()
        withdraw(nodes.store, entry.key)
        assert nodes.fetch(builder)[0] is None
        path.write_bytes(older)
        usable, rejected = take.judged(nodes.store, _remote(nodes), WantedEntry(_request(builder)), True)
        assert not usable and "was seen before" in reasons(rejected)

    def test_the_list_of_another_key_vouches_for_nothing(self, nodes, builder, entry):
        other = signing.new_secret("ci")
        path = nodes.folder / "remote" / "v1" / "withdrawals" / "ci.json"
        data = withdrawal_lists.to_bytes(withdrawal_lists.Withdrawals("ci", withdrawal_lists.time.time()))
        path.write_bytes(statements.Signed(data, (signing.sign(data, other),)).file())
        match, rejected = nodes.fetch(builder)
        assert match is None
        assert "is not signed by that key" in reasons(rejected)

    def test_a_publisher_does_not_sign_what_another_has_put_there(self, nodes, builder, entry):
        other = signing.new_secret("ci")
        path = nodes.folder / "remote" / "v1" / "withdrawals" / "ci.json"
        data = withdrawal_lists.to_bytes(withdrawal_lists.Withdrawals("ci", 0.0))
        path.write_bytes(statements.Signed(data, (signing.sign(data, other),)).file())
        with pytest.raises(Exception, match="the one there is not signed by this key"):
            withdraw(nodes.store)

    @pytest.mark.parametrize("put_back", ["older", "none"])
    def test_a_publisher_does_not_renew_an_older_list_than_it_has_signed(self, nodes, entry, put_back):
        path = nodes.folder / "remote" / "v1" / "withdrawals" / "ci.json"
        older = path.read_bytes()
        withdraw(nodes.store, entry.key)
        path.write_bytes(older) if put_back == "older" else path.unlink()
        with pytest.raises(PublishError, match=r"and you know one of .* opforge withdraw URL"):
            nodes.push(entry)
        assert not path.exists() or path.read_bytes() == older
        listed = withdraw(nodes.store, restore=True)
        assert entries_of(listed) == [entry.key]
        nodes.push(entry)

    def test_a_folder_that_was_made_anew_gets_back_what_was_withdrawn(self, nodes, entry, caplog):
        other = "0" * 32 + "-" + "0" * 16
        withdraw(nodes.store, other)
        shutil.rmtree(nodes.folder / "remote")
        (nodes.folder / "remote").mkdir()
        with caplog.at_level(logging.WARNING, "opforge"):
            nodes.push(entry)
        assert entries_of(withdrawal_lists.Unverified(nodes.store).of("ci")) == [other]
        assert caplog.messages == [
            f"{nodes.url} is empty, and the key ci had withdrawn 1 statement in it: the list was put back."
            " What other machines have withdrawn with this key since, they must withdraw again."
        ]
        caplog.clear()
        nodes.push(entry)
        assert not caplog.messages

    def test_a_publisher_refuses_an_older_list_than_it_has_seen(self, nodes, entry, monkeypatch):
        path = nodes.folder / "remote" / "v1" / "withdrawals" / "ci.json"
        older = path.read_bytes()
        with monkeypatch.context() as patch:  # another machine, with the same key
            patch.setattr(withdrawal_lists, "_note", lambda *_list: None)
            later = withdrawal_lists.time.time() + 60
            patch.setattr(withdrawal_lists.time, "time", lambda: later)
            withdraw(nodes.store, entry.key)
        nodes.push(entry)
        path.write_bytes(older)
        with pytest.raises(PublishError, match="the one there was made"):
            nodes.push(entry)

    def test_a_config_folder_that_is_read_only_stops_no_publication(self, nodes, entry, monkeypatch):
        monkeypatch.setattr(withdrawal_lists, "write_file", lambda *_file: (_ for _ in ()).throw(PermissionError()))
        withdraw(nodes.store, entry.key)
        nodes.push(entry)


def _remote(nodes):
    from opforge.remote import remotes

    return remotes.parse(nodes.url)


def _trust():
    from opforge.remote.signatures import trust_file

    return trust_file.read()


def _request(builder):
    from opforge.builders.lookup import remotes

    return remotes.request_for(builder.spec(), current_store())


class TestTrustThatChanges:
    def test_a_revoked_key_stops_what_was_fetched(self, nodes, builder, entry, monkeypatch):
        assert nodes.fetch(builder)[0]
        nodes.trust(nodes.public, revoked="2026-01-01")
        monkeypatch.delenv("OPFORGE_REMOTES")
        match, rejected = nodes.fetch(builder)
        assert match is None
        assert "the key ci was revoked on 2026-01-01" in reasons(rejected)
        nodes.trust(nodes.public)
        assert nodes.fetch(builder)[0].origin == nodes.url, "it stays: the key may be trusted again"

    def test_a_further_key_changes_nothing(self, nodes, builder, entry, monkeypatch):
        assert nodes.fetch(builder)[0]
        nodes.trust(nodes.public, signing.public_of(signing.new_secret("lab")))
        monkeypatch.setenv("OPFORGE_REMOTES", "file:///no/such/folder")
        assert nodes.fetch(builder)[0].origin == nodes.url

    def damage(self, nodes):
        """Misspells a field; returns what the error says of it."""
        path = nodes.trust_file()
        path.write_text(path.read_text().replace('"until"', '"untill"'))
        problem = "line 10: 'keys[0].untill' is not a field that is read; did you mean 'until'?"
        return f"The trust file {path} cannot be used: {problem}"

    def test_a_damaged_trust_file_stops_all_remotes_with_one_error(self, nodes, builder, entry, monkeypatch, caplog):
        problem = self.damage(nodes)
        monkeypatch.setenv("OPFORGE_REMOTES", f"{nodes.url} {nodes.url}/x?unsigned=1 file:///no/such/folder")
        with caplog.at_level(logging.WARNING, "opforge"):
            for _load in range(2):
                caplog.clear()
                match, rejected = nodes.fetch(builder)
                assert match is None and problem in reasons(rejected)
                assert [record.getMessage()[: len(problem) + 27] for record in caplog.records] == [
                    f"plain: nothing is fetched: {problem}"
                ]

    def test_what_was_fetched_before_still_loads_with_a_damaged_trust_file(self, nodes, builder, entry, caplog):
        assert nodes.fetch(builder)[0]
        problem = self.damage(nodes)
        for expected in ([f"plain: only artifacts that were fetched before are used: {problem}"], []):
            with caplog.at_level(logging.WARNING, "opforge"):
                caplog.clear()
                assert nodes.fetch(builder)[0].origin == nodes.url
            texts = [record.getMessage().partition(" Correct")[0].removesuffix(".") for record in caplog.records]
            assert texts == expected
        nodes.trust_file().write_text(nodes.trust_file().read_text().replace('"untill"', '"until"'))
        nodes.trust(nodes.public, revoked="2026-01-01")
        assert nodes.fetch(builder)[0] is None

    def test_what_was_refused_is_not_used_with_a_damaged_trust_file(self, nodes, builder, entry, monkeypatch, caplog):
        assert nodes.fetch(builder)[0]
        monkeypatch.delenv("OPFORGE_REMOTES")
        nodes.trust(nodes.public, revoked="2026-01-01")
        assert nodes.fetch(builder)[0] is None
        self.damage(nodes)
        for _load in range(2):
            match, rejected = nodes.fetch(builder)
            assert match is None and reverification.REFUSED in reasons(rejected)
        nodes.trust_file().write_text(nodes.trust_file().read_text().replace('"untill"', '"until"'))
        assert nodes.fetch(builder)[0] is None
        nodes.trust(nodes.public)
        assert nodes.fetch(builder)[0].origin == nodes.url

    def test_a_trust_file_that_is_gone_stops_what_was_fetched(self, nodes, builder, entry, monkeypatch):
        assert nodes.fetch(builder)[0]
        os.unlink(nodes.folder / "config" / "opforge" / "trust.json")
        monkeypatch.delenv("OPFORGE_REMOTES")
        assert nodes.fetch(builder)[0] is None


def test_a_trust_file_is_compared_by_a_remembered_look_up(nodes, builder, entry, monkeypatch):
    """The second look-up is made in full, and remembered; the trust file changes after it."""
    import time

    nodes.fetch(builder)
    monkeypatch.delenv("OPFORGE_REMOTES")
    time.sleep(2.1)
    assert nodes.fetch(builder)[0]
    assert nodes.fetch(builder)[0]
    nodes.trust(nodes.public, revoked="2026-01-01")
    assert nodes.fetch(builder)[0] is None


def test_unsigned_offers_only_if_the_remote_says_so(nodes, builder, entry, monkeypatch, caplog):
    (item,) = topics.read_frame(nodes.offers_file(entry).read_bytes())
    nodes.put_offer(entry, item.data, signatures=())
    monkeypatch.setenv("OPFORGE_REMOTES", nodes.url + "?unsigned=1")
    for _load in range(2):
        with caplog.at_level(logging.WARNING, "opforge"):
            caplog.clear()
            assert nodes.fetch(builder)[0].origin == nodes.url + " (unsigned)"
        assert [record.getMessage() for record in caplog.records] == [
            f"plain: its library came without a signature, from {nodes.url} (unsigned)"
        ]
