"""Installing: what is checked, what is refused with its text, and that a failure leaves nothing behind."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil

import pytest
from support.remote.withdrawing import withdraw_release
from support.text_files import write

import opforge
from opforge.cli.remote import withdraw
from opforge.errors import (
    KernelFormatError,
    KernelIncompatibleError,
    KernelInstallError,
    KernelNotFoundError,
    PublishError,
    SignatureError,
    StoreBehindError,
    TrustFileError,
    WithdrawnError,
)
from opforge.foundation import settings
from opforge.packages.form import version
from opforge.packages.form.version import Version
from opforge.packages.installed import add, releases, remove
from opforge.packages.installed.layout import Root
from opforge.packages.registry import index, install_release, selection, verify_installed
from opforge.remote import blobs, contents, statements, topics, withdrawal_lists
from opforge.remote.signatures import keys, trust_file
from opforge.remote.withdrawal_lists import LOADING


def stored(registry, prefix):
    """Returns the path of the only object of a kind."""
    (path,) = [os.path.join(registry.path, name) for name in registry.files() if name.startswith(prefix)]
    return path


def leftovers(registry):
    """Returns what is installed or left of an installation, but for locks."""
    root = registry.root.join()
    paths = [os.path.join(parent, name) for parent, folders, names in os.walk(root) for name in (*folders, *names)]
    return [path for path in paths if "/locks" not in path and path.count("/") > root.rstrip("/").count("/") + 1]


class TestInstall:
    def test_every_file_is_there_read_only_with_a_receipt(self, registry):
        registry.publish(number="2.3")
        (part,) = registry.install().variants
        assert sorted(os.listdir(part.folder)) == ["__init__.py", "__pycache__", "_ops.py", "metadata.json"]
        assert os.path.basename(part.folder) == part.digest
        assert {os.stat(os.path.join(part.folder, name)).st_mode & 0o222 for name in part.files} == {0}
        release_file = releases.read(registry.root, "acme/plain", Version(2, 3))
        assert (release_file.signer, release_file.source) == ("ci", registry.url)
        assert verify_installed.problems(release_file, deep=True) == []

    def test_a_version_is_shown_as_its_package_writes_it(self, registry):
        published = registry.publish(number="1.0")
        release = registry.install()
        (number,) = index.read(registry.store, "acme/plain").releases
        (listed,) = releases.matching(registry.root, "acme/plain", version.parse_range("1"))
        assert [str(shown) for shown in (published.version, release.version, number, listed.version)] == ["1.0"] * 4
        assert os.path.basename(registry.root.release("acme/plain", listed.version.canonical)) == "1.json"
        with pytest.raises(PublishError, match=r"acme/plain 1 .*this version was published with other files"):
            registry.publish(number="1", text="VALUE = 2\n")
        for own in (
            withdrawal_lists.Withdrawals("ci", 0.0),
            withdrawal_lists.own(registry.store, keys.signer("ci"), "ci"),
        ):
            subject = withdraw._subject(registry.store, "acme/plain@1.0", own)
            assert subject == withdraw._subject(registry.store, "acme/plain@1", own) == "package:acme/plain@1"
        withdraw_release(registry.store, "acme/plain@1", "wrong", LOADING)
        with pytest.raises(WithdrawnError, match="the key ci has withdrawn it: wrong"):
            registry.install(numbers="1.0")
        (item,) = contents.items(registry.store)
        assert item.label == "1.0" and "wrong" in item.withdrawn
        remove.remove(registry.root, "acme/plain", version.parse_range("1"))
        assert releases.versions(registry.root, "acme/plain") == []

    def test_the_newest_in_the_range_is_taken(self, registry):
        for number in ("1", "2.1", "2.2", "3"):
            registry.publish(number=number, text=f"VALUE = '{number}'\n")
        assert str(registry.install(numbers=">=2,<3").version) == "2.2"
        assert str(registry.install().version) == "3"

    def test_again_is_nothing_and_reads_no_blob(self, registry):
        registry.publish()
        registry.install()
        os.unlink(stored(registry, "v1/blobs/"))
        choice = selection.choose("acme/plain", version.ANY, registry.sources())
        assert install_release.install_release(registry.root, choice)[1] is False

    def test_removing_takes_it_and_nothing_else(self, registry):
        registry.publish(number="1")
        registry.publish("acme/other")
        registry.install()
        registry.install("acme/other")
        write(registry.root.path, "mine.txt", "mine")
        assert [str(gone.version) for gone in remove.remove(registry.root, "acme/plain", version.ANY)] == ["1"]
        assert releases.names(registry.root) == ["acme/other"] and len(os.listdir(registry.root.join("trees"))) == 1
        assert os.path.exists(os.path.join(registry.root.path, "mine.txt"))

    def test_a_damaged_installation_is_replaced(self, registry):
        registry.publish()
        (part,) = registry.install().variants
        path = os.path.join(part.folder, "__init__.py")
        os.chmod(path, 0o644)
        write(part.folder, "__init__.py", "raise SystemExit\n")
        os.unlink(registry.root.release("acme/plain", "1"))
        registry.install()
        with open(path) as file:
            assert file.read() == "VALUE = 1\n"

    @pytest.mark.parametrize("is_emptied", [True, False])
    def test_what_a_power_cut_has_emptied_is_refused_and_installed_again(self, registry, monkeypatch, is_emptied):
        """Files that were not on the disk yet are empty or missing after it."""
        registry.publish()
        (part,) = registry.install().variants
        path = os.path.join(part.folder, "__init__.py")
        os.chmod(path, 0o644)
        write(part.folder, "__init__.py", "") if is_emptied else os.unlink(path)
        with pytest.raises(KernelIncompatibleError, match="install it again"):
            opforge.get_kernel("acme/plain")
        choice = selection.choose("acme/plain", version.ANY, registry.sources())
        release, is_new = install_release.install_release(registry.root, choice)
        assert is_new and verify_installed.problems(release, deep=True) == []
        assert opforge.get_kernel("acme/plain").VALUE == 1

    def test_a_folder_with_variants_is_installed_without_a_registry(self, registry):
        folder = os.path.join(registry.packed(number="4.1"), "build", "torch-universal")
        installed = add.from_folders(registry.root, "acme/plain", [folder])
        assert (str(installed.version), installed.signer) == ("4.1", "")
        assert os.path.isdir(folder)


def test_a_damaged_trust_file_stops_installs_and_nothing_that_is_installed(registry, monkeypatch):
    registry.publish()
    registry.publish("acme/other")
    registry.install()
    monkeypatch.setenv("OPFORGE_KERNEL_PATH", registry.root.path)
    with open(settings.trust_file(), "a") as file:
        file.write("}\n")
    problem = re.escape(f"{settings.trust_file()} cannot be used: line 14: it is not valid JSON (Extra data: ")
    for url in (registry.url, f"{registry.url}?unsigned=1"):
        with pytest.raises(TrustFileError, match=problem):
            selection.sources([url])
    assert opforge.get_kernel("acme/plain", version=1).VALUE == 1


def test_no_list_of_withdrawals_is_no_answer_where_it_must_be_known(registry, monkeypatch, caplog):
    """Whether a newer list was there is not known where what was seen cannot be kept."""
    registry.publish()
    write(registry.scratch, "file", "")
    monkeypatch.setenv("XDG_STATE_HOME", str(registry.scratch / "file"))
    trust_file.write(trust_file.read()._replace(requires_state=True))
    with pytest.raises(SignatureError) as error:
        registry.install()
    assert "the record of its signer's lists cannot be kept in" in str(error.value)
    assert "and the trust file requires that: set XDG_STATE_HOME to a folder of your own that stays" in str(error.value)
    monkeypatch.setenv("XDG_STATE_HOME", str(registry.scratch / "state"))
    assert str(registry.install().version) == "1"


class TestRefused:
    """Each leaves nothing behind."""

    @pytest.fixture(autouse=True)
    def nothing_is_left(self, registry):
        yield
        assert leftovers(registry) == []

    def test_a_name_that_is_not_there(self, registry):
        registry.publish()
        with pytest.raises(KernelNotFoundError) as error:
            registry.install("acme/other")
        assert f"{registry.url}: it has no package acme/other" in str(error.value)

    def test_a_version_that_is_not_there_lists_the_newest(self, registry):
        registry.publish(number="1.4")
        with pytest.raises(KernelNotFoundError, match=r"acme/plain has no release in 2; its newest are: 1\.4"):
            registry.install(numbers=2)

    def test_no_remote(self):
        with pytest.raises(KernelNotFoundError, match="Name one: --remote URL, or OPFORGE_REMOTES"):
            selection.choose("acme/plain", version.ANY, [])

    def test_a_blob_that_was_changed(self, registry):
        registry.publish()
        path = stored(registry, "v1/blobs/")
        os.chmod(path, 0o644)
        with open(path, "r+b") as file:
            file.seek(40)
            file.write(b"x")
        with pytest.raises(KernelInstallError, match="the blob's digest differs from that in its statement"):
            registry.install()

    def test_a_release_that_was_changed(self, registry):
        registry.publish()
        path = stored(registry, "v1/statements/")
        os.chmod(path, 0o644)
        with open(path, "rb") as file:
            content = file.read()
        with open(path, "wb") as file:
            file.write(content.replace(b'"license":"MIT"', b'"license":"BSD"'))
        with pytest.raises(KernelFormatError, match="its bytes are not those that its topic names"):
            registry.install()

    def test_the_signature_of_another_release(self, registry):
        one_release = registry.publish(number="1")
        other = registry.publish(number="2", text="VALUE = 2\n")
        paths = [os.path.join(registry.path, statements.name_of(done.digest)) for done in (one_release, other)]
        with open(paths[0], "rb") as file:
            signatures = file.read().split(b"\n")[1]
        with open(paths[1], "rb") as file:
            data = file.read().split(b"\n")[0]
        os.chmod(paths[1], 0o644)
        with open(paths[1], "wb") as file:
            file.write(data + b"\n" + signatures + b"\n")
        with pytest.raises(SignatureError, match="the signature by ci is not of these bytes"):
            registry.install(numbers=2)

    def test_a_release_under_another_name(self, registry):
        done = registry.publish("acme/plain")
        listed = index.Index("acme/other", 1, {Version(1): topics.ListedStatement(done.digest)}).listing()
        registry.store.put_if_absent(topics.name_of("package", "acme/other"), listed.data())
        with pytest.raises(KernelFormatError, match="made for another topic: 'acme/plain', expected 'acme/other'"):
            registry.install("acme/other")

    def test_a_key_that_may_not_sign_the_name(self, registry):
        registry.publish()
        registry.trust("other/*")
        with pytest.raises(
            SignatureError, match=r"no key that signed it may sign package:acme/plain: ci may sign package:other/\*"
        ):
            registry.install()

    def test_a_variant_for_another_machine(self, registry):
        folder = registry.packed()
        build = os.path.join(folder, "build")
        os.rename(os.path.join(build, "torch-universal"), os.path.join(build, "torch-rocm"))
        path = os.path.join(build, "torch-rocm", "metadata.json")
        with open(path) as file:
            stated = json.load(file)
        stated["x-opforge"]["properties"]["backend"] = stated["backend"]["type"] = "rocm"
        write(os.path.dirname(path), "metadata.json", json.dumps(stated))
        from opforge.packages.registry import publish
        from opforge.remote.signatures import keys

        publish.publish(registry.store, folder, keys.signer())
        with pytest.raises(KernelIncompatibleError) as error:
            registry.install()
        assert "acme/plain 1, torch-rocm: it is for rocm, and the installed torch is for" in str(error.value)

    def test_a_disk_that_fills(self, registry, monkeypatch):
        registry.publish()

        def full(*arguments):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(blobs, "_write", full)
        with pytest.raises(KernelInstallError, match=r"acme/plain 1 was not installed: the disk of .* is full"):
            registry.install()

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
    def test_a_read_only_environment(self, registry):
        registry.publish()
        os.mkdir(registry.root.path, 0o500)
        with pytest.raises(KernelInstallError, match=r"acme/plain 1 .*cannot be written .*Install for the user"):
            registry.install()

    def test_a_root_that_is_a_file(self, registry):
        registry.publish()
        root = Root(write(registry.scratch, "file", ""), "folder")
        choice = selection.choose("acme/plain", version.ANY, registry.sources())
        problem = rf"acme/plain 1 was not installed: {root.path} cannot be written .*Install for the user \(--user\)"
        with pytest.raises(KernelInstallError, match=problem):
            install_release.install_release(root, choice)

    @pytest.mark.parametrize("step", ["_download", "unpack", "_refuse", "_compile", "_seal", "_place", "add_release"])
    def test_an_installation_that_is_killed_at_any_step_can_be_repeated(self, registry, monkeypatch, step):
        registry.publish()
        module = install_release if step == "_download" else blobs if step == "unpack" else add

        def killed(*arguments, **more):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(module, step, killed)
            registry.install()
        assert releases.names(registry.root) == []
        registry.install()
        remove.remove(registry.root, "acme/plain", version.ANY)
        remove.sweep(registry.root)
        for name in os.listdir(registry.root.join("releases")) if os.path.isdir(registry.root.join("releases")) else ():
            os.unlink(registry.root.join("releases", name))


def test_every_user_of_an_environment_can_read_what_is_installed(registry):
    registry.publish()
    before = os.umask(0o077)
    try:
        (part,) = registry.install().variants
    finally:
        os.umask(before)
    top = registry.root.path
    folders = [part.folder]
    while folders[-1] != top:
        folders.append(os.path.dirname(folders[-1]))
    folders += [os.path.dirname(registry.root.release("acme/plain", "1")), os.path.join(top, "kernels", "names")]
    assert {os.stat(folder).st_mode & 0o777 for folder in folders} == {0o755}
    assert os.stat(registry.root.release("acme/plain", "1")).st_mode & 0o777 == 0o644


def test_a_removal_leaves_what_is_being_installed(registry):
    registry.publish()
    registry.publish("acme/other")
    (other,) = registry.install("acme/other").variants
    folder = os.path.join(registry.packed(), "build", "torch-universal")
    with add.staging(registry.root) as scratch:
        copy = shutil.copytree(folder, os.path.join(scratch, "0"))
        placed = add.add_tree(registry.root, copy, "torch-universal")
        assert remove.remove(registry.root, "acme/other", version.ANY)
        assert os.path.isdir(placed.folder), "nothing names it yet"
    remove.sweep(registry.root)
    assert not os.path.exists(placed.folder) and not os.path.exists(other.folder)


def test_where_there_are_no_locks_a_removal_waits_for_folders_of_installations(registry, monkeypatch):
    """Lustre has none unless it is mounted with them: files of removed packages stayed there for ever."""

    def no_locks(handle, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    registry.publish()
    (part,) = registry.install().variants
    with add.staging(registry.root):
        assert remove.remove(registry.root, "acme/plain", version.ANY)
        assert os.path.isdir(part.folder), "it may be a part of what is being installed"
    assert not os.path.exists(part.folder)


@pytest.mark.parametrize("by", ["link", "link above"])
def test_a_link_to_the_stores_folder_is_the_same_store(registry, tmp_path, by):
    """Whoever can write to the store puts back the list before a withdrawal, and a link to it is installed from."""
    registry.publish(number="1")
    withdraw_release(registry.store, "acme/other@9")
    before = registry.content("v1/withdrawals/ci.json")
    assert selection.choose("acme/plain", version.ANY, registry.sources())
    withdraw_release(registry.store, "acme/plain@1", stops=LOADING)
    with pytest.raises(KernelNotFoundError):
        selection.choose("acme/plain", version.ANY, registry.sources())
    registry.replace("v1/withdrawals/ci.json", before)
    link = tmp_path / "link"
    link.symlink_to(registry.path if by == "link" else registry.path.parent)
    url = f"file://{link}" if by == "link" else f"file://{link}/{registry.path.name}"
    with pytest.raises(StoreBehindError, match="was seen before"):
        selection.choose("acme/plain", version.ANY, selection.sources([url]))
