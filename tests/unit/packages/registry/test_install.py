"""Installing: what is checked, what is refused with its text, and that a failure leaves nothing behind."""

from __future__ import annotations

import errno
import io
import json
import os
import tarfile

import pytest
from support.text_files import write

from opforge.cache.transfer.tar_reader import zstd
from opforge.errors import (
    KernelDependencyError,
    KernelFormatError,
    KernelIncompatibleError,
    KernelInstallError,
    KernelNotFoundError,
    SignatureError,
)
from opforge.packages.form import digests, version
from opforge.packages.form.version import Version
from opforge.packages.installed import add, releases, remove
from opforge.packages.installed.layout import Root
from opforge.packages.registry import dependencies, index, install, release, tree_blob, verification


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
        assert verification.problems(release_file, deep=True) == []

    def test_the_newest_in_the_range_is_taken(self, registry):
        for number in ("1", "2.1", "2.2", "3"):
            registry.publish(number=number, text=f"VALUE = '{number}'\n")
        assert str(registry.install(numbers=">=2,<3").version) == "2.2"
        assert str(registry.install().version) == "3"

    def test_again_is_nothing_and_reads_no_blob(self, registry):
        registry.publish()
        registry.install()
        os.unlink(stored(registry, "v1/blobs/"))
        choice = install.choose("acme/plain", version.ANY, registry.sources())
        assert install.install(registry.root, choice)[1] is False

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

    def test_a_folder_with_variants_is_installed_without_a_registry(self, registry):
        folder = os.path.join(registry.packed(number="4.1"), "build", "torch-universal")
        installed = add.from_folders(registry.root, "acme/plain", [folder])
        assert (str(installed.version), installed.signer) == ("4.1", "")
        assert os.path.isdir(folder)


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
            install.choose("acme/plain", version.ANY, [])

    def test_a_blob_that_was_changed(self, registry):
        registry.publish()
        path = stored(registry, "v1/blobs/")
        os.chmod(path, 0o644)
        with open(path, "r+b") as file:
            file.seek(40)
            file.write(b"x")
        with pytest.raises(KernelInstallError, match="its blob is not the one that its release names"):
            registry.install()

    def test_a_release_that_was_changed(self, registry):
        registry.publish()
        path = stored(registry, "v1/releases/")
        os.chmod(path, 0o644)
        with open(path, "rb") as file:
            content = file.read()
        with open(path, "wb") as file:
            file.write(content.replace(b'"license":"MIT"', b'"license":"BSD"'))
        with pytest.raises(KernelFormatError, match="its bytes are not those that the index names"):
            registry.install()

    def test_the_signature_of_another_release(self, registry):
        one_release = registry.publish(number="1")
        other = registry.publish(number="2", text="VALUE = 2\n")
        paths = [os.path.join(registry.path, release.file_name(done.digest)) for done in (one_release, other)]
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
        listed = index.Index("acme/other", 1, {Version(1): index.Listed(done.digest)})
        registry.store.put_if_absent(index.file_name("acme/other"), listed.data())
        with pytest.raises(KernelFormatError, match="it is acme/plain 1, and not acme/other 1"):
            registry.install("acme/other")

    def test_a_key_that_may_not_sign_the_name(self, registry):
        registry.publish()
        registry.trust("other/*")
        with pytest.raises(SignatureError, match=r"no key that signed it may sign 'acme/plain': ci may sign other/\*"):
            registry.install()

    def test_an_index_of_yesterday(self, registry):
        registry.publish()
        with pytest.raises(KernelInstallError, match="has an index of state 1, older than the lock's 3"):
            registry.install(at_least={"acme/plain": 3})

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

        monkeypatch.setattr(tree_blob, "_write", full)
        with pytest.raises(KernelInstallError, match="the disk is full; nothing was installed"):
            registry.install()

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
    def test_a_read_only_environment(self, registry):
        registry.publish()
        os.mkdir(registry.root.path, 0o500)
        with pytest.raises(KernelInstallError, match=r"it cannot be written .*Install for the user"):
            registry.install()

    def test_a_root_that_is_a_file(self, registry):
        registry.publish()
        root = Root(write(registry.scratch, "file", ""), "folder")
        choice = install.choose("acme/plain", version.ANY, registry.sources())
        with pytest.raises(KernelInstallError, match=r"it cannot be written .*Install for the user \(--user\)"):
            install.install(root, choice)

    @pytest.mark.parametrize("step", ["_download", "unpack", "_refuse", "_compile", "_seal", "_place", "add_release"])
    def test_an_installation_that_is_killed_at_any_step_can_be_repeated(self, registry, monkeypatch, step):
        registry.publish()
        module = install if step == "_download" else tree_blob if step == "unpack" else add

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


LINK = ("", "/etc/passwd")


