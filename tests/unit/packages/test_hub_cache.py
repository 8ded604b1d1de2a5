"""`get_kernel(..., hub=True)`: a state of a repository in the cache of the hub's own loader, without a lock file."""

from __future__ import annotations

import os

import pytest
from support.kernels.projects import python_project
from support.text_files import write

import opforge
from opforge.errors import KernelFormatError, KernelIncompatibleError, KernelNotFoundError
from opforge.foundation import remembered_values
from opforge.packages.load import get_kernel as loading
from opforge.packages.pack.run import Options, pack
from opforge.packages.sources import reading

COMMIT = "ab" * 20


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Fills a download cache as the hub's tool does: files are links to blobs, branches files with a commit."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    python_project(tmp_path / "plain", text="VALUE = 5\n")
    pack(reading.read(str(tmp_path / "plain")), str(tmp_path / "plain"), Options(tried=False))
    loading.reset()
    variant = tmp_path / "plain" / "build" / "torch-universal"

    def fill(repository="Acme/Plain", branch="v1", redirect="", kind="kernels"):
        top = tmp_path / "hub" / f"{kind}--{repository.replace('/', '--')}"
        write(top, f"refs/{branch}", COMMIT)
        snapshot = top / "snapshots" / COMMIT
        if redirect:
            write(snapshot, "kernel-status.toml", redirect)
            return snapshot
        folder = snapshot / "build" / "torch-universal"
        os.makedirs(folder)
        os.makedirs(top / "blobs")
        for name in os.listdir(variant):
            (top / "blobs" / name).write_bytes((variant / name).read_bytes())
            os.symlink(top / "blobs" / name, folder / name)
        return snapshot

    return fill


@pytest.mark.parametrize("kind", ["kernels", "models"])
@pytest.mark.parametrize(("branch", "version"), [("v1", 1), ("main", None), ("next", "next"), ("v1", COMMIT)])
def test_a_state_is_found_by_its_version_branch_or_commit(cache, kind, branch, version):
    cache(branch=branch, kind=kind)
    module = opforge.get_kernel("Acme/Plain", version, hub=True)
    assert module.VALUE == 5 and opforge.get_kernel("Acme/Plain", version, hub=True) is module


def test_a_version_is_found_that_the_hubs_loader_has_downloaded_by_its_commit(cache):
    """It asks the hub for the commit of a version, downloads that, and keeps no branch."""
    snapshot = cache()
    os.remove(snapshot.parent.parent / "refs" / "v1")
    module = opforge.get_kernel("Acme/Plain", 1, hub=True)
    assert module.VALUE == 5
    with pytest.raises(KernelNotFoundError, match="Acme/Plain v2 was not found"):
        opforge.get_kernel("Acme/Plain", 2, hub=True)
    os.symlink(snapshot, snapshot.parent / ("cd" * 20))
    loading.reset()
    with pytest.raises(KernelNotFoundError, match=f"Name one of them as the version: {COMMIT}, {'cd' * 20}$"):
        opforge.get_kernel("Acme/Plain", 1, hub=True)
    assert opforge.get_kernel("Acme/Plain", COMMIT, hub=True).VALUE == 5


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ({"revision": "main"}, r"the version of a kernel of the hub: get_kernel\('Acme/Plain', 'main', hub=True\)$"),
        ({"backend": "cpu"}, "the variant that fits this machine is loaded, and `variant` takes the label of another"),
        ({"trust_remote_code": True}, "the trust file says whose packages are accepted"),
        ({"versoin": 1}, r"'versoin'\. Did you mean 'version'\?$"),
    ],
)
def test_an_argument_of_the_hubs_loader_is_answered_with_what_does_the_same(cache, argument, expected):
    cache()
    opforge.get_kernel("Acme/Plain", 1, hub=True)
    with pytest.raises(TypeError, match=rf"^get_kernel\(\) got an unexpected keyword argument .*{expected}"):
        opforge.get_kernel("Acme/Plain", 1, hub=True, **argument)
    with pytest.raises(TypeError, match=r"^get_local_kernel\(\) got an unexpected keyword argument 'backend': the var"):
        opforge.get_local_kernel("folder", backend="cpu")


def test_a_package_that_the_hubs_loader_has_downloaded_is_found_there_by_request_alone(cache):
    cache("acme/plain")
    assert opforge.get_kernel("acme/plain", 1, hub=True).VALUE == 5
    with pytest.raises(
        KernelNotFoundError, match="The hub's own loader has downloaded it: hub=True takes it from there"
    ):
        opforge.get_kernel("acme/plain", 1)


