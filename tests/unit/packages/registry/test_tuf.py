"""A registry with TUF metadata: what it protects from, with real keys and python-tuf's own client."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from datetime import UTC, datetime, timedelta

import pytest
from support.remote.withdrawing import withdraw_release
from support.text_files import write

from opforge import environment
from opforge.errors import (
    ExtraNotInstalledError,
    KernelNotFoundError,
    PublishError,
    SignatureError,
    StoreBehindError,
)
from opforge.packages.form import version
from opforge.packages.form.version import Version
from opforge.packages.registry import index, selection
from opforge.remote import topics
from opforge.remote.signatures import keys, seen, trust
from opforge.remote.stores import open_store
from opforge.remote.tuf import FOLDER, TIMESTAMP, roots, target_path

metadata = pytest.importorskip("opforge.remote.tuf.metadata", reason="needs pip install 'opforge[tuf]'")
REFUSED = "its TUF metadata is refused"


def trusted(registry):
    return roots.of_store(registry.store)


def snapshot_of(registry, folder):
    """Copies the whole registry, as it is now."""
    return shutil.copytree(registry.path, folder)


def restore(registry, folder, *names):
    for name in names:
        registry.replace(name, (folder / name).read_bytes())


def test_what_is_published_is_installed(tuf):
    tuf.publish(number="2.3")
    assert str(tuf.install().version) == "2.3"
    tuf.publish(number="2.4", text="VALUE = 4\n")
    tuf.publish("acme/other")
    assert str(tuf.install().version) == "2.4"
    assert str(tuf.install("acme/other").version) == "1"
    with pytest.raises(Exception, match="it has no package acme/none"):
        tuf.install("acme/none")


def test_an_index_without_a_signature_is_not_read(tuf):
    """The plain index, which everybody with the right to write can change, counts for nothing."""
    tuf.publish(number="1")
    digest = tuf.publish(number="2", text="VALUE = 2\n").digest
    listed = index.Index("acme/plain", 99, {Version(9): topics.Listed(digest)}).listing()
    tuf.replace(topics.name_of("package", "acme/plain"), listed.data())
    assert str(tuf.install().version) == "2"


def test_an_index_that_was_rolled_back_is_not_signed(tuf):
    """A publisher adds to what is signed, and not to what others have put beside it."""
    tuf.publish(number="1")
    before = tuf.content(topics.name_of("package", "acme/plain"))
    tuf.publish(number="2", text="VALUE = 2\n")
    tuf.replace(topics.name_of("package", "acme/plain"), before)
    tuf.publish(number="3", text="VALUE = 3\n")
    (source,) = tuf.sources()
    listed = source.read_index("acme/plain")
    assert [*map(str, listed.releases)] == ["1", "2", "3"]
    assert listed.sequence == 3


def test_what_was_published_before_there_was_metadata_is_signed_with_the_next_release(registry, key_pairs):
    registry.publish(number="1")
    data = metadata.begin(registry.store, key_pairs.pairs("root"), 1, key_pairs.pairs("ci"))
    roots.trust(registry.url, data)
    registry.publish(number="2", text="VALUE = 2\n")
    (source,) = registry.sources()
    assert [*map(str, source.read_index("acme/plain").releases)] == ["1", "2"]


@pytest.mark.parametrize("kind", ["snapshot", "timestamp", "bin"])
def test_a_publisher_does_not_extend_an_older_state(tuf, tmp_path, kind):
    """What was signed earlier lies in the place of what is newer: every signature is right."""
    tuf.publish(number="1")
    before = snapshot_of(tuf, tmp_path / "before")
    old = set(os.listdir(before / FOLDER))
    tuf.publish(number="1.1", text="VALUE = 3\n")
    if kind == "timestamp":
        restore(tuf, before, TIMESTAMP)
    else:
        (name,) = [name for name in set(os.listdir(tuf.path / FOLDER)) - old if kind in name]
        number, rest = name.split(".", 1)
        tuf.replace(f"{FOLDER}/{name}", tuf.content(f"{FOLDER}/{int(number) - 1}.{rest}"))
    with pytest.raises(SignatureError, match=rf"{REFUSED}: .*is version \d.*nothing was signed"):
        tuf.publish(number="2", text="VALUE = 2\n")


class TestAListOfWithdrawals:
    @pytest.fixture(autouse=True)
    def withdrawn(self, tuf, tmp_path):
        tuf.publish(number="1")
        tuf.publish(number="2", text="VALUE = 2\n")
        self.before = snapshot_of(tuf, tmp_path / "before")
        withdraw_release(tuf.store, "acme/plain@2", "wrong")

    def test_it_is_signed_too(self, tuf):
        assert str(tuf.install().version) == "1"

    def test_the_one_beside_it_counts_for_nothing(self, tuf):
        (tuf.path / "v1" / "withdrawals" / "ci.json").unlink()
        assert str(tuf.install().version) == "1"

    def test_a_state_without_it_is_refused(self, tuf):
        assert str(tuf.install().version) == "1"
        restore(tuf, self.before, TIMESTAMP)
        with pytest.raises(StoreBehindError, match=rf"{REFUSED}: .*[Vv]ersion"):
            tuf.install()

    def test_what_was_withdrawn_stays_when_more_is(self, tuf):
        """The list beside the signed one is gone, and this publisher knows none."""
        (tuf.path / "v1" / "withdrawals" / "ci.json").unlink()
        shutil.rmtree(os.path.join(environment.state_dir(), "withdrawals"))
        withdraw_release(tuf.store, "acme/plain@1", "old")
        with pytest.raises(KernelNotFoundError, match="acme/plain 2 was withdrawn: wrong"):
            tuf.install()


@pytest.mark.parametrize("is_gone", [False, True])
def test_what_was_seen_before_a_root_was_trusted_is_not_forgotten(tuf, is_gone):
    """The store is known by its root's keys from then on, and was known by its URL before."""
    tuf.publish()
    if not is_gone:
        withdraw_release(tuf.store, "acme/plain@9", "wrong")
    newer = seen.Seen(int(time.time()) + 1000, "0" * 64)
    assert seen.problem(tuf.url, tuf.key, newer) == ""
    with pytest.raises(StoreBehindError, match=r"it is (gone|the one of .*), and the one of .* was seen before"):
        tuf.install()


