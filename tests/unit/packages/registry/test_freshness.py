"""What a signer's list names is what there is: an index that is held back or forged hides and adds nothing."""

from __future__ import annotations

import json
import shutil

import pytest
from support.remote.withdrawing import withdraw_release
from support.text_files import write

from opforge.errors import KernelInstallError, KernelNotFoundError, PublishError, SignatureError, StoreBehindError
from opforge.packages.form import version
from opforge.packages.form.version import Version
from opforge.packages.installed import releases
from opforge.packages.project import lock_file, locking
from opforge.packages.project.install_locked import install_locked
from opforge.packages.registry import index, install_release, publish, selection, verify_installed
from opforge.remote import mirror, statements, topics, withdrawal_lists
from opforge.remote.signatures import keys, trust_file
from opforge.remote.stores import open_store

INDEX, LIST = topics.name_of("package", "acme/plain"), withdrawal_lists.name_of("ci")


def listed(registry, key="ci"):
    """Returns what the list of a key names of the package."""
    return withdrawal_lists.Unverified(registry.store).of(key).released.get("package:acme/plain", {})


def chosen(url, numbers=version.ANY):
    return selection.choose("acme/plain", numbers, selection.sources([url])).verified


def publish_as(registry, key, **more):
    return publish.publish(registry.store, registry.packed(**more), keys.signer(key))


def trust_keys(*publics, **fields):
    entries = tuple(trust_file.TrustedKey(public, ("package:acme/*",)) for public in publics)
    trust_file.write(trust_file.read()._replace(keys=entries, **fields))


class TestTheIndexIsACache:
    @pytest.mark.parametrize("number", [None, 99])
    def test_an_old_index_hides_nothing_whatever_its_number(self, registry, number):
        registry.publish(number="1")
        old = json.loads(registry.content(INDEX))
        registry.publish(number="2", text="VALUE = 2\n")
        registry.replace(INDEX, json.dumps({**old, "sequence": number or old["sequence"]}).encode())
        assert str(registry.install().version) == "2"

    def test_a_release_that_is_held_back_with_its_index_is_missed(self, registry):
        registry.publish(number="1")
        old = registry.content(INDEX)
        done = registry.publish(number="2", text="VALUE = 2\n")
        registry.replace(INDEX, old)
        registry.store.delete(statements.name_of(done.digest))
        verified = chosen(registry.url)
        assert (str(verified.release.version), verified.missing) == ("1", (Version(2),))
        text = f"{registry.url} lacks acme/plain 2, newer than acme/plain 1: it holds a part, or is behind"
        assert verified.notes == [("note", text)]

    def test_what_is_withdrawn_is_not_missed(self, registry):
        registry.publish(number="1")
        old = registry.content(INDEX)
        done = registry.publish(number="2", text="VALUE = 2\n")
        withdraw_release(registry.store, "acme/plain@2")
        registry.replace(INDEX, old)
        registry.store.delete(statements.name_of(done.digest))
        assert chosen(registry.url).notes == []

    def test_a_release_that_no_list_names_is_not_there(self, registry):
        """A publisher was killed before the last step, or somebody put it into the index."""
        registry.publish(number="1")
        before = registry.content(LIST)
        registry.publish(number="2", text="VALUE = 2\n")
        registry.replace(LIST, before)
        assert str(registry.install().version) == "1"
        with pytest.raises(SignatureError) as error:
            chosen(registry.url, version.parse_range("2"))
        assert str(error.value) == (
            "acme/plain 2 is rejected: the list of the key ci does not name it. "
            "The holder of the key publishes it again, which adds it to the list: opforge publish."
        )

    @pytest.mark.parametrize("change", ["gone", "{}", "too large"])
    def test_an_index_that_is_gone_or_cannot_be_read_hides_nothing(self, registry, monkeypatch, change):
        registry.publish(number="1")
        if change == "gone":
            registry.store.delete(INDEX)
        elif change == "{}":
            registry.replace(INDEX, b"{}")
        else:
            monkeypatch.setattr(topics, "MAX_LISTING_BYTES", len(registry.content(INDEX)) - 1)
        assert str(registry.install().version) == "1"

    def test_without_an_index_the_next_remote_does_not_decide(self, registry, tmp_path):
        (tmp_path / "other").mkdir()
        other = open_store(f"file://{tmp_path}/other")
        registry.publish(number="1")
        publish.publish(other, registry.packed(number="2", text="VALUE = 2\n"), keys.signer("ci"))
        registry.store.delete(INDEX)
        among = selection.sources([registry.url, other.url])
        assert str(selection.choose("acme/plain", version.ANY, among).verified.release.version) == "1"
        with pytest.raises(KernelNotFoundError, match=r"has no release in >=2; its newest are: 1"):
            selection.choose("acme/plain", version.parse_range(">=2"), among)

    def lists(self, registry, *numbers, key="ci"):
        """Names releases in the list of a key that the store does not have."""
        released = {"package:acme/plain": {number: number * 64 for number in numbers}}
        withdrawal_lists.publish(registry.store, keys.signer(key), key, released=released)

    def test_newer_releases_that_are_missing_hide_no_older_one(self, registry):
        registry.publish(number="1")
        old = registry.content(INDEX)
        registry.publish(number="2", text="VALUE = 2\n")
        self.lists(registry, *"3456789")
        registry.replace(INDEX, old)
        assert str(chosen(registry.url).release.version) == "2"

    def test_more_than_are_asked_for_end_it_with_the_reason(self, registry, monkeypatch):
        monkeypatch.setattr(selection, "MAX_ASKED", 1)
        registry.publish(number="1")
        self.lists(registry, *"23")
        with pytest.raises(KernelInstallError) as error:
            chosen(registry.url)
        assert "signers' lists name more than 1 releases of it that the index of" in str(error.value)
        assert "Publish one of them again, which adds it to the index, or name one version." in str(error.value)
        assert str(chosen(registry.url, version.parse_range("1")).release.version) == "1"
        for name in registry.files():
            if "/topics/" in name or "/statements/" in name:
                registry.store.delete(name)
        with pytest.raises(KernelInstallError, match="more than 1 releases of it that the index"):
            chosen(registry.url)

    def test_of_two_releases_of_a_version_the_one_that_is_there_is_taken(self, registry):
        trust_keys(keys.create("a-lab"), registry.key)
        registry.publish(number="1")
        self.lists(registry, "1", key="a-lab")
        registry.store.delete(INDEX)
        assert chosen(registry.url).signer == "ci"


