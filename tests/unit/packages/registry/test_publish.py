"""Publishing: what is put in which order, what is refused, and withdrawing."""

from __future__ import annotations

import json
import os

import pytest
from click.testing import CliRunner
from support.remote.withdrawing import take_back, withdraw_release
from support.text_files import write

import opforge
from opforge.cache.current_store import current_store
from opforge.cli import group
from opforge.errors import (
    KernelFormatError,
    KernelIncompatibleError,
    PublishError,
    StoreBehindError,
    StoreError,
    WithdrawnError,
)
from opforge.packages.choose import candidate, environment
from opforge.packages.form import version
from opforge.packages.form.version import Version
from opforge.packages.installed import remove
from opforge.packages.load import get_kernel
from opforge.packages.registry import index, install_release, publish, selection
from opforge.packages.registry.release import Variant
from opforge.remote import entry_source, remotes, statements, topics, withdrawal_lists
from opforge.remote.blobs import Blob, Tree
from opforge.remote.mirror import copy
from opforge.remote.signatures import keys
from opforge.remote.stores import open_store
from opforge.remote.withdrawal_lists import LOADING


class TestPublish:
    def test_a_blob_a_release_and_an_index_are_there(self, registry):
        done = registry.publish(number="2.3")
        listed = index.read(registry.store, "acme/plain")
        assert (done.is_new, listed.sequence, listed.releases) == (True, 1, {Version(2, 3): (done.digest,)})
        names = registry.files()
        assert "v1/topics/package/acme/plain.json" in names and statements.name_of(done.digest) in names
        assert len([name for name in names if name.startswith("v1/blobs/sha256/")]) == 1
        assert registry.install().version == Version(2, 3)

    def test_the_same_again_is_nothing(self, registry):
        folder = registry.packed()
        first = publish.publish(registry.store, folder, keys.signer())
        before = registry.files()
        again = publish.publish(registry.store, folder, keys.signer())
        assert (again.is_new, again.digest, registry.files()) == (False, first.digest, before)

    def test_the_same_again_puts_back_what_the_store_has_lost(self, registry):
        folder = registry.packed()
        publish.publish(registry.store, folder, keys.signer())
        before = registry.files()
        (blob,) = [name for name in before if name.startswith("v1/blobs/")]
        registry.replace(blob, b"cut")
        with pytest.raises(StoreError, match=r"it has 3 bytes, and .* Remove that file, and publish again"):
            registry.install()
        registry.store.delete(blob)
        assert not publish.publish(registry.store, folder, keys.signer()).is_new
        assert registry.files() == before and registry.install().version == Version(1)

    def test_the_same_version_with_other_files_is_refused_for_ever(self, registry):
        registry.publish(number="2.3")
        withdraw_release(registry.store, "acme/plain@2.3", "wrong")
        for _attempt in range(2):
            with pytest.raises(PublishError) as error:
                registry.publish(number="2.3", text="VALUE = 2\n")
            assert "this version was published with other files" in str(error.value)
            assert "A version never changes: raise it, to 2.4 for one, and pack it again" in str(error.value)

    @pytest.mark.parametrize("step", ["blobs", "statements", "topics"])
    def test_one_that_is_killed_leaves_nothing_visible_and_is_completed_later(self, registry, monkeypatch, step):
        folder, put = registry.packed(), type(registry.store).put_if_absent

        def dying(store, name, data):
            if name.split("/")[1] == step:
                raise KeyboardInterrupt
            return put(store, name, data)

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(type(registry.store), "put_if_absent", dying)
            publish.publish(registry.store, folder, keys.signer())
        assert index.read(registry.store, "acme/plain") is None
        assert publish.publish(registry.store, folder, keys.signer()).is_new

    def test_two_publishers_at_once_lose_nothing(self, registry, monkeypatch):
        registry.publish(number="1")
        put, others = type(registry.store).put_if_unchanged, []

        def overtaken(store, name, data, version):
            if not others:  # between the second publisher's read and its write
                others.append(name)
                current = index.read(store, "acme/plain")
                other = current._replace(
                    sequence=current.sequence + 1,
                    releases={**current.releases, Version(5): topics.ListedStatement("a" * 64)},
                )
                assert put(store, name, other.listing().data(), version)
            return put(store, name, data, version)

        with monkeypatch.context() as patch:
            patch.setattr(type(registry.store), "put_if_unchanged", overtaken)
            registry.publish(number="2")
        assert others == [topics.name_of("package", "acme/plain")]
        listed = index.read(registry.store, "acme/plain")
        assert sorted(listed.releases) == [Version(1), Version(2), Version(5)] and listed.sequence == 3

    @pytest.mark.parametrize(
        ("change", "text"),
        [
            (lambda path: write(path, "__init__.py", "VALUE = 3\n"), "File hash mismatch for __init__.py"),
            (lambda path: write(path, "added.py", ""), "Unknown file: added.py"),
            (lambda path: os.unlink(os.path.join(path, "_ops.py")), "Missing file: _ops.py"),
        ],
    )
    def test_a_file_that_was_changed_added_or_is_missing_is_refused(self, registry, change, text):
        folder = registry.packed()
        change(os.path.join(folder, "build", "torch-universal"))
        with pytest.raises(PublishError) as error:
            publish.publish(registry.store, folder, keys.signer())
        assert text in str(error.value) and registry.files() == []

    def test_a_dirty_tree_is_refused(self, registry):
        folder = registry.packed()
        path = os.path.join(folder, "build", "torch-universal", "metadata.json")
        with open(path) as file:
            stated = json.load(file)
        stated["provenance"] = {"kernel": {"commit": "a" * 40, "dirty": True}}
        write(os.path.dirname(path), "metadata.json", json.dumps(stated))
        with pytest.raises(PublishError, match="its sources differed from their commit when it was packed"):
            publish.publish(registry.store, folder, keys.signer())
        assert publish.publish(registry.store, folder, keys.signer(), allow_dirty=True).is_new

    def test_a_list_that_is_full_is_said_before_anything_is_written(self, registry, monkeypatch):
        registry.publish(number="1")
        before, size = registry.files(), len(registry.content(withdrawal_lists.name_of("ci")))
        monkeypatch.setattr(withdrawal_lists, "MAX_BYTES", 2 * size)
        with pytest.raises(PublishError) as error:
            for number in range(2, 9):
                registry.publish(number=str(number))
                before = registry.files()
        text = str(error.value)
        assert text.startswith(f"the list of withdrawals of ci was not published to {registry.url}: it would have ")
        assert f"bytes, more than {size}. Go on with another key (opforge key new NAME), which has a list of" in text
        assert registry.files() == before
        with pytest.raises(PublishError, match=r"it would have .* Go on with another key"):
            withdraw_release(registry.store, "acme/plain@1", "x" * 400)

    def test_a_package_without_an_organization_is_refused(self, registry):
        with pytest.raises(PublishError, match=r"local stands for no organization\. Name one in kernel\.toml"):
            registry.publish("local/plain")

    def test_a_folder_without_a_variant_is_refused(self, registry, tmp_path):
        with pytest.raises(KernelFormatError, match="there is no variant in it"):
            publish.publish(registry.store, str(tmp_path / "config"), keys.signer())