class TestAnotherUrlOfTheStore:
    """A store is known by its root's keys: whoever trusts its root reads it by no URL without them."""

    def test_a_link_is_read_with_the_root(self, tuf, tmp_path):
        tuf.publish()
        os.symlink(tuf.path, tmp_path / "link")
        (source,) = selection.sources([f"file://{tmp_path}/link"])
        assert source.tuf.root.folder == roots.by_url(tuf.url).folder

    def test_a_copy_that_is_behind_is_noticed(self, tuf, tmp_path):
        tuf.publish()
        before = snapshot_of(tuf, tmp_path / "before")
        tuf.publish(number="2", text="VALUE = 2\n")
        tuf.install()
        with pytest.raises(StoreBehindError, match=REFUSED):
            selection.choose("acme/plain", version.ANY, selection.sources([f"file://{before}"]))

    def test_a_url_that_once_led_to_the_root_is_not_read_without_it(self, tuf, tmp_path):
        tuf.publish()
        copy = snapshot_of(tuf, tmp_path / "copy")
        url = f"file://{copy}"
        assert selection.choose("acme/plain", version.ANY, selection.sources([url]))
        shutil.rmtree(copy / FOLDER)
        with pytest.raises(SignatureError, match=REFUSED):
            selection.choose("acme/plain", version.ANY, selection.sources([url]))

    def test_another_store_is_read_as_ever(self, tuf, tmp_path, key_pairs):
        (tmp_path / "other").mkdir()
        store = open_store(f"file://{tmp_path}/other")
        key_pairs.pairs("elsewhere")
        metadata.begin(store, key_pairs.pairs("elsewhere"), 1, key_pairs.pairs("ci"))
        assert selection.sources([store.url])[0].tuf is None