class TestPublishing:
    @pytest.mark.parametrize("step", ["topics", "withdrawals"])
    def test_one_that_is_killed_is_seen_by_nobody_and_completed_later(self, registry, monkeypatch, step):
        registry.publish(number="1")
        folder, kind = registry.packed(number="2", text="VALUE = 2\n"), type(registry.store)
        put = kind.put_if_unchanged

        def dying(store, name, data, state):
            if name.split("/")[1] == step:
                raise KeyboardInterrupt
            return put(store, name, data, state)

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(kind, "put_if_unchanged", dying)
            publish.publish(registry.store, folder, keys.signer("ci"))
        assert str(registry.install().version) == "1"
        publish.publish(registry.store, folder, keys.signer("ci"))
        assert str(registry.install().version) == "2"

    def test_release_index_and_list_are_written_in_this_order(self, registry, monkeypatch):
        registry.publish(number="1")
        kind, written = type(registry.store), []
        for method in ("put_if_absent", "put_if_unchanged"):
            own = getattr(kind, method)

            def noted(store, name, *arguments, own=own):
                written.append(name.split("/")[1])  # "claims" are for the store's clock
                return own(store, name, *arguments)

            monkeypatch.setattr(kind, method, noted)
        registry.publish(number="2", text="VALUE = 2\n")
        assert [name for name in written if name != "claims"] == ["blobs", "statements", "topics", "withdrawals"]

    def test_an_index_that_was_lost_does_not_free_a_version(self, registry):
        folder = registry.packed(number="1.0")
        publish.publish(registry.store, folder, keys.signer("ci"))
        registry.store.delete(INDEX)
        with pytest.raises(PublishError, match="this version was published with other files"):
            registry.publish(number="1", text="VALUE = 2\n")
        assert not publish.publish(registry.store, folder, keys.signer("ci")).is_new
        assert registry.install().version == Version(1)

    def test_two_publishers_by_one_key_lose_no_release(self, registry, monkeypatch):
        registry.publish(number="1")
        first = registry.content(LIST)
        registry.publish(number="2", text="VALUE = 2\n")
        with pytest.raises(PublishError, match=r"and you know one of .* opforge withdraw URL"):
            registry.replace(LIST, first)
            registry.publish(number="3", text="VALUE = 3\n")
        withdrawal_lists.publish(registry.store, keys.signer("ci"), "ci", restore=True)
        registry.publish(number="3", text="VALUE = 3\n")
        assert [*listed(registry)] == ["1", "2", "3"]


