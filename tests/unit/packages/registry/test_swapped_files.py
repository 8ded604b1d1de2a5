"""Files that are genuine and in the wrong place: of another variant, another package, another project's lock."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import filelock  # noqa: F401  the other user may not read Python's own files
import pytest
from support import owners
from support.other_user import shared_folder
from support.text_files import write

import opforge
from opforge.errors import KernelIncompatibleError, KernelInstallError, PublishError, StoreError
from opforge.packages.form import version
from opforge.packages.installed.layout import Root
from opforge.packages.load import get_kernel
from opforge.packages.pack.run import Options, pack
from opforge.packages.project import locking
from opforge.packages.registry import index, install_release, publish, release, selection
from opforge.packages.sources import reading
from opforge.remote import statements, topics
from opforge.remote.signatures import keys


def two_variants(registry):
    """Packs acme/plain 1 with two variants whose Python differs by nothing but the backend."""
    folder = registry.packed()
    with open(os.path.join(folder, "kernel.toml"), "a") as file:
        file.write('backends = ["cpu", "universal"]\n')
    pack(reading.read(folder), folder, Options(tried=False))
    return folder


def test_files_that_were_swapped_between_variants_are_not_published(registry):
    folder = two_variants(registry)
    paths = [Path(folder, "build", label, "_ops.py") for label in ("torch-cpu", "torch-universal")]
    texts = [path.read_bytes() for path in paths]
    assert texts[0] != texts[1]
    for path, text in zip(paths, reversed(texts), strict=True):
        path.write_bytes(text)
    with pytest.raises(PublishError, match=r"File hash mismatch for _ops\.py"):
        publish.publish(registry.store, folder, keys.signer("ci"))


def test_whole_folders_that_were_swapped_are_not_published(registry):
    build = os.path.join(two_variants(registry), "build")
    os.rename(os.path.join(build, "torch-cpu"), os.path.join(build, "x"))
    os.rename(os.path.join(build, "torch-universal"), os.path.join(build, "torch-cpu"))
    os.rename(os.path.join(build, "x"), os.path.join(build, "torch-universal"))
    with pytest.raises(ValueError, match="the properties in its metadata are those of"):
        publish.publish(registry.store, os.path.dirname(build), keys.signer("ci"))


def test_blobs_that_were_swapped_are_not_installed(registry):
    done = publish.publish(registry.store, two_variants(registry), keys.signer("ci"))
    stored = registry.content(statements.name_of(done.digest)).split(b"\n")[0]
    names = [part.blob.name for part in release.parse(stored, "here").variants]
    contents = [registry.content(name) for name in names]
    for name, content in zip(names, reversed(contents), strict=True):
        registry.replace(name, content)
    with pytest.raises((KernelInstallError, StoreError), match=r"its blob is not the one|bytes, and .* were expected"):
        registry.install()


def test_a_file_that_is_missing_is_noticed_at_load(registry):
    registry.publish()
    (part,) = registry.install().variants
    os.chmod(part.folder, 0o755)
    os.unlink(os.path.join(part.folder, "_ops.py"))
    with pytest.raises(KernelIncompatibleError, match=r"Missing file: _ops\.py"):
        opforge.get_kernel("acme/plain")


def test_two_projects_that_want_different_versions_get_them_in_one_process(registry, monkeypatch):
    site = registry.scratch / "site"
    for number in ("1", "2"):
        registry.publish(number=number, text=f"VALUE = {number}\n")
    for name, number in (("first_project", "1"), ("second_project", "2")):
        text = "import opforge\nVALUE = opforge.get_kernel('acme/plain').VALUE\n"
        write(site / name, "__init__.py", text)
        write(site / name, "kernels.toml", f'"acme/plain" = {number}\n')
        lock, _changes = locking.make(str(site / name), registry.sources())
        locking.lock_file.write(str(site / name), lock)
        registry.install(numbers=number)
    monkeypatch.syspath_prepend(str(site))
    import first_project
    import second_project

    assert (first_project.VALUE, second_project.VALUE) == (1, 2)
    assert opforge.get_kernel("acme/plain", 1).VALUE == 1
    get_kernel.reset()
    assert opforge.get_kernel("acme/plain").VALUE == 2
    for name in ("first_project", "second_project"):
        sys.modules.pop(name)


@owners.as_root
@pytest.mark.parametrize(("mode", "refusing"), [(0o755, "environment"), (0o777, "environment/kernels/locks")])
def test_a_user_without_the_right_to_write_is_refused_and_leaves_nothing(registry, mode, refusing):
    """The environment is another user's: this runs as one who may read it alone, or write all but a folder in it."""
    registry.publish()
    choice = selection.choose("acme/plain", version.ANY, registry.sources())
    with shared_folder(0o755) as folder:
        root = Root(os.path.join(folder, "environment"), "folder")
        os.makedirs(os.path.join(folder, refusing), exist_ok=True)
        for parent, _folders, _files in os.walk(root.path):
            os.chmod(parent, 0o755 if parent.endswith("locks") else mode)
        child = os.fork()
        if not child:
            code = 1
            try:
                os.setegid(65534)
                os.seteuid(65534)
                install_release.install_release(root, choice)
            except KernelInstallError as error:
                problem = f"{os.path.join(folder, refusing)} cannot be written"
                code = 0 if problem in str(error) and "--user" in str(error) else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert [name for _parent, _folders, names in os.walk(root.path) for name in names] == []


def test_resolving_and_publishing_ask_for_as_much_in_a_registry_of_any_size(registry, monkeypatch):
    kind, calls, counts = type(registry.store), [], []

    def counted(method):
        own = getattr(kind, method)

        def call(self, *arguments):
            calls.append(f"list {arguments[0]}" if method == "list" else method)
            return own(self, *arguments)

        return call

    methods = ("get", "download", "put_if_absent", "put_if_unchanged", "list", "delete")
    for names in (1, 200):
        for number in range(names):
            listed = index.Index(f"acme/name-{number}", 1, {}).listing()
            registry.replace(topics.name_of("package", f"acme/name-{number}"), listed.data())
        folder = registry.packed(number=str(names))
        with monkeypatch.context() as patch:
            for method in methods:
                patch.setattr(kind, method, counted(method))
            publish.publish(registry.store, folder, keys.signer("ci"))
            published = [*calls]
            calls.clear()
            selection.choose("acme/plain", version.ANY, registry.sources())
            counts.append((published, [*calls]))
            calls.clear()
    assert counts[0][1] == counts[1][1] == ["get", "get", "get"], (
        "the index, what its signer's list says, and the release"
    )
    # The first time there is no index, so it is put as a new file.
    assert len(counts[0][0]) == len(counts[1][0])
    lists = [call.partition("clock-")[0] for call in counts[1][0] if call.startswith("list ")]
    assert lists == ["list v1/claims/"], "for the store's clock"


def test_a_variant_that_is_named_is_the_one_that_is_installed_on_demand(registry, monkeypatch):
    publish.publish(registry.store, two_variants(registry), keys.signer("ci"))
    monkeypatch.setenv("OPFORGE_REMOTES", registry.url)
    monkeypatch.setenv("OPFORGE_INSTALL", "1")
    with pytest.raises(KernelIncompatibleError, match="torch-cpu: torch-cuda is requested"):
        opforge.get_kernel("acme/plain", variant="torch-cuda")
    module = opforge.get_kernel("acme/plain", variant="torch-universal")
    assert "_cuda_" in module.__name__, "the best one is torch-cpu, or none at all with a device"