class TestAPolicyThatRequiresARoot:
    @pytest.fixture(autouse=True)
    def policy(self, registry):
        self.change(("file:///*/registry",))

    def change(self, stores):
        trust.write(trust.read()._replace(stores_with_roots=stores))

    def test_it_refuses_a_store_without_one(self, registry):
        registry.publish()
        with pytest.raises(SignatureError, match=r"trust\.json requires a root of it, and you trust none"):
            registry.install()
        self.change(("https://*",))
        assert registry.install()

    def test_it_refuses_a_link_to_one(self, registry, tmp_path):
        """Such as one that a lock file names: the policy names the folder by another path."""
        registry.publish()
        os.symlink(registry.path, tmp_path / "link")
        for url in (f"file://{tmp_path}/link", f"file:///proc/self/root{registry.path}"):
            with pytest.raises(SignatureError, match=r"trust\.json requires a root of it, and you trust none"):
                selection.choose("acme/plain", version.ANY, selection.sources([url]))

    def test_it_takes_one_with_a_root(self, tuf):
        tuf.publish()
        assert tuf.install()


def test_an_expired_timestamp_is_refused_until_it_is_renewed(tuf):
    tuf.publish()
    metadata.refresh(tuf.store, trusted(tuf), keys.signer("ci"), days=-1)
    with pytest.raises(SignatureError, match=rf"{REFUSED}: timestamp.json is expired.*opforge tuf refresh"):
        tuf.install()
    until = metadata.refresh(tuf.store, trusted(tuf), keys.signer("ci"))
    assert timedelta(days=6) < until - datetime.now(UTC) < timedelta(days=8)
    assert str(tuf.install().version) == "1"


def test_a_registry_that_is_rolled_back_is_refused(tuf, tmp_path):
    tuf.publish(number="1")
    before = snapshot_of(tuf, tmp_path / "before")
    tuf.publish(number="2", text="VALUE = 2\n")
    assert str(tuf.install().version) == "2"
    restore(tuf, before, TIMESTAMP)
    with pytest.raises(SignatureError, match=rf"{REFUSED}: .*[Vv]ersion"):
        tuf.install()


def test_a_mixture_of_two_states_is_refused(tuf, tmp_path):
    """A new timestamp and snapshot with the index of yesterday."""
    tuf.publish(number="1")
    before = snapshot_of(tuf, tmp_path / "before")
    tuf.publish(number="2", text="VALUE = 2\n")
    old = {name for name in (os.listdir(before / FOLDER)) if ".bin-" in name}
    new = {name for name in os.listdir(tuf.path / FOLDER) if ".bin-" in name} - old
    (name,) = new
    number, rest = name.split(".", 1)
    tuf.replace(f"{FOLDER}/{name}", tuf.content(f"{FOLDER}/{int(number) - 1}.{rest}"))
    with pytest.raises(SignatureError, match=f"{REFUSED}: Expected bin-. v"):
        tuf.install()


def test_an_index_in_the_place_of_a_signed_one_is_refused(tuf):
    tuf.publish(number="1")
    tuf.publish("acme/other")
    files = [name for name in tuf.files() if name.startswith(f"{FOLDER}/targets/package/acme/")]
    (plain,) = [name for name in files if "plain" in name]
    (other,) = [name for name in files if "other" in name]
    tuf.replace(plain, tuf.content(other))
    with pytest.raises(SignatureError, match=f"{REFUSED}: .*(hash|length)"):
        tuf.install()


@pytest.mark.parametrize(
    ("file", "what"),
    [
        ("timestamp.json", "{url} is rejected: its TUF metadata is refused: v1/tuf/timestamp.json is missing"),
        ("*.snapshot.json", "{url} is rejected: its TUF metadata is refused: v1/tuf/{file} is missing"),
        ("*.bin-?.json", "{url} is rejected: its TUF metadata is refused: v1/tuf/{file} is missing"),
        (
            "*.plain.json",
            "{url}/v1/tuf/targets/package/acme/{file} is rejected: it is missing, and the registry's keys"
            " have signed that it is there, as the target 'package/acme/plain.json'",
        ),
    ],
)
def test_a_file_that_a_registry_has_lost_is_named_with_what_to_do(tuf, file, what):
    tuf.publish()
    (path,) = sorted((tuf.path / FOLDER).rglob(file))[-1:]
    path.unlink()
    with pytest.raises(SignatureError) as error:
        tuf.install()
    expected = what.format(url=tuf.url, file=path.name)
    advice = "Ask the registry's owner to put that file back, from a mirror or a backup."
    if path.name == "timestamp.json":
        advice += f" If it was never there, {tuf.url} is not a registry with TUF metadata: check the URL."
    assert str(error.value) == f"{expected}. {advice}"


