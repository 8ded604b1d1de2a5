"""Publishes a packed kernel to the Hugging Face hub: its variants on the branch of its version, in one commit.

What other machines have published there stays: a variant is replaced whole, and no other is touched.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from opforge.errors import KernelFormatError, PublishError
from opforge.packages.form import origin
from opforge.packages.form.digests import LEFT_OUT
from opforge.packages.registry import publish
from opforge.packages.registry.publish import Packed

from . import hub_cache, hub_library
from .hub_locks import REPOSITORY

EXPECTED = "hf:ORG/NAME, such as hf:acme/relu, or hf:ORG/NAME@BRANCH"
KIND = "kernel"
"""The hub's type of repositories of kernels."""
UNAUTHORIZED, FORBIDDEN, NOT_FOUND = 401, 403, 404
CHANGED = (409, 412)
"""The statuses of a commit whose parent is not the branch's last one."""


class PublishedToHub(NamedTuple):
    """The present state of the hub."""

    repository: str
    branch: str
    version: str
    commit: str
    labels: tuple[str, ...]
    """The variants that were published."""
    is_new: bool
    """False if the branch had the same files already."""


def parse(text: str) -> tuple[str, str]:
    """Returns the repository that `hf:ORG/NAME` names, and the branch after an @, or "". Raises KernelFormatError."""
    repository, at, branch = text.removeprefix(origin.HUB).partition("@")
    if not REPOSITORY.fullmatch(repository) or ".." in text or not branch.isprintable() or (at and not branch):
        raise KernelFormatError(ascii(text)[:100], "it names no repository of the hub", EXPECTED)
    return repository, branch


def to_hub(repository: str, branch: str, folder: str, allow_dirty: bool = False) -> PublishedToHub:
    """Publishes the package in a folder as a commit of a branch; the repository and the branch are made if need be.

    Args:
        repository: ORG/NAME; the name is the package's.
        branch: Empty for that of the version's interface: v3 of 3 and of 3.1, as `get_kernel(version=3)` asks for.
        folder: What `opforge pack` has written.
        allow_dirty: Whether the sources may have differed from their commit.

    Raises PublishError, also for what the hub answers; KernelFormatError, ExtraNotInstalledError, OSError.
    """
    where = f"{origin.HUB}{repository}"
    packed = publish.packed_variants(folder)
    facts = publish.facts_of(packed, folder, where, allow_dirty)
    name = facts.name.rpartition("/")[2]
    if name != repository.rpartition("/")[2].lower():
        hint = f"Publish it to {origin.HUB}ORG/{name}, or pack it again with --name {repository.lower()}"
        raise PublishError(f"{facts.name} {facts.version}", where, "the repository has another name", hint)
    if unknown := [part.label for part in packed if not hub_cache.is_label(part.label)]:
        hint = "Pack it again, without renaming folders of build/"
        raise PublishError(f"{facts.name} {facts.version}", where, f"{unknown[0]} is unknown to the hub", hint)
    hub = hub_library.imported("opforge publish hf:")
    branch = branch or hub_cache.revision_of(facts.version.interface)
    try:
        commit, is_new = _commit(hub, repository, branch, packed, f"{facts.name} {facts.version}")
    except (*hub.errors.HfHubHTTPError.__bases__, ValueError, RuntimeError) as error:
        # Its HTTP library's errors, OSError, and those of uploads: a RuntimeError whose cause has the reason.
        cause = error.__cause__ if isinstance(error, RuntimeError) and error.__cause__ else error
        reason, hint = _refusal(cause, repository, bool(hub.get_token()))
        raise PublishError(f"{facts.name} {facts.version}", where, reason, hint) from error
    labels = tuple(part.label for part in packed)
    return PublishedToHub(repository, branch, str(facts.version), commit, labels, is_new)


def _commit(hub: Any, repository: str, branch: str, packed: list[Packed], message: str) -> tuple[str, bool]:
    """Returns the branch's commit after it, and whether it is a new one."""
    api = hub.HfApi(endpoint=hub.constants.ENDPOINT)
    api.create_repo(repository, repo_type=KIND, exist_ok=True)
    api.create_branch(repository, branch=branch, repo_type=KIND, exist_ok=True)
    before = api.repo_info(repository, repo_type=KIND, revision=branch).sha
    entries = api.list_repo_tree(repository, recursive=True, revision=before, repo_type=KIND)
    there = [entry.path for entry in entries if isinstance(entry, hub.hf_api.RepoFile)]
    additions = {
        f"build/{part.label}/{path}": os.path.join(part.folder, path) for part in packed for path in _files(part)
    }
    replaced = tuple(f"build/{part.label}/" for part in packed)
    gone = sorted(path for path in there if path.startswith(replaced) and path not in additions)
    operations = [hub.CommitOperationAdd(path_in_repo=path, path_or_fileobj=file) for path, file in additions.items()]
    operations += [hub.CommitOperationDelete(path_in_repo=path, is_folder=False) for path in gone]
    options = {"commit_message": f"Publish {message}", "parent_commit": before}
    done = api.create_commit(repository, operations, repo_type=KIND, revision=branch, **options)
    return str(done.oid), done.oid != before


def _refusal(error: BaseException, repository: str, has_token: bool) -> tuple[str, str]:
    """Returns why the hub has not taken a package, and what to do."""
    status = int(getattr(getattr(error, "response", None), "status_code", 0))
    lines = str(getattr(error, "server_message", None) or error).strip().splitlines()
    text = next(iter(lines), type(error).__name__).rstrip(".")  # some errors have no text
    token = f"Set HF_TOKEN to a token that may write to {repository}"
    if status == UNAUTHORIZED and not has_token:
        return f"the hub requires a token, and there is none ({status}: {text})", f"{token}, or run `hf auth login`"
    if status == UNAUTHORIZED:
        return f"the hub does not accept the token ({status}: {text})", token
    if status == FORBIDDEN:
        return f"the token may not write there ({status}: {text})", token
    if status == NOT_FOUND:
        hint = "Check the name. A private repository is hidden from a token that may not read it"
        return f"the hub has no such organization or repository ({status}: {text})", hint
    if status in CHANGED:
        return f"the branch was changed in the meantime ({status}: {text})", "Publish again"
    if status:
        return f"the hub refused it ({status}: {text})", "Publish again later; what is there already is not sent again"
    return text, "Check the network, and publish again: what is there already is not sent again"


def _files(part: Packed) -> list[str]:
    """Returns the paths of a variant's files, its metadata and the signature of that too."""
    return sorted({*part.files, *(name for name in LEFT_OUT if os.path.isfile(os.path.join(part.folder, name)))})
