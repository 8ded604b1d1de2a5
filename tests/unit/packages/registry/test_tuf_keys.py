"""The keys of a registry with TUF metadata: they are replaced by those who have them, and by nobody else."""

from __future__ import annotations

import os

import pytest

from opforge.errors import PublishError, SignatureError
from opforge.packages.registry.tuf import FOLDER, roots
from opforge.remote.signatures import keys

metadata = pytest.importorskip("opforge.packages.registry.tuf.metadata", reason="needs pip install 'opforge[tuf]'")
REFUSED = "its TUF metadata is refused"


def trusted(registry):
    return roots.read(registry.store.url)


def test_keys_are_replaced_and_those_who_trust_the_first_root_follow(tuf, key_pairs):
    tuf.publish(number="1")
    new = key_pairs.root("root2", "root3")
    data = metadata.rotate(
        tuf.store, trusted(tuf), [keys.signer("root")], new, 2, key_pairs.public("ci2"), keys.signer("ci2")
    )
    assert str(tuf.install().version) == "1", "by the root that was trusted first"
    with pytest.raises(SignatureError, match=r"the key ci may not sign it.*Sign with one of: ci2"):
        metadata.refresh(tuf.store, trusted(tuf), keys.signer("ci"))
    metadata.refresh(tuf.store, trusted(tuf), keys.signer("ci2"))
    roots.trust(tuf.url, data)
    assert str(tuf.install().version) == "1", "and by the new one alone"


def test_too_few_or_foreign_root_keys_cannot_replace_keys(tuf, key_pairs):
    new = key_pairs.root("mallory")
    arguments = (new, 1, key_pairs.public("mallory"), keys.signer("mallory"))
    with pytest.raises(SignatureError, match="the key mallory may not sign it"):
        metadata.rotate(tuf.store, trusted(tuf), [keys.signer("mallory")], *arguments)
    with pytest.raises(SignatureError, match="too few root keys have signed"):
        metadata.rotate(tuf.store, trusted(tuf), [], *arguments)
    assert not os.path.exists(tuf.path / FOLDER / "2.root.json")


def test_a_root_that_its_present_keys_did_not_sign_is_refused(tuf, key_pairs):
    tuf.publish()
    foreign = metadata.State(
        tuf.store, metadata._root(2, [key_pairs.public("mallory")], 1, key_pairs.public("mallory"))
    )
    metadata.sign(foreign.root, keys.signer("mallory"), foreign.keys("root"))
    tuf.replace(f"{FOLDER}/2.root.json", foreign.root.to_bytes())
    with pytest.raises(SignatureError, match=f"{REFUSED}.*root was signed by"):
        tuf.install()
    with pytest.raises(SignatureError, match=REFUSED):
        metadata.refresh(tuf.store, trusted(tuf), keys.signer("ci"))


def test_one_who_was_killed_between_root_and_timestamp_can_repeat_it(tuf, key_pairs, monkeypatch):
    tuf.publish()
    arguments = (key_pairs.root("root2"), 1, key_pairs.public("ci2"), keys.signer("ci2"))
    with monkeypatch.context() as patch, pytest.raises(PublishError, match="opforge tuf rotate again"):
        patch.setattr(metadata.State, "renew", lambda *_arguments: False)
        metadata.rotate(tuf.store, trusted(tuf), [keys.signer("root")], *arguments)
    metadata.rotate(tuf.store, trusted(tuf), [keys.signer("root2")], *arguments)
    assert str(tuf.install().version) == "1"


def test_a_root_that_others_can_replace_is_not_trusted(tuf):
    os.chmod(roots.folder_of(tuf.store.url), 0o777)
    with pytest.raises(Exception, match=r"The trust file .*trusted-root\.json cannot be used"):
        tuf.install()


@pytest.mark.parametrize("text", ["", "{}", '{"signed": {"_type": "timestamp"}}', "[1]"])
def test_a_file_that_is_no_root_is_not_trusted(registry, text):
    with pytest.raises(Exception, match=r"The trust file .* cannot be used"):
        roots.trust(registry.url, text.encode())


def test_metadata_cannot_be_begun_twice_or_by_too_few_keys(tuf, key_pairs):
    arguments = (key_pairs.public("ci"), keys.signer("ci"))
    with pytest.raises(PublishError, match="it has one already"):
        metadata.begin(tuf.store, key_pairs.root("root"), 1, *arguments)
    with pytest.raises(ValueError, match="3 of 1 root keys cannot sign"):
        metadata._root(1, [key_pairs.public("root")], 3, key_pairs.public("ci"))
