"""Mirrors of a registry with TUF metadata: the same signatures, also from a web server, which lists nothing."""

from __future__ import annotations

import os
import re

import pytest
from support.remote import servers

from opforge.errors import PublishError
from opforge.packages.form import version
from opforge.packages.registry import selection
from opforge.remote import mirror
from opforge.remote.stores import open_store
from opforge.remote.tuf import FOLDER, TIMESTAMP, copies, roots

metadata = pytest.importorskip("opforge.remote.tuf.metadata", reason="needs pip install 'opforge[tuf]'")


@pytest.fixture
def target(tmp_path):
    """The store of the mirror."""
    (tmp_path / "mirror").mkdir()
    return open_store(f"file://{tmp_path}/mirror")


def copy_all(source, target, *names):
    """Copies as `opforge mirror` does."""
    copies.require_same(source, target)
    list(mirror.copy_named(source, target, "package", names) if names else mirror.copy(source, target))
    copies.copy(source, target)


def test_a_mirror_has_the_same_signatures_and_never_older_ones(tuf, target, monkeypatch):
    tuf.publish(number="1")
    copy_all(tuf.store, target)
    roots.trust(target.url, roots.of_store(tuf.store).data)
    source = selection.sources([target.url])
    assert str(selection.choose("acme/plain", version.ANY, source).verified.release.version) == "1"
    tuf.publish(number="2", text="VALUE = 2\n")
    get, fetched = type(tuf.store).get, []

    def counted(store, name, limit):
        fetched.append(name)
        return get(store, name, limit)

    with monkeypatch.context() as patch:
        patch.setattr(type(tuf.store), "get", counted)
        copies.copy(tuf.store, target)
    assert len(fetched) == 4 + 2 + 5, "two roots and timestamps; the roots again; two snapshots and bins; an index"
    copy_all(tuf.store, target)
    source = selection.sources([target.url])
    assert str(selection.choose("acme/plain", version.ANY, source).verified.release.version) == "2"
    assert not copies.copy(tuf.store, target)


def test_a_mirror_with_metadata_of_its_own_keeps_it(tuf, target, key_pairs):
    metadata.begin(target, key_pairs.pairs("other"), 1, key_pairs.pairs("ci"))
    tuf.publish()
    with pytest.raises(PublishError, match="it has metadata of its own"):
        copy_all(tuf.store, target)
    assert not list(target.list("v1/topics/package/")) and not list(target.list("v1/blobs/"))


def test_a_registry_on_a_web_server_is_mirrored(tuf, target):
    roots.trust(target.url, roots.of_store(tuf.store).data)
    with servers.http_server() as server:
        os.rmdir(server.root)
        os.symlink(tuf.path, server.root)
        for number in ("1", "2"):
            tuf.publish(number=number, text=f"VALUE = {number}\n")
            copy_all(open_store(server.url), target, "acme/plain")
            source = selection.sources([target.url])
            assert str(selection.choose("acme/plain", version.ANY, source).verified.release.version) == number
            assert not copies.copy(open_store(server.url), target)


@pytest.mark.parametrize(
    ("file", "content", "problem"),
    [
        (
            "*.snapshot.json",
            None,
            "v1/tuf/NUMBER.snapshot.json is missing, and v1/tuf/timestamp.json names it",
        ),
        ("*.snapshot.json", b"{}", "v1/tuf/NUMBER.snapshot.json is damaged: 'signed' is missing"),
        ("*.snapshot.json", b"[", "v1/tuf/NUMBER.snapshot.json is damaged: it is not valid JSON"),
        (
            "*.snapshot.json",
            b'{"signed": {"meta": {"bin-0.json": {}}}}',
            "v1/tuf/NUMBER.snapshot.json is damaged: 'signed.meta.bin-NUMBER.json.version' is missing",
        ),
        (
            "*.bin-?.json",
            b'{"signed": {"targets": {"package/acme/plain.json": 3}}}',
            "v1/tuf/NUMBER.bin-NUMBER.json is damaged: 'signed.targets.package/acme/plain.json' is 3: expected an",
        ),
        (
            "*.plain.json",
            None,
            "v1/tuf/targets/package/acme/DIGEST.plain.json is missing, and v1/tuf/NUMBER.bin-NUMBER.json names it",
        ),
    ],
)
def test_a_mirror_of_an_incomplete_registry_keeps_its_timestamp(tuf, target, file, content, problem):
    tuf.publish()
    copy_all(tuf.store, target)
    before = target.get(TIMESTAMP, 1 << 20).data
    tuf.publish(number="2", text="VALUE = 2\n")
    for path in (tuf.path / FOLDER).rglob(file):
        path.write_bytes(content) if content else path.unlink()
    with pytest.raises(PublishError) as error:
        copies.copy(tuf.store, target)
    assert problem in re.sub(r"(?<=[/-])\d+(?=\.)", "NUMBER", re.sub("[0-9a-f]{64}", "DIGEST", str(error.value)))
    assert str(error.value).endswith(
        ". Ask the registry's owner to put that file back, from a mirror or a backup, or copy from another mirror."
    )
    assert target.get(TIMESTAMP, 1 << 20).data == before