class TestAKeyThatIsReplaced:
    def test_the_new_key_signs_what_the_old_one_has_published(self, registry):
        folder = registry.packed()
        first = publish.publish(registry.store, folder, keys.signer("ci"))
        registry.publish(number="2", text="VALUE = 2\n")
        new = keys.create("ci2")
        again = publish.publish(registry.store, folder, keys.signer("ci2"))
        assert (again.digest, again.is_new) == (first.digest, False)
        assert listed(registry, "ci2") == {"1": first.digest}
        trust_keys(registry.key, new)
        assert str(chosen(registry.url).release.version) == "2"
        trust_keys(new)
        verified = chosen(registry.url)
        assert (str(verified.release.version), verified.signer) == ("1", "ci2")

    def test_it_does_not_sign_what_another_key_says_of_the_same_files(self, registry):
        folder = registry.packed()
        publish.publish(registry.store, folder, keys.signer("ci"))
        keys.create("ci2")
        packed = publish.packed_variants(folder)
        facts = publish.Release("acme/plain", Version(1), (), "other license")
        with pytest.raises(PublishError, match=r"published with other facts, signed by ci: its license, source or com"):
            publish.put(registry.store, packed, facts, keys.signer("ci2"))
        assert listed(registry, "ci2") == {}


class TestListsOfOtherStoresAndTimes:
    def test_a_list_that_is_held_back_is_noticed(self, registry):
        registry.publish(number="1")
        old = {name: registry.content(name) for name in (LIST, INDEX)}
        registry.publish(number="2", text="VALUE = 2\n")
        registry.install()
        for name, content in old.items():
            registry.replace(name, content)
        with pytest.raises(StoreBehindError, match=r"of ci is not used: it is the one of .* was seen before"):
            registry.install()

    def test_a_copy_of_the_store_that_is_behind_is_noticed(self, registry, tmp_path):
        registry.publish(number="1")
        url = f"file://{shutil.copytree(registry.path, tmp_path / 'copy')}"
        assert str(chosen(url).release.version) == "1"
        registry.publish(number="2", text="VALUE = 2\n")
        registry.install()
        with pytest.raises(StoreBehindError, match="was seen before"):
            chosen(url)
        assert str(registry.install().version) == "2"

    def test_the_keys_list_of_another_store_does_not_take_the_place_of_this_ones(self, registry, tmp_path):
        """Whoever controls the store finds a newer list of the key elsewhere: it withdraws nothing of what is here."""
        registry.publish(number="1")
        registry.publish(number="2", text="VALUE = 2\n")
        withdraw_release(registry.store, "acme/plain@2")
        assert str(registry.install().version) == "1"
        (tmp_path / "other").mkdir()
        other = open_store(f"file://{tmp_path}/other")
        for name in ("2", "3"):
            folder = registry.packed(number=name, text=f"VALUE = {name}\n")
            publish.publish(other, folder, keys.signer("ci"))
        later = withdrawal_lists.Unverified(other).of("ci")
        data = withdrawal_lists.file_of(later._replace(date=later.date + 10), keys.signer("ci"))
        registry.replace(LIST, data)
        with pytest.raises(StoreBehindError, match="it is not the list seen before, and lacks entries of it"):
            registry.install()

    def test_the_age_of_a_list_counts_if_the_trust_file_says_so(self, registry, monkeypatch):
        registry.publish()
        later = withdrawal_lists.time.time() + 400 * 86400
        monkeypatch.setattr(withdrawal_lists.time, "time", lambda: later)
        assert registry.install()
        trust_keys(registry.key, withdrawal_days=30.0)
        with pytest.raises(SignatureError, match=r"of ci was made .*, more than 30 days ago"):
            chosen(registry.url)


class TestAMirrorOfAPart:
    def test_a_package_that_its_lists_name_and_it_lacks_is_taken_from_the_next(self, registry, tmp_path):
        (tmp_path / "mirror").mkdir()
        store = open_store(f"file://{tmp_path}/mirror")
        registry.publish(number="1")
        registry.publish("acme/other")
        list(mirror.copy_named(registry.store, store, "package", ["acme/other"]))
        among = selection.sources([store.url, registry.url])
        verified = selection.choose("acme/plain", version.ANY, among).verified
        assert verified.source.store.url == registry.url

    @pytest.fixture
    def part(self, registry, tmp_path):
        """A mirror of two packages, made when each had one release; the registry has further ones."""
        (tmp_path / "mirror").mkdir()
        store = open_store(f"file://{tmp_path}/mirror")
        registry.publish(number="1")
        registry.publish("acme/other")
        list(mirror.copy_named(registry.store, store, "package", ["acme/plain"]))
        registry.publish(number="2", text="VALUE = 2\n")
        list(mirror.copy_named(registry.store, store, "package", ["acme/other"]))
        return store

    def test_it_serves_what_it_has_and_says_what_it_lacks(self, part):
        verified = chosen(part.url)
        assert (str(verified.release.version), verified.missing) == ("1", (Version(2),))
        assert str(chosen(part.url, version.parse_range("1")).release.version) == "1"

    def test_a_version_that_it_lacks_is_not_found(self, part):
        with pytest.raises(KernelNotFoundError, match="its index lacks acme/plain 2, which a signer's list names"):
            chosen(part.url, version.parse_range("2"))

    def test_a_package_that_it_lacks_is_taken_from_the_next(self, registry, part):
        registry.publish("acme/third")
        among = selection.sources([part.url, registry.url])
        verified = selection.choose("acme/third", version.ANY, among).verified
        assert verified.source.store.url == registry.url


