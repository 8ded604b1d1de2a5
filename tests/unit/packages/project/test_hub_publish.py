"""`opforge publish hf:ORG/NAME`: a packed kernel becomes a commit on the hub; the hub is a stand-in."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import warnings

import pytest
from click.testing import CliRunner
from support.kernels.projects import hub_project
from support.remote.hub_server import Hub

from opforge.cli import publish as publishing
from opforge.errors import ExtraNotInstalledError, KernelFormatError, PublishError
from opforge.packages.pack.run import Options, pack
from opforge.packages.project import hub_publish
from opforge.packages.sources import reading

huggingface_hub = pytest.importorskip("huggingface_hub", reason="not run: needs pip install 'opforge[hub]'")
METADATA = "build/torch-cpu/metadata.json"


@pytest.fixture
def hub(monkeypatch):
    hub = Hub()
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    yield hub
    hub.close()


@pytest.fixture
def packed(tmp_path):
    """A function that packs a kernel whose module has a value, and returns its folder."""

    def make(value=5, repository="Acme/Plain"):
        shutil.rmtree(tmp_path / "project", ignore_errors=True)
        folder = hub_project(tmp_path / "project", repository, f"VALUE = {value}\n")
        pack(reading.read(folder), folder, Options(tried=False))
        return folder

    return make


def on(hub, branch="v1", repository="Acme/Plain"):
    return hub.files[hub.branches[repository, branch]]


def test_a_package_becomes_a_commit_on_the_branch_of_its_version(hub, packed):
    folder = packed()
    done = hub_publish.to_hub("Acme/Plain", "", folder)
    assert (done.repository, done.branch, done.version, done.labels) == ("Acme/Plain", "v1", "1", ("torch-cpu",))
    assert done.is_new and done.commit == hub.branches["Acme/Plain", "v1"]
    files = on(hub)
    assert METADATA in files
    for name in os.listdir(os.path.join(folder, "build", "torch-cpu")):
        path = os.path.join(folder, "build", "torch-cpu", name)
        if os.path.isfile(path):
            with open(path, "rb") as file:
                assert files[f"build/torch-cpu/{name}"] == file.read()
    assert set(hub.authorizations) == {"Bearer hf_secret"}


def test_the_same_package_again_makes_no_commit(hub, packed):
    folder = packed()
    first = hub_publish.to_hub("Acme/Plain", "", folder)
    again = hub_publish.to_hub("Acme/Plain", "", folder)
    assert (again.commit, again.is_new) == (first.commit, False)


def test_a_variant_is_replaced_whole_and_those_of_others_stay(hub, packed):
    hub_publish.to_hub("Acme/Plain", "", packed())
    there = {**on(hub), "build/torch-cpu/old.py": b"gone", "build/torch-cuda/kept.py": b"other", "CARD.md": b"mine"}
    hub.push("Acme/Plain", "v1", there)
    assert hub_publish.to_hub("Acme/Plain", "", packed(6)).is_new
    files = on(hub)
    assert "build/torch-cpu/old.py" not in files
    assert (files["build/torch-cuda/kept.py"], files["CARD.md"]) == (b"other", b"mine")


def test_what_was_published_is_fetched_as_any_kernel_of_the_hub(hub, packed, registry, monkeypatch):
    from opforge.packages.project import hub_mirror
    from opforge.remote.signatures import keys

    hub_publish.to_hub("Acme/Plain", "", packed())
    template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.file_download.HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
    asked = hub_mirror.parse("hf:Acme/Plain@1")
    done = hub_mirror.mirror(registry.store, asked, keys.signer("ci"), is_unverified=True).release
    assert (done.name, str(done.version)) == ("acme/plain", "1")


def test_a_branch_is_named_after_an_at(hub, packed):
    assert hub_publish.parse("hf:Acme/Plain@next") == ("Acme/Plain", "next")
    assert hub_publish.to_hub("Acme/Plain", "next", packed()).branch == "next"


def test_a_repository_of_another_name_is_refused(hub, packed):
    with pytest.raises(PublishError) as caught:
        hub_publish.to_hub("Acme/Other", "", packed())
    assert str(caught.value) == (
        "acme/plain 1 was not published to hf:Acme/Other: the repository has another name. "
        "Publish it to hf:ORG/plain, or pack it again with --name acme/other."
    )
    assert not hub.repositories


@pytest.mark.parametrize(
    ("operation", "answer", "token", "reason", "hint"),
    [
        (
            "create",
            (401, "Invalid username or password."),
            "",
            "the hub requires a token, and there is none (401: Invalid username or password)",
            "Set HF_TOKEN to a token that may write to Acme/Plain, or run `hf auth login`",
        ),
        (
            "create",
            (401, "Invalid credentials in Authorization header"),
            "hf_old",
            "the hub does not accept the token (401: Invalid credentials in Authorization header)",
            "Set HF_TOKEN to a token that may write to Acme/Plain",
        ),
        (
            "commit",
            (403, "You may not write here"),
            "hf_reader",
            "the token may not write there (403: You may not write here)",
            "Set HF_TOKEN to a token that may write to Acme/Plain",
        ),
        (
            "create",
            (404, "Not found"),
            "hf_secret",
            "the hub has no such organization or repository (404: Not found)",
            "Check the name. A private repository is hidden from a token that may not read it",
        ),
        (
            "commit",
            (412, "A commit has happened since."),
            "hf_secret",
            "the branch was changed in the meantime (412: A commit has happened since)",
            "Publish again",
        ),
        (
            "commit",
            (400, "The file is too large"),
            "hf_secret",
            "the hub refused it (400: The file is too large)",
            "Publish again later; what is there already is not sent again",
        ),
    ],
)
def test_a_refusal_of_the_hub_is_said_with_what_to_do(
    hub, packed, monkeypatch, tmp_path, operation, answer, token, reason, hint
):
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "none"))
    monkeypatch.setattr("huggingface_hub.constants.HF_STORED_TOKENS_PATH", str(tmp_path / "neither"))
    monkeypatch.setenv("HF_TOKEN", token)
    hub.refusals[operation] = answer
    with pytest.raises(PublishError) as caught:
        hub_publish.to_hub("Acme/Plain", "", packed())
    assert str(caught.value) == f"acme/plain 1 was not published to hf:Acme/Plain: {reason}. {hint}."


def test_a_repository_that_exists_takes_a_package_of_who_may_not_make_repositories(hub, packed):
    folder = packed()
    hub_publish.to_hub("Acme/Plain", "", folder)
    hub.refusals["create"] = (403, "You may not make repositories of Acme")
    assert not hub_publish.to_hub("Acme/Plain", "", folder).is_new


def test_a_hub_that_is_away_is_said_with_what_to_do(hub, packed):
    folder = packed()
    hub.close()
    with pytest.raises(PublishError, match="Check the network, and publish again: what is there already is not sent"):
        hub_publish.to_hub("Acme/Plain", "", folder)


@pytest.fixture
def large_files(hub, monkeypatch):
    """A hub that takes Python files as it takes libraries: each is uploaded alone, without the service for chunks."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    # The hub's library passes a file to its HTTP library by an argument that this deprecates.
    warnings.filterwarnings("ignore", "Use 'content", DeprecationWarning)
    hub.large = ".py"
    return hub