def blob_of(tmp_path, members):
    """Returns a packed archive with these (name, content, kind) and what a release says of it."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content, kind in members:
            header = tarfile.TarInfo(name)
            header.type, header.size, header.linkname = (
                kind,
                len(content),
                LINK[kind != tarfile.REGTYPE],
            )
            archive.addfile(header, io.BytesIO(content))
    path = tmp_path / "blob"
    path.write_bytes(zstd().compress(raw.getvalue()))
    import hashlib

    data = path.read_bytes()
    return path, release.Blob(hashlib.sha256(data).hexdigest(), len(data), len(raw.getvalue()))


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ([("../x", b"a", tarfile.REGTYPE)], "'../x' does not stay inside the package"),
        ([("/etc/x", b"a", tarfile.REGTYPE)], "'/etc/x' does not stay inside the package"),
        ([("a/../../x", b"a", tarfile.REGTYPE)], "does not stay inside the package"),
        ([("x", b"", tarfile.SYMTYPE)], "'x' is not a file"),
        ([("x", b"", tarfile.LNKTYPE)], "'x' is not a file"),
        ([("x", b"", tarfile.FIFOTYPE)], "'x' is not a file"),
        ([("x", b"a", tarfile.REGTYPE), ("x", b"b", tarfile.REGTYPE)], "'x' is in it twice"),
        ([("x", b"a", tarfile.REGTYPE), ("x/y", b"b", tarfile.REGTYPE)], None),
        ([("caf\u00e9.py", b"a", tarfile.REGTYPE)], "is no path of a file in a package"),
    ],
)
def test_an_archive_that_leads_elsewhere_is_refused(tmp_path, members, text):
    path, blob = blob_of(tmp_path, members)
    with open(path, "rb") as file, pytest.raises((KernelInstallError, OSError)) as error:
        tree_blob.unpack(file, blob, str(tmp_path / "out"), "acme/x")
    assert text is None or text in str(error.value)
    assert not os.path.exists(tmp_path / "x")


def test_an_archive_that_unpacks_to_more_than_its_release_says_is_refused(tmp_path):
    path, blob = blob_of(tmp_path, [("x", b"0" * 10_000_000, tarfile.REGTYPE)])
    with open(path, "rb") as file, pytest.raises(KernelInstallError, match="it holds more than"):
        tree_blob.unpack(file, blob._replace(unpacked=20_000), str(tmp_path / "out"), "acme/x")


@pytest.mark.parametrize("name", ["evil.pyc", "__pycache__/__init__.cpython-311.pyc"])
def test_bytecode_in_a_package_is_refused(registry, name):
    folder = os.path.join(registry.packed(), "build", "torch-universal")
    staged = os.path.join(registry.scratch, "staged")
    os.makedirs(staged)
    for path in (*digests.files_of(folder), "metadata.json"):
        with open(os.path.join(folder, path)) as file:
            write(staged, path, file.read())
    write(staged, name, "x")
    with pytest.raises(KernelInstallError, match="is bytecode, which no digest covers"):
        add.add_tree(registry.root, staged, "torch-universal")


class TestDependencies:
    def resolved(self, registry, *texts):
        requirements = [install.parse_requirement(text) for text in texts]
        choices = dependencies.resolve(requirements, registry.sources())
        return {choice.verified.release.name: str(choice.verified.release.version) for choice in choices}

    def test_what_is_needed_comes_too_the_newest_that_fits(self, registry):
        for number in ("1", "1.5", "2"):
            registry.publish("acme/base", number, text=f"V = '{number}'\n")
        registry.publish("acme/top", "1", depends={"acme/base": "<2"})
        assert self.resolved(registry, "acme/top") == {"acme/top": "1", "acme/base": "1.5"}

    def test_an_older_release_is_taken_if_the_newest_cannot_be_used_with_the_others(self, registry):
        for number in ("1", "2"):
            registry.publish("acme/base", number, text=f"V = {number}\n")
        registry.publish("acme/left", "1", depends={"acme/base": "1"})
        registry.publish("acme/left", "2", depends={"acme/base": "2"})
        registry.publish("acme/right", "1", depends={"acme/base": "1"})
        expected = {"acme/left": "1", "acme/right": "1", "acme/base": "1"}
        assert self.resolved(registry, "acme/left", "acme/right") == expected

    def test_a_conflict_says_who_needs_what(self, registry):
        for number in ("1", "2"):
            registry.publish("acme/base", number, text=f"V = {number}\n")
        registry.publish("acme/left", "1", depends={"acme/base": "1"})
        registry.publish("acme/right", "1", depends={"acme/base": "2"})
        with pytest.raises(KernelDependencyError) as error:
            self.resolved(registry, "acme/left", "acme/right")
        assert "acme/left 1 needs acme/base 1" in str(error.value)
        assert "acme/right 1 needs acme/base 2" in str(error.value)

    def test_a_dependency_that_is_missing_is_named(self, registry):
        registry.publish("acme/top", "1", depends={"acme/gone": "1"})
        with pytest.raises(KernelDependencyError) as error:
            self.resolved(registry, "acme/top")
        assert "acme/top 1 needs acme/gone 1" in str(error.value) and "it has no package acme/gone" in str(error.value)

    def test_a_dependency_that_is_yanked_is_named_with_the_reason(self, registry):
        registry.publish("acme/base", "1")
        from opforge.packages.registry import publish

        publish.yank(registry.store, "acme/base", Version(1), "crashes")
        registry.publish("acme/top", "1", depends={"acme/base": "1"})
        with pytest.raises(KernelDependencyError, match=r"1 \(yanked: crashes\)"):
            self.resolved(registry, "acme/top")

    def test_a_circle_is_named_in_its_order(self, registry):
        registry.publish("acme/aa", "1", depends={"acme/bb": "1"})
        registry.publish("acme/bb", "1", depends={"acme/cc": "1"})
        registry.publish("acme/cc", "1", depends={"acme/aa": "1"})
        with pytest.raises(KernelDependencyError, match="acme/aa needs acme/bb needs acme/cc needs acme/aa"):
            self.resolved(registry, "acme/aa")
