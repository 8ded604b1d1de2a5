"""Publishes a release: its blobs, the signed release, then the index. One that is killed leaves nothing visible."""

from __future__ import annotations

import functools
import json
import os
import tempfile
from collections.abc import Mapping
from typing import IO, Any, NamedTuple

from opforge.cache.filesystem.files import UNREADABLE, read_file
from opforge.errors import KernelFormatError, PublishError
from opforge.packages.choose import candidate
from opforge.packages.form import digests, metadata, names
from opforge.packages.form.metadata import Metadata
from opforge.packages.form.version import Version
from opforge.remote import removals
from opforge.remote.offers import Blob
from opforge.remote.signatures.keys import Signer
from opforge.remote.stores.protocol import ObjectStore

from . import index, release, tree_blob
from .index import Edit, Index, Listed
from .release import Release, SignedRelease, Variant
from .transfer import Report, Reported, ignore
from .tuf.changes import recorder

CHECKS = "checks.json"
LOCAL = "local/"
UNRECORDED = {"import": "not run: no outcome was recorded when it was packed"}


class Packed(NamedTuple):
    """A variant in a folder, as `opforge pack` has written it."""

    folder: str
    label: str
    metadata: Metadata
    digest: str
    files: Mapping[str, str]
    """The SHA-256 of each file, that of the metadata too."""


class Published(NamedTuple):
    """What was published."""

    name: str
    version: Version
    digest: str
    size: int
    """Bytes of all blobs."""
    is_new: bool
    """False if the store had this release already."""


def packed_variants(folder: str) -> list[Packed]:
    """Returns the variants in `folder` or its build/, or the folder itself, after comparing files with digests.

    Raises KernelFormatError, PublishError, OSError.
    """
    parent = os.path.join(folder, "build") if os.path.isdir(os.path.join(folder, "build")) else folder
    folders = [os.path.join(parent, name) for name in sorted(os.listdir(parent))]
    if os.path.isfile(os.path.join(folder, metadata.FILE)):
        folders = [os.path.abspath(folder)]
    variants = []
    for path in folders:
        name = os.path.basename(path)
        if not os.path.isfile(os.path.join(path, metadata.FILE)):
            continue
        text = read_file(os.path.join(path, metadata.FILE), metadata.MAX_BYTES)
        stated = metadata.parse(text, os.path.join(path, metadata.FILE))
        # A package of an older builder states no digests.
        differences = digests.problems(path, stated.files, stated.algorithm) if stated.files is not None else []
        if differences:
            raise PublishError(path, "any remote", differences[0], "It was changed after it was packed: pack it again")
        files = dict(stated.files) if stated.files and stated.algorithm == "sha256" else digests.of_folder(path)
        digest = digests.tree_digest(files, text)
        variants.append(Packed(path, name, stated, digest, files | {metadata.FILE: digests.of_bytes(text)}))
    if not variants:
        raise KernelFormatError(folder, "there is no variant in it", "a folder that opforge pack has written")
    return variants