def test_large_files_are_uploaded_once(large_files, packed):
    folder = packed()
    assert hub_publish.to_hub("Acme/Plain", "", folder).is_new
    assert b"VALUE = 5\n" in large_files.uploads.values() and b"VALUE = 5\n" in on(large_files).values()
    assert not hub_publish.to_hub("Acme/Plain", "", folder).is_new


def test_an_interrupted_upload_changes_nothing_and_a_second_one_sends_the_rest(large_files, packed, monkeypatch):
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    folder = packed()
    large_files.interrupted_uploads = 100
    with pytest.raises(PublishError, match="Check the network, and publish again: what is there already is not sent"):
        hub_publish.to_hub("Acme/Plain", "", folder)
    assert not on(large_files) and not large_files.uploads
    large_files.interrupted_uploads = 0
    assert hub_publish.to_hub("Acme/Plain", "", folder).is_new
    assert METADATA in on(large_files)


def test_an_error_without_a_text_is_said_by_its_name(hub, packed, monkeypatch):
    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", lambda *_words, **_more: (_ for _ in ()).throw(OSError()))
    with pytest.raises(PublishError, match=r"was not published to hf:Acme/Plain: OSError\. Check the network"):
        hub_publish.to_hub("Acme/Plain", "", packed())


@pytest.mark.parametrize("text", ["hf:Plain", "hf:a/../b", "hf:", "hf:a/b/c", "hf:a/b@"])
def test_what_names_no_repository_is_refused(text):
    with pytest.raises(KernelFormatError, match="it names no repository of the hub"):
        hub_publish.parse(text)


def test_the_extra_is_named_if_it_is_missing(packed, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ExtraNotInstalledError, match=r"pip install 'opforge\[hub\]'"):
        hub_publish.to_hub("Acme/Plain", "", packed())


def test_the_command_says_what_was_published(hub, packed):
    folder = packed()
    result = CliRunner().invoke(publishing.command, ["hf:Acme/Plain", folder])
    assert result.exit_code == 0, result.output
    assert result.output.startswith("published Acme/Plain 1, branch v1, commit ")
    assert result.output.endswith("1 variant: torch-cpu\n")
    shown = json.loads(CliRunner().invoke(publishing.command, ["hf:Acme/Plain", folder, "--json"]).output)
    assert (shown["is_new"], shown["branch"]) == (False, "v1")
    for words in (["CPUAdam"], ["--all"], [folder, "--key", "ci"]):
        result = CliRunner().invoke(publishing.command, ["hf:Acme/Plain", *words])
        assert result.exit_code == 2 and "hf: takes the folder of a package" in result.output


def test_a_process_of_its_own_publishes(hub, packed):
    """The hub's library imports its parts late: what one test has imported is there for the next."""
    environment = {**os.environ, "HF_ENDPOINT": hub.url}
    words = [sys.executable, "-m", "opforge", "publish", "hf:Acme/Plain", packed()]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("published Acme/Plain 1, branch v1")