class TestWhatSomebodyElseHasPutIntoTheStore:
    """Whoever may write to the store puts a release of the same files there, with facts and blobs of his own."""

    BLOB = Blob("e" * 64, 3, 3)

    def planted(self, registry, folder, *signers, **facts):
        """Puts a release of the files of a folder into the store and its index; returns its digest."""
        parts = publish.packed_variants(folder)
        variants = tuple(
            Variant(candidate.of_metadata(part.label, part.metadata, part.folder, part.folder), tree, {"import": "ok!"})
            for part in parts
            for tree in [Tree(part.digest, self.BLOB)]
        )
        stated = publish.facts_of(parts, folder, "here")._replace(variants=variants, **facts).statement()
        signed = statements.signed(stated, signers)
        registry.store.put_if_absent(statements.name_of(signed.digest), signed.file())
        self.index_names(registry, signed.digest)
        return signed.digest

    def index_names(self, registry, digest):
        listing = topics.Listing("package", "acme/plain", 7, {"1": topics.ListedStatement(digest)})
        registry.replace(topics.name_of("package", "acme/plain"), listing.data())

    def test_an_unsigned_release_is_not_signed_and_ones_own_takes_its_place(self, registry):
        folder = registry.packed()
        planted = self.planted(registry, folder)
        done = publish.publish(registry.store, folder, keys.signer())
        assert done.digest != planted and done.is_new
        assert statements.split_file(registry.content(statements.name_of(planted))).signatures == ()
        assert withdrawal_lists.Unverified(registry.store).of("ci").released == {
            "package:acme/plain": {"1": done.digest}
        }
        assert index.read(registry.store, "acme/plain").releases == {Version(1): (done.digest,)}
        assert registry.install().version == Version(1)

    def test_an_unsigned_release_of_other_files_takes_no_version(self, registry):
        self.planted(registry, registry.packed(text="VALUE = 2\n"))
        assert registry.publish().is_new and registry.install().version == Version(1)

    def test_an_unsigned_release_that_is_ones_own_is_signed(self, registry):
        folder = registry.packed()
        first = publish.publish(registry.store, folder, None)
        done = publish.publish(registry.store, folder, keys.signer())
        assert (done.digest, registry.install().version) == (first.digest, Version(1))

    def test_a_signature_of_a_key_that_is_not_trusted_makes_it_no_more_trusted(self, registry):
        folder = registry.packed()
        keys.create("other")
        planted = self.planted(registry, folder, keys.signer("other"))
        with pytest.raises(PublishError) as error:
            publish.publish(registry.store, folder, keys.signer("ci"))
        assert str(error.value) == (
            f"acme/plain 1 was not published to {registry.url}: this version was published already, signed by other,"
            " which is not trusted here for it. Trust that key: opforge key trust NAME:KEY --for SCOPE. If the key"
            f" is unknown, remove {statements.name_of(planted)}, and publish again."
        )
        registry.store.delete(statements.name_of(planted))
        assert publish.publish(registry.store, folder, keys.signer("ci")).is_new
        assert registry.install().version == Version(1)

    def test_an_index_that_names_another_release_does_not_replace_ones_own(self, registry):
        folder = registry.packed()
        first = publish.publish(registry.store, folder, keys.signer())
        self.planted(registry, folder)
        again = publish.publish(registry.store, folder, keys.signer())
        assert (again.digest, again.is_new) == (first.digest, False)
        assert index.read(registry.store, "acme/plain").releases == {Version(1): (first.digest,)}

    def test_one_whose_signatures_leave_no_room_is_one_clear_error(self, registry):
        folder = registry.packed()
        done = publish.publish(registry.store, folder, None)
        name = statements.name_of(done.digest)
        data = statements.split_file(registry.content(name)).data
        for count in range(statements.MAX_SIGNATURES):
            keys.create(f"k{count}")
        full = statements.Signed(data, tuple(keys.signer(f"k{count}")(data) for count in range(8)))
        registry.replace(name, full.file())
        with pytest.raises(PublishError, match=rf"8 signatures there, at most 8 are read: .* Remove {name}, and pub"):
            publish.publish(registry.store, folder, keys.signer("ci"))