def publish(
    store: ObjectStore,
    folder: str,
    signer: Signer | None,
    allow_dirty: bool = False,
    report: Report = ignore,
) -> Published:
    """Publishes the release in a folder, and returns it; one that is there already changes nothing.

    Raises PublishError if the store has other files under this version, or the sources differed from their commit;
    KernelFormatError, StoreError, OSError.
    """
    packed = packed_variants(folder)
    name, number = _identity(packed, folder, store.url)
    dirty = any(part.metadata.kernel and part.metadata.kernel.dirty for part in packed)
    what = f"{name} {number}"
    if dirty and not allow_dirty:
        reason = "its sources differed from their commit when it was packed"
        raise PublishError(what, store.url, reason, "Commit them and pack again, or add --allow-dirty")
    record = recorder(store, name, signer)
    current, _version = index.read(store, name)
    if current and number in current.releases:
        done = _same(store, current, packed, what, number)
        record(_listing(store, number, done.digest, what))
        return done
    checks, variants, had = _checks(packed[0].folder), [], list[tuple[Packed, Blob]]()
    for part in packed:
        with tempfile.TemporaryFile() as file:
            blob = _blob(part, file, store.url)
            file.seek(0)
            reported: Any = Reported(file, report, part.label, blob.size)
            if not store.put_if_absent(blob.name, reported):
                had.append((part, blob))
        choice = candidate.of_metadata(part.label, part.metadata, part.folder, part.folder)
        variants.append(Variant(choice, part.digest, blob, checks.get((part.label, part.digest), UNRECORDED)))
    first = packed[0].metadata
    made_release = Release(
        name,
        number,
        tuple(variants),
        first.license,
        first.source,
        first.upstream,
        first.kernel.commit if first.kernel else "",
        dirty,
    )
    data = made_release.data()
    release.parse(data, what, name, number)  # what nobody could read must not be published
    signed = SignedRelease(data, (signer(data),) if signer else ())
    store.put_if_absent(release.file_name(signed.digest), signed.file())
    for part, blob in had:
        removals.keep(store, blob.name, functools.partial(_send, store, part, report))
    edit = _listing(store, number, signed.digest, what)
    try:
        is_new = index.change(store, name, edit) is not None
    except PublishError:  # another was quicker; perhaps with the same files, and other outcomes of the checks
        current, _version = index.read(store, name)
        if current is None or number not in current.releases:
            raise
        done = _same(store, current, packed, what, number)
        record(_listing(store, number, done.digest, what))
        return done
    record(edit)
    return Published(name, number, signed.digest, sum(part.blob.size for part in variants), is_new)


def _send(store: ObjectStore, part: Packed, report: Report) -> None:
    """Puts the blob of a variant into the store again. Raises PublishError, StoreError, OSError."""
    with tempfile.TemporaryFile() as file:
        blob = _blob(part, file, store.url)
        file.seek(0)
        reported: Any = Reported(file, report, part.label, blob.size)
        store.put_if_absent(blob.name, reported)


def _blob(part: Packed, file: IO[bytes], url: str) -> Blob:
    """Returns the blob of a variant after writing it. Raises PublishError for files that have just changed."""
    blob, files = tree_blob.pack(part.folder, file)
    differing = [path for path in {*files, *part.files} if files.get(path) != part.files.get(path)]
    if differing:
        raise PublishError(part.folder, url, f"{min(differing)} changed while it was published", "Publish it again")
    return blob


def _identity(packed: list[Packed], folder: str, url: str) -> tuple[str, Version]:
    identities = {(str(part.metadata.opforge.get("name", "")), part.metadata.release) for part in packed}
    if len(identities) != 1:
        listed = ", ".join(sorted(f"{name} {number}" for name, number in identities))
        raise PublishError(folder, url, f"its variants are of several releases: {listed}", "Publish one at a time")
    name, number = identities.pop()
    if not name or number is None:
        hint = "Pack it with opforge pack --name ORG/NAME --version VERSION"
        raise PublishError(folder, url, "its metadata states no name or no version", hint)
    commits = sorted({part.metadata.kernel.commit[:12] if part.metadata.kernel else "none" for part in packed})
    if len(commits) > 1:
        hint = "Remove those that are not packed any more, or pack all of them from one commit"
        raise PublishError(folder, url, f"its variants are of several commits: {', '.join(commits)}", hint)
    names.check(name, folder)
    if name.startswith(LOCAL):
        raise PublishError(name, url, "its name has no organization", "Pack it again with --name ORG/NAME")
    return name, number


