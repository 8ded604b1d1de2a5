"""The download cache of the hub's own loader: where a state of a repository lies on this machine."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import NamedTuple

from opforge.cache.schema import Fields
from opforge.errors import KernelFormatError, KernelNotFoundError
from opforge.foundation import environment
from opforge.foundation.files import folder_names
from opforge.packages.form import digests, metadata, names, toml_file, variant

from . import hub_signatures
from .hub_locks import COMMIT, REPOSITORY

STATUS = "kernel-status.toml"
EXPECTED = 'a kernel-status.toml of the hub: kind = "redirect", and a destination'
VERSION = re.compile(r"v\d{1,9}", re.ASCII)
MAX_REDIRECTS = 4
ADVICE = "Nothing is downloaded: get it with the hub's own tool, hf download --repo-type kernel {} --revision {}"


def repositories(repository: str) -> list[str]:
    """Returns the folders of a repository in the cache: kernels were models on the hub before they had a kind."""
    return [f"{_cache()}/{kind}--{repository.replace('/', '--')}" for kind in ("kernels", "models")]


def is_cached(repository: str) -> bool:
    """Returns whether the cache has any state of a repository."""
    return any(map(os.path.isdir, repositories(repository)))


def _cache() -> str:
    """Returns the folder in which the hub's own loader keeps what it has downloaded.

    It expands "~" and "$NAME" in the variables, which is all that a Dockerfile or a service's unit can write.
    """
    named = environment.first("KERNELS_CACHE", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE")
    home = environment.variable("HF_HOME") or f"{environment.cache_home()}/huggingface"
    return os.path.expandvars(os.path.expanduser(named or f"{home}/hub"))


def revision_of(version: str | int | None) -> str:
    """Returns the branch of a version, `v3` of 3; what is no number is a branch, a tag or a commit itself."""
    return "main" if version is None else f"v{version}" if str(version).isdecimal() else str(version)


class State(NamedTuple):
    """A state of a repository in the cache."""

    folder: str
    commit: str
    name: str
    """Of the package: the repository that a redirect leads to."""
    watched: tuple[str, ...]
    """The paths whose stamps change if another state is meant: branches, and the files of redirects."""


def snapshot(repository: str, version: str | int | None) -> State:
    """Returns a repository's state in the cache, after following redirects.

    Raises KernelNotFoundError if it was not downloaded; KernelFormatError for a redirect that cannot be read, leads in
    a circle, or is one of more than four.
    """
    revision = revision_of(version)
    path, watched = [(repository, revision)], list[str]()
    while True:
        folder, commit, searched = _state(repository, revision)
        status = os.path.join(folder, STATUS)
        watched += [*searched, status]
        if not os.path.isfile(status):
            return State(folder, commit, names.of_repository(repository, "the repository"), tuple(watched))
        repository, revision = destination(status)
        check_path(path, (repository, revision), status)
        path.append((repository, revision))


def _state(repository: str, revision: str) -> tuple[str, str, list[str]]:
    """Returns the folder of a state, its commit, and the paths that were looked at. Raises KernelNotFoundError."""
    if not REPOSITORY.fullmatch(repository) or ".." in repository or ".." in revision or not revision.isprintable():
        raise KernelFormatError(
            ascii(repository)[:100], f"it has no revision {ascii(revision)[:100]}", "acme/relu and v3"
        )
    searched, watched = [], []
    for folder in repositories(repository):
        branch = os.path.join(folder, "refs", revision)
        commit = revision if COMMIT.fullmatch(revision) else _ref(branch)
        searched.append(os.path.join(folder, "snapshots", commit) if commit else branch)
        watched += [branch, searched[-1]]
        if commit and os.path.isdir(searched[-1]):
            return searched[-1], commit, watched
    if VERSION.fullmatch(revision):
        folders, others = _of_version(repository, int(revision[1:]))
        if len(folders) == 1:
            return folders[0], os.path.basename(folders[0]), [*watched, *others]
        if folders:
            commits = ", ".join(sorted(map(os.path.basename, folders)))
            advice = f"Several states say that they are this version. Name one of them as the version: {commits}"
            raise KernelNotFoundError(f"{repository} {revision}", searched, advice)
    raise KernelNotFoundError(f"{repository} {revision}", searched, ADVICE.format(repository, revision) + _into())


def _of_version(repository: str, number: int) -> tuple[list[str], list[str]]:
    """Returns the states of which a variant says that it is this version, and the paths that decide it.

    The hub's own loader asks the hub for the commit of a version, and downloads that: it keeps no branch.
    """
    found, watched = list[str](), list[str]()
    for top in repositories(repository):
        snapshots = os.path.join(top, "snapshots")
        watched.append(snapshots)
        for commit in folder_names(snapshots):
            build = os.path.join(snapshots, commit, "build")
            watched.append(build)
            if any(_version(os.path.join(build, label)) == number for label in folder_names(build)):
                found.append(os.path.join(snapshots, commit))
    return found, watched


def _version(folder: str) -> int | None:
    """Returns the version that a variant states; None if it states none that can be read."""
    try:
        return metadata.read(folder).version
    except (KernelFormatError, OSError):
        return None


def _into() -> str:
    """Returns the option for the folder of the hub's loader, if that is not the one of the hub's tool."""
    return " --cache-dir $KERNELS_CACHE" if environment.variable("KERNELS_CACHE").strip() else ""


def _ref(path: str) -> str:
    """Returns the commit that a branch or tag had when it was downloaded; an empty text if it was not."""
    try:
        with open(path, encoding="ascii") as file:
            commit = file.read(100).strip()
    except (OSError, UnicodeDecodeError):
        return ""
    return commit if COMMIT.fullmatch(commit) else ""


def refusal(name: str, folder: str) -> str:
    """Returns why a variant in the cache is not accepted as one of the package, or an empty text.

    Links lead to the cache's own blobs. Raises what `hub_signatures.problem` raises, OSError.
    """
    cache = os.path.realpath(_cache())
    for path in [*digests.files_of(folder), metadata.FILE]:
        target = os.path.realpath(os.path.join(folder, path))
        if not target.startswith(cache + os.sep):
            return f"{path} is a link to {target}, out of the cache {cache}: download it again"
    return hub_signatures.problem(name, folder)


def check_path(path: Sequence[tuple[str, str]], step: tuple[str, str], status: str) -> None:
    """Raises KernelFormatError if a redirect leads to where it came from, or is one too many."""
    if step in path or len(path) > MAX_REDIRECTS:
        steps = " to ".join(f"{name}@{at}" for name, at in [*path, step])
        problem = "in a circle" if step in path else f"more than {MAX_REDIRECTS} times"
        raise KernelFormatError(status, f"it is redirected {problem}: {steps}", "a redirect to a kernel")


def is_label(name: str) -> bool:
    """Returns whether a folder has the name of a variant; not for a framework or a backend that is not known here."""
    try:
        return bool(variant.readings(name))
    except ValueError:
        return False


def destination(status: str) -> tuple[str, str]:
    """Returns the repository and the revision that a redirect leads to. Raises KernelFormatError, OSError."""
    fields = Fields(toml_file.read(status, EXPECTED), status, EXPECTED)
    if fields.text("kind") != "redirect":
        raise fields.error(f"'kind' is {ascii(fields.text('kind'))[:100]}")
    return fields.text("destination"), fields.text("revision", "main")