class TestWithdrawing:
    @pytest.fixture(autouse=True)
    def two_releases(self, registry):
        registry.publish(number="1")
        registry.publish(number="2", text="VALUE = 2\n")

    def test_what_is_not_chosen_any_more_is_installed_by_its_exact_version(self, registry):
        withdraw_release(registry.store, "acme/plain@2", "wrong for empty tensors")
        assert registry.install().version == Version(1)
        exact = registry.install(numbers="==2.0")
        assert (exact.version, exact.withdrawn, exact.refusal) == (Version(2), "wrong for empty tensors", "")
        take_back(registry.store, "acme/plain@2")
        assert registry.install().version == Version(2)

    def test_what_is_not_loaded_any_more_is_not_installed_at_all(self, registry):
        withdraw_release(registry.store, "acme/plain@2", "it leaks", LOADING)
        assert registry.install().version == Version(1)
        with pytest.raises(WithdrawnError, match=r"the key ci has withdrawn it: it leaks\. Use another version"):
            registry.install(numbers="==2.0")

    def test_what_was_installed_before_is_refused_once_the_list_was_read(self, registry):
        """`get_kernel` reads no list: what one says is noted where the package is installed."""

        def ask():
            among = registry.sources()
            selection.choose("acme/plain", version.ANY, among)
            install_release.note_withdrawals(among, registry.root)
            get_kernel.reset()

        registry.install()
        assert opforge.get_kernel("acme/plain", version="2").VALUE == 2
        withdraw_release(registry.store, "acme/plain@2", "it leaks", LOADING)
        ask()
        with pytest.raises(KernelIncompatibleError, match="the key ci has withdrawn it: it leaks"):
            opforge.get_kernel("acme/plain", version="2")
        take_back(registry.store, "acme/plain@2")
        ask()
        assert opforge.get_kernel("acme/plain", version="2").VALUE == 2

    def test_what_is_not_chosen_any_more_is_loaded_only_if_nothing_else_is_installed(self, registry):
        for number in ("==1", "==2"):
            registry.install(numbers=number)
        withdraw_release(registry.store, "acme/plain@2", "it is slow")
        entry_source.RemoteEntries([remotes.parse(registry.url)], True).drop_withdrawn(current_store().layout)
        get_kernel.reset()
        assert [opforge.get_kernel("acme/plain", version=asked).VALUE for asked in (None, ">=1", "2")] == [1, 1, 2]
        remove.remove(registry.root, "acme/plain", version.exactly(Version(1)))
        get_kernel.reset()
        assert opforge.get_kernel("acme/plain").VALUE == 2

    def test_a_list_that_fetch_reads_counts_for_what_is_installed(self, registry):
        registry.install()
        withdraw_release(registry.store, "acme/plain@2", "it leaks", LOADING)
        entry_source.RemoteEntries([remotes.parse(registry.url)], True).drop_withdrawn(current_store().layout)
        with pytest.raises(KernelIncompatibleError, match="the key ci has withdrawn it: it leaks"):
            opforge.get_kernel("acme/plain", version="2")

    def test_another_key_withdraws_nothing(self, registry):
        keys.create("lab")
        withdraw_release(registry.store, "acme/plain@2", "", LOADING, key="lab")
        assert registry.install().version == Version(2)

    @pytest.mark.parametrize("index", ["older", "gone", "damaged"])
    def test_what_the_keys_list_names_is_withdrawn_whatever_the_index_says(self, registry, index):
        name = topics.name_of("package", "acme/plain")
        if index == "gone":
            registry.store.delete(name)
        else:
            older = topics.Listing("package", "acme/plain", 1, {"1": topics.ListedStatement("a" * 64)}).data()
            registry.replace(name, older if index == "older" else b"{}")
        words = ["withdraw", registry.url, "acme/plain@2", "--stop-loading", "--key", "ci"]
        done = CliRunner().invoke(group, words, catch_exceptions=False)
        assert (done.exit_code, done.output.splitlines()[0]) == (0, "acme/plain@2 is not loaded any more")

    def test_what_neither_names_is_not_withdrawn_and_both_are_listed(self, registry):
        older = topics.Listing("package", "acme/plain", 1, {"1": topics.ListedStatement("a" * 64)}).data()
        registry.replace(topics.name_of("package", "acme/plain"), older)
        done = CliRunner().invoke(group, ["withdraw", registry.url, "acme/plain@9"], catch_exceptions=False)
        assert done.exit_code == 1 and "there is no such release. There are: 2, 1." in done.output

    @pytest.mark.parametrize("change", ["older", "gone"])
    def test_a_store_that_is_behind_is_passed_over_and_an_error_if_none_is_current(self, registry, tmp_path, change):
        (tmp_path / "mirror").mkdir()
        mirror = open_store(f"file://{tmp_path}/mirror")
        withdraw_release(registry.store, "acme/plain@1")
        path = registry.path / "v1" / "withdrawals" / "ci.json"
        older = path.read_bytes()
        withdraw_release(registry.store, "acme/plain@2")
        take_back(registry.store, "acme/plain@1")
        list(copy(registry.store, mirror))
        assert registry.install().version == Version(1)
        path.write_bytes(older) if change == "older" else path.unlink()
        with pytest.raises(StoreBehindError, match=r"the list of withdrawals of ci is not used: it is .*seen before"):
            registry.install()
        among = selection.sources([registry.url, mirror.url])
        found = [*selection.fitting("acme/plain", version.ANY, among, environment.here, False)]
        over = found[0]
        chosen = next(choice for choice in found if isinstance(choice, selection.Choice))
        assert (chosen.verified.release.version, chosen.verified.source.store.url) == (Version(1), mirror.url)
        assert f"{registry.url}: it is passed over: the list of withdrawals of ci is not used" in over.reason