class Project:
    """A project that requires acme/plain."""

    def __init__(self, folder):
        self.folder = folder
        write(folder, "pyproject.toml", '[tool.opforge.kernels]\n"acme/plain" = "1"\n')

    def lock(self, registry):
        lock_file.write(str(self.folder), locking.make(str(self.folder), registry.sources())[0])

    def install(self, registry):
        ((release, _is_new),) = install_locked(registry.root, str(self.folder), True, False, [registry.url])
        return release


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path / "project")


class TestSeveralKeys:
    @pytest.fixture
    def lab(self, registry):
        public = keys.create("lab")
        trust_keys(registry.key, public)
        return public

    def test_each_names_its_own_releases(self, registry, lab):
        registry.publish(number="1")
        publish_as(registry, "lab", number="2", text="VALUE = 2\n")
        assert (chosen(registry.url).signer, [*listed(registry)], [*listed(registry, "lab")]) == ("lab", ["1"], ["2"])
        trust_keys(registry.key)
        assert str(chosen(registry.url).release.version) == "1"

    def test_a_key_names_nothing_that_another_has_signed(self, registry, lab):
        done = registry.publish(number="1")
        released = {"package:acme/plain": {"1": done.digest}}
        withdrawal_lists.publish(registry.store, keys.signer("lab"), "lab", released=released)
        trust_keys(lab)
        with pytest.raises(SignatureError, match="the key ci is not in the trust file"):
            chosen(registry.url)

    @pytest.mark.parametrize("by", ["install", "lock file"])
    def test_a_key_that_replaces_another_counts_for_what_this_machine_has_already(self, registry, lab, project, by):
        """The release that was kept had the old key's signature alone, and nothing asked for another."""
        folder = registry.packed()
        publish.publish(registry.store, folder, keys.signer("ci"))
        trust_keys(registry.key)
        project.lock(registry)
        assert registry.install().signer == "ci"
        publish.publish(registry.store, folder, keys.signer("lab"))
        withdraw_release(registry.store, "acme/plain@1", "stolen", withdrawal_lists.LOADING)
        list(selection.releases("acme/plain", version.ANY, among := registry.sources()))
        install_release.note_withdrawals(among, registry.root)
        assert releases.read(registry.root, "acme/plain", Version(1)).refusal == "the key ci has withdrawn it: stolen"
        trust_keys(lab)
        registry.install() if by == "install" else project.install(registry)
        renewed = releases.read(registry.root, "acme/plain", Version(1))
        assert (renewed.signer, renewed.refusal, verify_installed.problems(renewed, deep=True)) == ("lab", "", [])
        withdraw_release(registry.store, "acme/plain@1", "it leaks", withdrawal_lists.LOADING, key="lab")
        list(selection.releases("acme/plain", version.ANY, among := registry.sources()))
        install_release.note_withdrawals(among, registry.root)
        noted = releases.read(registry.root, "acme/plain", Version(1))
        assert noted.refusal == "the key lab has withdrawn it: it leaks"

    def test_a_damaged_list_of_one_key_stops_no_other(self, registry, lab):
        publish_as(registry, "lab", number="1")
        registry.publish(number="2", text="VALUE = 2\n")
        registry.replace(LIST, b"{}")
        assert (chosen(registry.url).signer, str(chosen(registry.url).release.version)) == ("lab", "1")
        with pytest.raises(SignatureError, match=r"list of withdrawals is damaged: .* Remove that file, and publish"):
            chosen(registry.url, version.parse_range("2"))


def test_a_list_of_an_older_opforge_is_one_clear_error(registry, monkeypatch, tmp_path):
    registry.publish()
    data = withdrawal_lists.signed(registry.content(LIST)).data
    value = {name: part for name, part in json.loads(data).items() if name not in ("id", "released")}
    old = json.dumps({**value, "format": 1}, sort_keys=True, separators=(",", ":")).encode()
    registry.replace(LIST, statements.Signed(old, (keys.signer("ci")(old),)).file())
    problem = "damaged: 'format' is 1, and this opforge reads 2"
    with pytest.raises(SignatureError, match=f"the list of withdrawals is {problem}. Remove that file, and publish "):
        registry.install()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another state"))
    with pytest.raises(PublishError, match=f"{problem}. Remove v1/withdrawals/ci.json, and publish again"):
        registry.publish(number="2", text="VALUE = 2\n")
    registry.store.delete(LIST)
    registry.publish(number="2", text="VALUE = 2\n")
    assert index.read(registry.store, "acme/plain").within(version.ANY) == [Version(2), Version(1)]
