"""Copies a kernel of the hub into a store of ours: one state, at one commit, as a release that is signed here.

The hub is asked once. Whoever installs or locks the package then asks the store, like for any other package.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from opforge.cache.current_store import temporary
from opforge.errors import KernelFormatError, KernelNotFoundError, PublishError
from opforge.packages.form import metadata, names, origin
from opforge.packages.form.metadata import Dependency
from opforge.packages.form.version import Version
from opforge.packages.registry import index, publish, release
from opforge.packages.registry.publish import Packed, Published
from opforge.packages.registry.release import Release
from opforge.remote import statements
from opforge.remote.signatures.keys import Signer
from opforge.remote.stores.protocol import ObjectStore
from opforge.remote.transfer import Report, ignore

from . import hub_cache, hub_library, hub_signatures
from .hub_locks import REPOSITORY

PATTERNS = ["build/*", hub_cache.STATUS]
EXPECTED = "hf:ORG/NAME@VERSION, such as hf:kernels-community/activation@3, or a branch, tag or commit after the @"


class Asked(NamedTuple):
    """A state of a repository, as a command names it."""

    repository: str
    revision: str


class Mirrored(NamedTuple):
    """The published release, and the states of other kernels that it needs, as `opforge mirror` names them."""

    release: Published
    needs: tuple[str, ...]


def parse(text: str) -> Asked:
    """Returns the state that `hf:ORG/NAME@VERSION` names. Raises KernelFormatError."""
    repository, _at, revision = text.removeprefix(origin.HUB).partition("@")
    if not REPOSITORY.fullmatch(repository) or ".." in repository or not revision.isprintable() or ".." in revision:
        raise KernelFormatError(ascii(text)[:100], "it names no kernel of the hub", EXPECTED)
    return Asked(repository, hub_cache.revision_of(revision or None))


def mirror(
    store: ObjectStore,
    asked: Asked,
    signer: Signer | None,
    report: Report = ignore,
    is_unverified: bool = False,
) -> Mirrored:
    """Publishes a state of a repository; one that is there already changes nothing.

    What nobody has verified is signed only if it may be `is_unverified`: who trusts the signer's key runs it. The
    release gets the next number of rebuilds of the interface that its metadata states. Raises KernelNotFoundError for
    what the hub has not; PublishError for files that differ from their digests or are not signed as the trust file
    demands; ExtraNotInstalledError, KernelFormatError, StoreError, OSError.
    """
    with temporary("opforge-hub-") as scratch:
        found, commit, folder = _fetched(asked, scratch)
        name = names.of_repository(found.repository, "the repository")
        if signer and not is_unverified and not hub_signatures.has_rule(name):
            problem = f"no rule of 'sigstore' in the trust file covers package:{name}, so nothing says who has made it"
            hint = "Add a rule, or sign it as it is with --unverified"
            raise PublishError(f"{name} of the hub", store.url, problem, hint)
        packed = _packed(name, folder, found)
        interface = _interface(packed, found)
        number = _number(store, name, interface, commit)
        first = packed[0].metadata
        source = origin.HUB + origin.text(found.repository, commit, found.revision)
        is_dirty = any(part.metadata.kernel and part.metadata.kernel.dirty for part in packed)
        facts = Release(name, number, (), first.license, source, first.upstream, commit, bool(is_dirty))
        needed = sorted({need for part in packed for need in map(_needed, part.metadata.kernel_depends)})
        return Mirrored(publish.put(store, packed, facts, signer, report), tuple(needed))


def _needed(dependency: Dependency) -> str:
    state = dependency.revision or dependency.versions.text
    return f"{origin.HUB}{dependency.repository}" + (f"@{state}" if state else "")


def _fetched(asked: Asked, scratch: str) -> tuple[Asked, str, str]:
    """Returns the state that is meant after redirects, its commit, and the folder that it was downloaded into."""
    hub = hub_library.imported("opforge mirror hf:")
    path, api = [asked], hub.HfApi(endpoint=hub.constants.ENDPOINT)
    while True:
        folder = os.path.join(scratch, str(len(path)))
        options = {"repo_type": "kernel", "allow_patterns": PATTERNS, "local_dir": folder}
        try:
            commit = api.repo_info(asked.repository, repo_type="kernel", revision=asked.revision).sha
            api.snapshot_download(asked.repository, revision=commit, **options)
        except (hub.errors.HfHubHTTPError, hub.errors.LocalEntryNotFoundError) as error:
            what = f"{asked.repository} {asked.revision}"
            advice = "Check the name, the version, and HF_TOKEN if it is private"
            raise KernelNotFoundError(what, [f"the hub: {str(error).splitlines()[0]}"], advice) from error
        status = os.path.join(folder, hub_cache.STATUS)
        if not os.path.isfile(status):
            return asked, commit, folder
        asked = Asked(*hub_cache.destination(status))
        steps = [(step.repository, step.revision) for step in [*path, asked]]
        hub_cache.check_path(steps[:-1], steps[-1], status)
        path.append(asked)


def _packed(name: str, folder: str, asked: Asked) -> list[Packed]:
    """Returns the variants of a downloaded state, each compared with its digests and its signature."""
    build = os.path.join(folder, "build")
    places = [os.path.join(build, label) for label in sorted(os.listdir(build))] if os.path.isdir(build) else []
    places = [place for place in places if os.path.isfile(os.path.join(place, metadata.FILE))]
    # Those for a framework or a backend that is not known here are left out: nobody here could load them.
    known = [place for place in places if hub_cache.is_label(os.path.basename(place))]
    if not known:
        problem = f"it has no variant that can be read, of {len(places)}"
        raise KernelFormatError(f"{asked.repository} {asked.revision}", problem, "a kernel of a current builder")
    for place in known:
        if problem := hub_signatures.problem(name, place):
            hint = "Nothing was published"
            raise PublishError(f"{name} ({os.path.basename(place)})", "any store", problem, hint)
    return [publish.packed_variant(place) for place in known]


def _interface(packed: list[Packed], asked: Asked) -> int:
    stated = {part.metadata.version for part in packed}
    number = stated.pop() if len(stated) == 1 else None
    if number is None:
        problem = f"its variants state {'several versions' if stated else 'no version'}"
        raise KernelFormatError(f"{asked.repository} {asked.revision}", problem, "one version in all of its metadata")
    return number


def _number(store: ObjectStore, name: str, interface: int, commit: str) -> Version:
    """Returns the version of a commit: that which it has in the store, or the next rebuild of its interface."""
    current = index.read(store, name)
    rebuilds = sorted(number for number in (current.releases if current else ()) if number.interface == interface)
    for number in rebuilds:
        assert current
        place = statements.name_of(current.releases[number].digest)
        stored = store.get(place, release.MAX_BYTES)
        if stored is None:
            continue
        data = release.split(stored.data, current.releases[number].digest, place).data
        if release.parse(data, place, name, number).commit == commit:
            return number
    return Version(interface, rebuilds[-1].rebuild + 1 if rebuilds else 0)