class TestIndex:
    @pytest.mark.test_all("a large index")
    def test_50_000_releases_are_one_file_that_is_read_in_a_moment(self, registry):
        digest = "a" * 64
        releases = {Version(number // 100, number % 100): topics.ListedStatement(digest) for number in range(50_000)}
        data = index.Index("acme/plain", 7, releases).listing().data()
        assert len(data) < topics.MAX_LISTING_BYTES
        parsed = index.parse(data, "acme/plain", "here")
        assert parsed.within(version.parse_range("3"))[0] == Version(3, 99)

    @pytest.mark.parametrize(
        ("change", "text"),
        [
            ({"topic": "acme/other"}, "it is the topic package 'acme/other', and not package acme/plain"),
            ({"format": 2}, "'format' is 2, and this opforge reads 1: update opforge"),
            ({"sequence": -1}, "'sequence' is -1: expected a whole number"),
            ({"statements": []}, "'statements' is a list of 0 items: expected an object"),
            ({"statements": {"x": {"digest": "a" * 64}}}, "'x' cannot be used"),
            ({"statements": {"1": {"digest": "../x"}}}, "'statements.1.digest' is '../x': expected 64 hex digits"),
            (
                {"statements": {"1": {"digest": "a" * 64, "withdrawn": 3}}},
                "'statements.1.withdrawn' is not a field that is read",
            ),
        ],
    )
    def test_another_index_is_refused(self, registry, change, text):
        value = {"format": 1, "kind": "package", "topic": "acme/plain", "sequence": 1, "statements": {}} | change
        registry.store.put_if_absent(topics.name_of("package", "acme/plain"), json.dumps(value).encode())
        with pytest.raises(KernelFormatError) as error:
            registry.install()
        assert text in str(error.value)

    def test_a_huge_index_is_not_read(self, registry):
        registry.store.put_if_absent(topics.name_of("package", "acme/plain"), b" " * (topics.MAX_LISTING_BYTES + 1))
        with pytest.raises(StoreError):
            registry.install()
