"""A project that the hub's own tool has locked: its kernels are installed from the Hugging Face cache."""

from __future__ import annotations

import hashlib
import json
import os
import shutil

import pytest
from support.text_files import write

import opforge
from opforge.errors import KernelFormatError, KernelLockError
from opforge.packages.choose import environment
from opforge.packages.form.version import Version
from opforge.packages.installed import releases
from opforge.packages.load import get_kernel as loading
from opforge.packages.load import requirements
from opforge.packages.project import hub_locks, install_hub_locked
from opforge.packages.project.install_locked import install_locked

COMMIT = "ab" * 20
NEW = [{"dependency": {"repo-id": "Acme/plain", "version": 1}, "lock": {"commit": COMMIT}}]


@pytest.fixture
def cache(registry, monkeypatch):
    """Puts a packed variant into a cache as the hub's tool does: each file is a link to a blob."""
    monkeypatch.setenv("HF_HUB_CACHE", str(registry.scratch / "hub"))
    monkeypatch.chdir(registry.scratch)

    def fill(repository="Acme/plain", kind="kernels", is_large=("_ops.py",)):
        variant = os.path.join(registry.packed(), "build", "torch-universal")
        top = registry.scratch / "hub" / f"{kind}--{repository.replace('/', '--')}"
        folder, concatenated = top / "snapshots" / COMMIT / "build" / "torch-universal", hashlib.sha256()
        os.makedirs(folder)
        os.makedirs(top / "blobs")
        for name in sorted(os.listdir(variant)):
            with open(os.path.join(variant, name), "rb") as file:
                content = file.read()
            digest = (
                hashlib.sha256(content) if name in is_large else hashlib.sha1(b"blob %d\0" % len(content) + content)
            )
            (top / "blobs" / digest.hexdigest()).write_bytes(content)
            os.symlink(top / "blobs" / digest.hexdigest(), folder / name)
            concatenated.update(name.encode() + digest.digest())
        return folder, f"sha256-{concatenated.hexdigest()}"

    return fill


def install(registry, lock, **more):
    write(registry.scratch, "kernels.lock", json.dumps(lock))
    return install_locked(registry.root, str(registry.scratch), True, more.get("all_platforms", False), ())


def old(digest):
    return [{"repo_id": "Acme/plain", "sha": COMMIT, "variants": {"torch-universal": {"hash": digest}}}]


@pytest.mark.parametrize("kind", ["kernels", "models"])
def test_what_is_locked_is_installed_and_loaded(registry, cache, kind):
    cache(kind=kind)
    ((release, is_new),) = install(registry, NEW)
    assert is_new and (release.name, release.version) == ("acme/plain", Version(1))
    assert release.source == f"Acme/plain@{COMMIT}"
    loading.reset()
    assert opforge.get_kernel("acme/plain", 1).VALUE == 1


def test_variants_of_frameworks_that_are_not_known_here_stop_nothing(registry, cache):
    folder, _digest = cache()
    for label in ("jax06-cu130-x86_64-linux", "torch213-cxx11-vulkan14-x86_64-linux"):
        write(folder.parent / label, "metadata.json", json.dumps({"name": "plain", "backend": {"type": "other"}}))
    ((release, _is_new),) = install(registry, NEW)
    assert [part.candidate.label for part in release.variants] == ["torch-universal"]


def test_the_hash_of_the_older_format_is_compared(registry, cache):
    _folder, digest = cache()
    assert install(registry, old(digest), all_platforms=True)
    with pytest.raises(KernelLockError, match=r"torch-universal does not have the hash that .*kernels.lock states"):
        install(registry, old("sha256-" + "0" * 64))


def test_everything_that_is_missing_is_listed_with_one_command(registry, cache):
    cache()
    others = [
        {"dependency": {"repo-id": f"acme/{name}", "version": 1}, "lock": {"commit": COMMIT}} for name in ("one", "two")
    ]
    with pytest.raises(KernelLockError) as error:
        install(registry, NEW + others)
    text = str(error.value)
    assert "acme/one abababababab: The kernel acme/one was not found" in text and "acme/two abababababab" in text
    assert text.endswith(f"Get everything with: kernels download {registry.scratch}")
    assert releases.names(registry.root) == [], "nothing is installed if something is missing"


