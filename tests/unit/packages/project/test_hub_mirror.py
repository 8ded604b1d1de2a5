"""`opforge mirror hf:ORG/NAME@VERSION REMOTE`: a state of the hub becomes a release of ours; the hub is a stand-in."""

from __future__ import annotations

import os

import pytest
from click.testing import CliRunner
from support.kernels.projects import hub_project
from support.remote.hub_server import Hub
from support.text_files import write

import opforge
from opforge.cli import group
from opforge.errors import (
    ExtraNotInstalledError,
    KernelDependencyError,
    KernelFormatError,
    KernelLoadError,
    KernelNotFoundError,
    PublishError,
)
from opforge.packages.load import get_kernel as loading
from opforge.packages.pack.run import Options, pack
from opforge.packages.project import hub_library, hub_mirror, lock_file, locking
from opforge.packages.project.install_locked import install_locked
from opforge.packages.registry import dependencies, selection
from opforge.packages.sources import reading
from opforge.remote.signatures import keys, trust_file

LABEL = "torch-cpu"
ASKS = "from kernels import get_kernel_dep\nVALUE = get_kernel_dep('Acme/Base').VALUE + {}\n"
huggingface_hub = pytest.importorskip("huggingface_hub", reason="not run: needs pip install 'opforge[hub]'")


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub, and a function that pushes a state of a kernel."""
    hub = Hub()
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
    template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.file_download.HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")

    def push(repository="Acme/Plain", branch="v1", value="5", text="VALUE = {}\n", depends="", **more):
        folder = hub_project(tmp_path / f"hub-{repository}-{value}", repository, text.format(value), depends)
        pack(reading.read(folder), folder, Options(tried=False))
        files = {"README.md": b"not fetched", **more}
        variant = os.path.join(folder, "build", LABEL)
        for name in os.listdir(variant):
            with open(os.path.join(variant, name), "rb") as file:
                files[f"build/{LABEL}/{name}"] = file.read()
        return hub.push(repository, branch, files)

    hub.push_kernel = push
    yield hub
    hub.close()


def mirrored(registry, text="hf:Acme/Plain@1"):
    return hub_mirror.mirror(registry.store, hub_mirror.parse(text), keys.signer("ci"), is_unverified=True).release


def test_a_state_is_published_once_and_installed_like_any_other_package(hub, registry):
    commit = hub.push_kernel()
    done = mirrored(registry)
    assert (done.name, str(done.version), done.is_new) == ("acme/plain", "1", True)
    assert not [path for path in hub.requests if "README" in path]
    assert not mirrored(registry).is_new
    hub.close()
    registry.install()
    loading.reset()
    assert opforge.get_kernel("acme/plain", 1).VALUE == 5
    release = registry.sources()[0]
    assert release is not None
    assert commit in str(registry.content(next(name for name in registry.files() if "/statements/" in name)))


def test_a_newer_commit_of_a_version_is_the_next_rebuild(hub, registry):
    first = hub.push_kernel()
    mirrored(registry)
    hub.push_kernel(value=6)
    assert str(mirrored(registry).version) == "1.1"
    assert str(mirrored(registry, f"hf:acme/plain@{first}").version) == "1"
    registry.install()
    loading.reset()
    assert opforge.get_kernel("acme/plain", 1).VALUE == 6


@pytest.mark.parametrize("by", ["branch", "commit"])
def test_a_mirrored_kernel_is_needed_by_its_revision(hub, registry, tmp_path, by):
    """The store has a newer state, too. The lock file names the one that is needed."""
    commit = hub.push_kernel("Acme/Base", "next")
    mirrored(registry, "hf:Acme/Base@next")
    hub.push_kernel("Acme/Base", "main", value="7")
    assert str(mirrored(registry, "hf:Acme/Base").version) == "1.1"
    revision = {"branch": "next", "commit": commit}[by]
    hub.push_kernel("Acme/Top", text=ASKS, value="100", depends=f'{{ repo-id = "Acme/Base", revision = "{revision}" }}')
    done = hub_mirror.mirror(registry.store, hub_mirror.parse("hf:Acme/Top@1"), keys.signer("ci"), is_unverified=True)
    assert done.needs == (f"hf:Acme/Base@{revision}",)
    hub.close()
    write(tmp_path / "project", "kernels.toml", '"acme/top" = "1"\n')
    lock, _changes = locking.make(str(tmp_path / "project"), registry.sources())
    assert [(kernel.name, str(kernel.version), kernel.requires) for kernel in lock.kernels] == [
        ("acme/base", "1", (f"acme/top @{revision}",)),
        ("acme/top", "1", ("project 1",)),
    ]
    lock_file.write(str(tmp_path / "project"), lock)
    registry.install("acme/base")  # the newest is there, too
    install_locked(registry.root, str(tmp_path / "project"), True, False, [registry.url])
    loading.reset()
    assert opforge.get_kernel("acme/top", 1).VALUE == 105


def test_a_revision_that_the_store_lacks_is_named(hub, registry):
    hub.push_kernel("Acme/Base", "main")
    mirrored(registry, "hf:Acme/Base")
    hub.push_kernel("Acme/Top", text=ASKS, value="100", depends='{ repo-id = "Acme/Base", revision = "later" }')
    mirrored(registry, "hf:Acme/Top@1")
    with pytest.raises(KernelDependencyError, match="acme/top 1 needs acme/base of the revision later"):
        dependencies.resolve([selection.parse_requirement("acme/top")], registry.sources())
    registry.install("acme/base")
    registry.install("acme/top")
    loading.reset()
    with pytest.raises((KernelLoadError, KernelNotFoundError)) as caught:
        opforge.get_kernel("acme/top", 1)
    expected = ("acme/base of the revision later was not found", "which is hf:Acme/Base@", "mirror hf:Acme/Base@later")
    assert [text for text in expected if text not in str(caught.value)] == []


def test_a_redirect_is_followed_and_a_circle_is_an_error(hub, registry):
    hub.push_kernel("Acme/New", "v2")
    text = 'kind = "redirect"\ndestination = "Acme/{}"\nrevision = "{}"\n'
    hub.push("Acme/Old", "v1", {"kernel-status.toml": text.format("New", "v2").encode()})
    assert mirrored(registry, "hf:Acme/Old@1").name == "acme/new"
    hub.push("Acme/Old", "v1", {"kernel-status.toml": text.format("Old", "v1").encode()})
    with pytest.raises(KernelFormatError, match=r"redirected in a circle: Acme/Old@v1 to Acme/Old@v1"):
        mirrored(registry, "hf:Acme/Old@1")


def test_a_file_that_differs_from_its_digest_is_not_published(hub, registry):
    hub.push_kernel(**{f"build/{LABEL}/more.py": b"x = 1\n"})
    with pytest.raises(PublishError, match=r"Unknown file: more\.py"):
        mirrored(registry)
    assert not registry.files()


def test_an_unsigned_package_that_a_rule_covers_is_not_published(hub, registry):
    hub.push_kernel()
    rule = trust_file.Workflow(("package:acme/*",), "acme/kernels", "build.yaml", "main")
    trust_file.write(trust_file.read()._replace(workflows=(rule,)))
    with pytest.raises(PublishError, match="it is not signed: it has no metadata"):
        mirrored(registry)
    assert not registry.files()


def test_what_the_hub_has_not_is_said(hub, registry):
    with pytest.raises(KernelNotFoundError, match=r"Acme/Plain v1 was not found(.|\n)*404(.|\n)*HF_TOKEN"):
        mirrored(registry)
    hub.push("Acme/Plain", "v1", {"build/jax06-cpu/metadata.json": b"{}"})
    with pytest.raises(KernelFormatError, match="it has no variant that can be read, of 1"):
        mirrored(registry)


@pytest.mark.parametrize("text", ["hf:plain", "hf:a/b/c", "hf:../x@1", "hf:a/b@../x", "hf:"])
def test_a_name_that_is_none_is_an_error(text):
    with pytest.raises(KernelFormatError, match=r"it names no kernel of the hub\. Expected hf:ORG/NAME@VERSION"):
        hub_mirror.parse(text)


def test_without_huggingface_hub_the_extra_is_named(registry, monkeypatch):
    def fail(name):
        raise ImportError(name)

    monkeypatch.setattr(hub_library.importlib, "import_module", fail)
    with pytest.raises(ExtraNotInstalledError, match=r"pip install 'opforge\[hub\]'"):
        mirrored(registry)


def test_the_command(hub, registry):
    hub.push_kernel()
    done = CliRunner().invoke(group, ["mirror", "hf:Acme/Plain@1", registry.url, "--key", "ci", "--unverified"])
    assert done.exit_code == 0 and done.output.startswith("published acme/plain 1, "), done.output
    needs = '{ repo-id = "Acme/Base", version = 2 }'
    hub.push_kernel("Acme/Top", depends=needs)
    done = CliRunner().invoke(group, ["mirror", "hf:Acme/Top@1", registry.url, "--key", "ci", "--unverified"])
    assert f"note: it needs hf:Acme/Base@2: mirror that too, if {registry.url} lacks it" in done.output
    for words, problem in (
        (["hf:Acme/Plain@1", registry.url, "acme/x"], "a kernel of the hub is one package: leave out names."),
        ([registry.url, registry.url, "--key", "ci"], "--key signs a kernel of the hub"),
    ):
        wrong = CliRunner().invoke(group, ["mirror", *words])
        assert wrong.exit_code == 2 and problem in wrong.output


def test_what_no_rule_covers_is_not_signed_without_a_word(registry, hub):
    """Whoever trusts this user's key would run what nobody has verified."""
    hub.push_kernel()
    with pytest.raises(PublishError, match=r"no rule of 'sigstore' in the trust file covers package:.*--unverified"):
        hub_mirror.mirror(registry.store, hub_mirror.parse("hf:Acme/Plain@1"), keys.signer("ci"))
    assert not list(registry.store.list("v1/topics/"))