def test_the_folder_is_named_as_the_hubs_loader_reads_it(cache, tmp_path, monkeypatch):
    cache()
    monkeypatch.setattr(remembered_values, "RACY_NS", -(10**12))
    for name, value in (("HOME", str(tmp_path)), ("SCRATCH", str(tmp_path)), ("HF_HUB_CACHE", "~/hub")):
        monkeypatch.setenv(name, value)
    assert opforge.get_kernel("Acme/Plain", 1, hub=True).VALUE == 5
    monkeypatch.setenv("HF_HUB_CACHE", "$SCRATCH/hub")
    loading.reset()
    assert opforge.get_kernel("Acme/Plain", 1, hub=True).VALUE == 5
    monkeypatch.setenv("SCRATCH", "/elsewhere")
    loading.reset()
    with pytest.raises(KernelNotFoundError, match="/elsewhere/hub/kernels--Acme--Plain"):
        opforge.get_kernel("Acme/Plain", 1, hub=True)


def test_what_was_not_downloaded_is_named(cache):
    cache()
    advice = "hf download --repo-type kernel Acme/Plain --revision v2"
    with pytest.raises(KernelNotFoundError, match=rf"Acme/Plain v2 was not found(.|\n)*refs/v2(.|\n)*{advice}$"):
        opforge.get_kernel("Acme/Plain", 2, hub=True)


@pytest.mark.parametrize("content", [f"../snapshots/{COMMIT}", COMMIT[:8], "", "\u00e4"])
def test_a_branch_that_is_no_commit_leads_nowhere(cache, content):
    write(cache(branch="next").parent.parent, "refs/next", content)
    with pytest.raises(KernelNotFoundError, match="Acme/Plain next was not found"):
        opforge.get_kernel("Acme/Plain", "next", hub=True)


def test_files_that_differ_from_their_digests_are_not_imported(cache):
    snapshot = cache()
    path = os.path.realpath(snapshot / "build" / "torch-universal" / "__init__.py")
    with open(path, "a") as file:
        file.write("VALUE = 6\n")
    with pytest.raises(KernelIncompatibleError, match=r"File hash mismatch for __init__\.py"):
        opforge.get_kernel("Acme/Plain", 1, hub=True)


def test_a_link_out_of_the_cache_is_an_error(cache, tmp_path):
    """Its content is right: nothing but the link is."""
    link = cache() / "build" / "torch-universal" / "__init__.py"
    elsewhere = write(tmp_path, "elsewhere.py", link.read_text())
    link.unlink()
    link.symlink_to(elsewhere)
    with pytest.raises(KernelIncompatibleError, match=rf"__init__\.py is a link to {elsewhere}, out of the cache "):
        opforge.get_kernel("Acme/Plain", 1, hub=True)


def test_a_link_to_a_blob_that_repositories_share_is_followed(cache, tmp_path):
    """The hub's client may keep large files once for all repositories: then a blob of one is a link."""
    cache()
    (blob,) = (tmp_path / "hub").glob("kernels--*/blobs/__init__.py")
    shared = tmp_path / "hub" / "blobs" / "ab"
    shared.mkdir(parents=True)
    blob.rename(shared / "abcd")
    blob.symlink_to(shared / "abcd")
    assert opforge.get_kernel("Acme/Plain", 1, hub=True).VALUE == 5


def test_a_redirect_is_followed(cache):
    cache()
    cache("Acme/Old", redirect='kind = "redirect"\ndestination = "Acme/Plain"\nrevision = "v1"\n')
    assert opforge.get_kernel("Acme/Old", 1, hub=True).VALUE == 5


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            'kind = "redirect"\ndestination = "Acme/Old"\nrevision = "v1"\n',
            "redirected in a circle: Acme/Old@v1",
        ),
        ('kind = "gone"\n', "'kind' is 'gone'. Expected a kernel-status.toml of the hub"),
        ('kind = "redirect"\n', "'destination' is missing"),
        ('kind = "redirect"\ndestination = "../x/y"\n', "it has no revision "),
        ('kind = "redirect"\ndestination = "Acme/Old"\nrevision = "../x"\n', "it has no revision "),
    ],
)
def test_a_redirect_that_cannot_be_followed_is_an_error(cache, text, problem):
    cache("Acme/Old", redirect=text)
    with pytest.raises(KernelFormatError) as error:
        opforge.get_kernel("Acme/Old", 1, hub=True)
    assert problem in str(error.value)


def test_five_redirects_are_too_many(cache):
    for number in range(6):
        cache(f"Acme/N{number}", redirect=f'kind = "redirect"\ndestination = "Acme/N{number + 1}"\nrevision = "v1"\n')
    with pytest.raises(KernelFormatError, match="redirected more than 4 times"):
        opforge.get_kernel("Acme/N0", 1, hub=True)


def test_a_checkout_comes_first(cache, tmp_path, monkeypatch):
    monkeypatch.setenv("OPFORGE_KERNELS", f"acme/plain={tmp_path}/plain")
    assert opforge.get_kernel("Acme/Plain", 1, hub=True).VALUE == 5


def test_a_checkout_of_another_version_is_not_taken(cache, tmp_path, monkeypatch):
    monkeypatch.setenv("OPFORGE_KERNELS", f"acme/plain={tmp_path}/plain")
    assert opforge.get_kernel("acme/plain", 1).VALUE == 5
    with pytest.raises(KernelIncompatibleError, match=r"it is version 1(\.0)?, and 2 is requested"):
        opforge.get_kernel("acme/plain", 2)