def test_a_kernel_that_does_not_fit_says_what_there_is(registry, cache):
    folder, _digest = cache()
    os.rename(folder, folder.parent / "no-metadata")
    os.unlink(folder.parent / "no-metadata" / "metadata.json")
    with pytest.raises(KernelLockError, match="no variant in it fits this machine; it has: none"):
        install(registry, NEW)


@pytest.mark.parametrize("lock", [{}, [{"repo_id": "a/b"}], [{**NEW[0], "x": 1}]])
def test_a_damaged_lock_file_is_refused(registry, lock):
    with pytest.raises(KernelFormatError, match=r"Expected a kernels\.lock of the hub"):
        install(registry, lock)


def test_the_projects_own_kernels_come_first(registry):
    write(registry.scratch, "kernels.lock", "[]")
    assert install_hub_locked.is_used(str(registry.scratch))
    write(registry.scratch, "pyproject.toml", '[tool.kernels.dependencies]\n"acme/plain" = 1\n')
    assert install_hub_locked.is_used(str(registry.scratch))
    write(registry.scratch, "opforge.lock", "")
    assert not install_hub_locked.is_used(str(registry.scratch))
    os.unlink(registry.scratch / "opforge.lock")
    write(registry.scratch, "pyproject.toml", '[tool.opforge.kernels]\n"acme/plain" = 1\n')
    assert not install_hub_locked.is_used(str(registry.scratch))


def test_two_versions_of_a_repository_are_two_kernels():
    lock = [
        {"dependency": {"repo-id": "Acme/plain", "version": number}, "lock": {"commit": COMMIT}} for number in (1, 2)
    ]
    assert [str(kernel.numbers) for kernel in hub_locks.parse(json.dumps(lock).encode(), "kernels.lock")] == ["1", "2"]


def test_two_revisions_that_state_one_version_are_refused(registry, cache):
    folder, _digest = cache()
    other = "cd" * 20
    shutil.copytree(folder, folder.parents[2] / other / "build" / "torch-universal", symlinks=True)
    revisions = [(COMMIT, "main"), (other, "next")]
    lock = [
        {"dependency": {"repo-id": "Acme/plain", "revision": name}, "lock": {"commit": at}} for at, name in revisions
    ]
    with pytest.raises(KernelLockError, match="Acme/plain 1 is locked at abababababab and at cdcdcdcdcdcd"):
        install(registry, lock)
    ((release, _is_new),) = install(registry, lock[:1])
    assert release.source == f"Acme/plain@{COMMIT}#main"


def test_a_name_with_every_sign_that_the_hub_allows_is_installed(registry, cache):
    folder, _digest = cache("Acme/Plain_v1.5")
    stated = json.loads((folder / "metadata.json").read_text())
    del stated["x-opforge"]
    os.unlink(folder / "metadata.json")
    write(folder, "metadata.json", json.dumps(stated))
    lock = [{"dependency": {"repo-id": "Acme/Plain_v1.5", "version": 1}, "lock": {"commit": COMMIT}}]
    ((release, _is_new),) = install(registry, lock)
    assert release.name == "acme/plain_v1.5"
    loading.reset()
    assert opforge.get_kernel("Acme/Plain_v1.5", 1).VALUE == 1


def test_a_variant_of_tvm_ffi_is_judged_by_the_version_that_is_installed(registry, cache, monkeypatch):
    folder, _digest = cache()
    label = f"tvm-ffi01-cpu-{os.uname().machine}-linux"
    stated = json.loads((folder / "metadata.json").read_text())
    del stated["x-opforge"]
    stated["backend"] = {"type": "cpu"}
    shutil.copytree(folder, folder.parent / label)
    (folder.parent / label / "metadata.json").write_text(json.dumps(stated))
    for version, expected in (("0.1.15", [label]), ("", ["torch-universal"]), ("0.2.0", ["torch-universal"])):
        monkeypatch.setattr(environment, "_tvm_ffi", lambda version=version: version)
        path = str(registry.scratch / "kernels.lock")
        (kernel,) = hub_locks.parse(json.dumps(NEW).encode(), path)
        assert [os.path.basename(part) for part in install_hub_locked._variants(kernel, path, False)] == expected


def test_the_hubs_name_of_tvm_ffi_is_that_of_its_distribution():
    problem = requirements.problem(["tvm-ffi>=99"])
    assert "it needs apache-tvm-ffi>=99" in problem and "pip install 'apache-tvm-ffi>=99'" in problem