def _same(store: ObjectStore, current: Index, packed: list[Packed], what: str, number: Version) -> Published:
    """Returns the release that is there already. Raises PublishError if it has other files: a version is for ever."""
    digest = current.releases[number].digest
    where = f"{store.url}/{release.file_name(digest)}"
    stored = store.get(release.file_name(digest), release.MAX_BYTES)
    if stored is None:
        hint = "Restore it from a mirror, or publish the package under another version"
        raise PublishError(what, store.url, "its index names this version, and its release is missing", hint)
    there = release.parse(release.split(stored.data, digest, where).data, where, current.name, number)
    if release.tree_of(there.variants) == {part.label: part.digest for part in packed}:
        _restore(store, there, packed)
        return Published(current.name, number, digest, sum(part.blob.size for part in there.variants), False)
    hint = f"A version never changes: raise it, to {Version(number.interface, number.rebuild + 1)} for one"
    raise PublishError(what, store.url, "this version was published with other files", hint)


def _restore(store: ObjectStore, there: Release, packed: list[Packed]) -> None:
    """Puts the blobs of a release that the store has lost: nothing else could. Those that it has stay as they are."""
    blobs = {part.label: part.blob for part in there.variants}
    for part in packed:
        with tempfile.TemporaryFile() as file:
            blob = _blob(part, file, store.url)
            if blob == blobs[part.label]:  # another version of zstd may pack it otherwise
                store.put_if_absent(blob.name, file)


def _listing(store: ObjectStore, number: Version, digest: str, what: str) -> Edit:
    """Returns the change of an index that adds a release. It raises PublishError if the version has other files."""

    def edit(current: Index) -> Index | None:
        listed = current.releases.get(number)
        if listed is None:
            return current._replace(releases={**current.releases, number: Listed(digest)})
        if listed.digest != digest:
            hint = f"A version never changes: raise it, to {Version(number.interface, number.rebuild + 1)} for one"
            raise PublishError(what, store.url, "another has just published this version with other files", hint)
        return None

    return edit


def _checks(folder: str) -> Mapping[tuple[str, str], Mapping[str, str]]:
    """Returns the outcome of each variant's checks, by label and digest, as `opforge pack` left it."""
    try:
        value: Any = json.loads(read_file(os.path.join(os.path.dirname(folder), CHECKS)))
        return {(label, part["digest"]): dict(part["checks"]) for label, part in value.items()}
    except UNREADABLE:
        return {}


def yank(store: ObjectStore, name: str, number: Version, reason: str, signer: Signer | None = None) -> bool:
    """Marks a release as yanked. Returns whether that changed the index.

    `signer` is for a registry with TUF metadata. Raises PublishError if there is no such release or the reason cannot
    be shown, StoreError, KernelFormatError.
    """
    problem = "" if reason.strip() else "a reason is missing"
    if len(reason) > index.MAX_REASON:
        problem = f"the reason has {len(reason)} characters, more than {index.MAX_REASON}"
    odd = next((char for char in reason if not char.isprintable()), "")
    if odd:
        problem = f"the reason holds {odd!a}, which cannot be shown"
    if problem:
        hint = "Say in one line why nobody should choose it"
        raise PublishError(f"{name} {number}", store.url, problem, hint, "yanked in")
    return _mark(store, name, number, reason, signer)


def unyank(store: ObjectStore, name: str, number: Version, signer: Signer | None = None) -> bool:
    """Takes back a yank, as `yank` does it. Returns whether that changed the index."""
    return _mark(store, name, number, "", signer)


def _mark(store: ObjectStore, name: str, number: Version, reason: str, signer: Signer | None) -> bool:
    record = recorder(store, name, signer)

    def edit(current: Index) -> Index | None:
        listed = current.releases.get(number)
        if listed is None:
            versions = ", ".join(map(str, sorted(current.releases, reverse=True)[:10])) or "none"
            action = "yanked in" if reason else "unyanked in"
            hint = f"There are: {versions}"
            raise PublishError(f"{name} {number}", store.url, "there is no such release", hint, action)
        if listed.yanked == reason:
            return None
        return current._replace(releases={**current.releases, number: listed._replace(yanked=reason)})

    is_changed = index.change(store, name, edit) is not None
    return record(edit) or is_changed