@pytest.mark.parametrize("name", [TIMESTAMP, "snapshot", "bin-"])
def test_metadata_that_another_key_signed_is_refused(tuf, key_pairs, name):
    tuf.publish()
    key_pairs.public("mallory")
    files = [file for file in tuf.files() if file.startswith(f"{FOLDER}/") and name in file and "targets/" not in file]
    for file in files:
        value = json.loads(tuf.content(file))
        value["signed"]["expires"] = "2099-01-01T00:00:00Z"
        loaded = metadata.Metadata.from_dict(value)
        named = keys.signer("mallory")(loaded.signed_bytes)
        for signature in loaded.signatures.values():
            signature.signature = named.data.hex()
        tuf.replace(file, loaded.to_bytes())
    with pytest.raises(SignatureError, match=REFUSED):
        tuf.install()
    with pytest.raises(SignatureError, match=REFUSED):
        metadata.record(
            tuf.store, trusted(tuf), target_path("package", "acme/plain"), keys.signer("ci"), lambda _data: None
        )


def test_a_publisher_who_is_killed_before_the_timestamp_changes_nothing(tuf, monkeypatch):
    tuf.publish(number="1")

    def killed(*arguments, **more):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(metadata.State, "renew", killed)
        tuf.publish(number="2", text="VALUE = 2\n")
    assert str(tuf.install().version) == "1"
    tuf.publish("acme/other")
    assert str(tuf.install().version) == "1"
    tuf.publish(number="2", text="VALUE = 2\n")
    assert str(tuf.install().version) == "2", "publishing it again completes it"


def test_versions_that_many_killed_publishers_have_left_are_skipped(tuf):
    tuf.publish(number="1")
    (last,) = [name for name in os.listdir(tuf.path / FOLDER) if name.endswith("3.snapshot.json")]
    for number in range(4, 40):
        tuf.replace(f"{FOLDER}/{number}.snapshot.json", tuf.content(f"{FOLDER}/{last}"))
    tuf.publish(number="2", text="VALUE = 2\n")
    assert str(tuf.install().version) == "2"


def test_a_publisher_who_trusts_no_root_is_refused_before_anything_is_stored(tuf):
    shutil.rmtree(trusted(tuf).folder)
    before = tuf.files()
    with pytest.raises(PublishError, match=r"of which you trust no root.*opforge tuf trust URL FILE"):
        tuf.publish()
    assert tuf.files() == before


def test_without_the_package_nothing_is_read_unprotected(tuf, monkeypatch):
    tuf.publish()
    monkeypatch.setitem(sys.modules, "tuf.ngclient", None)
    with pytest.raises(ExtraNotInstalledError, match=r"pip install 'opforge\[tuf\]'"):
        tuf.install()


def test_a_registry_without_such_metadata_is_read_as_before(registry):
    registry.publish()
    assert registry.sources()[0].tuf is None
    assert str(registry.install().version) == "1"


def test_the_work_of_publishing_and_resolving_does_not_depend_on_the_number_of_names(tuf):
    counts = []
    for number in range(6):
        before = len(tuf.files())
        tuf.publish(f"acme/name-{number}")
        counts.append(len(tuf.files()) - before)
    # Blob, release, index; its signed copy, a bin and a snapshot. The timestamp is replaced.
    assert set(counts) <= {5, 6} and len(tuf.files()) > 30


def test_a_lock_file_and_the_commands_read_the_signed_index(tuf, monkeypatch, tmp_path):
    from opforge.packages.project import locking

    tuf.publish(number="2.1")
    write(tmp_path / "project", "kernels.toml", '"acme/plain" = 2\n')
    lock, _changes = locking.make(str(tmp_path / "project"), tuf.sources())
    assert [str(kernel.version) for kernel in lock.kernels] == ["2.1"]
    tuf.replace(TIMESTAMP, b"{}")
    with pytest.raises(SignatureError, match=REFUSED):
        locking.make(str(tmp_path / "project"), tuf.sources())
