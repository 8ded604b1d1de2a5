"""Publishes a release: blobs, the signed release, the index, and last the signer's list, which makes it valid."""

from __future__ import annotations

import base64
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import IO, Any, NamedTuple

from opforge.cache import schema
from opforge.cache.schema import TEXT, record, table
from opforge.errors import KernelFormatError, PublishError, SignatureError
from opforge.foundation.files import read_file
from opforge.packages.choose import candidate
from opforge.packages.choose.candidate import VariantCandidate
from opforge.packages.form import digests, metadata, names
from opforge.packages.form.metadata import Metadata
from opforge.packages.form.same_sources import difference
from opforge.packages.form.version import Version
from opforge.remote import blobs, statements, withdrawal_lists
from opforge.remote.blobs import Tree
from opforge.remote.publish import PackedTree, send, send_file
from opforge.remote.signatures import trust_file
from opforge.remote.signatures.keys import Signer
from opforge.remote.statements import Signed
from opforge.remote.stores.protocol import ObjectStore
from opforge.remote.topics import ListedStatement
from opforge.remote.transfer import Report, ignore

from . import index, release
from .index import Edit, Index
from .release import PACKAGE, Release, Variant

CHECKS = "checks.json"
OUTCOMES = table(record({"digest": TEXT, "checks": table(TEXT)}, optional={"declared": TEXT}))
LOCAL = "local/"
ONE_RELEASE = "Remove those that are not packed any more, or pack all of them again from one commit"
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
    """A published release."""

    name: str
    version: Version
    digest: str
    size: int
    """Bytes of all blobs."""
    is_new: bool
    """False if the store had this release already."""


class There(NamedTuple):
    """The content of a store under a version, before it is published."""

    own: str = ""
    """The digest of its release in the signer's list; empty if that names none."""
    listed: str = ""
    """The release in the index."""
    signed: Signed | None = None
    """That release; None if the store has none."""
    binds: bool = False
    """Whether it is the one release of this version: no other may take its place."""

    @property
    def digest(self) -> str:
        """The digest of the release: what the list says counts."""
        return self.own or self.listed


def packed_variants(folder: str) -> list[Packed]:
    """Returns the variants in `folder` or its build/, or the folder itself, after comparing files with digests.

    Raises KernelFormatError, PublishError, OSError.
    """
    parent = os.path.join(folder, "build") if os.path.isdir(os.path.join(folder, "build")) else folder
    folders = [os.path.join(parent, name) for name in sorted(os.listdir(parent))]
    if os.path.isfile(os.path.join(folder, metadata.FILE)):
        folders = [os.path.abspath(folder)]
    variants = [packed_variant(path) for path in folders if os.path.isfile(os.path.join(path, metadata.FILE))]
    if not variants:
        raise KernelFormatError(folder, "there is no variant in it", "a folder that opforge pack has written")
    return variants


def packed_variant(path: str) -> Packed:
    """Returns the variant in a folder, after comparing files with digests. Raises what `packed_variants` raises."""
    text = read_file(os.path.join(path, metadata.FILE), metadata.MAX_BYTES)
    stated = metadata.parse(text, os.path.join(path, metadata.FILE))
    # A package of an older builder states no digests.
    differences = digests.problems(path, stated.files, stated.algorithm) if stated.files is not None else []
    if differences:
        raise PublishError(path, "any remote", differences[0], "It was changed after it was packed: pack it again")
    files = dict(stated.files) if stated.files and stated.algorithm == "sha256" else digests.of_folder(path)
    digest = digests.tree_digest(files, text)
    return Packed(path, os.path.basename(path), stated, digest, files | {metadata.FILE: digests.of_bytes(text)})


def publish(
    store: ObjectStore,
    folder: str,
    signer: Signer | None,
    allow_dirty: bool = False,
    report: Report = ignore,
    benchmarks: Sequence[Mapping[str, Any]] = (),
) -> Published:
    """Publishes the release in a folder, and returns it; one that is there already changes nothing.

    `benchmarks` are what was measured of it, in the form of release.BENCHMARK.

    Raises PublishError if the store has other files under this version, or the sources differed from their commit;
    KernelFormatError, StoreError, OSError.
    """
    packed = packed_variants(folder)
    facts = facts_of(packed, folder, store.url, allow_dirty)._replace(benchmarks=tuple(benchmarks))
    return put(store, packed, facts, signer, report)


def facts_of(packed: Sequence[Packed], folder: str, where: str, allow_dirty: bool = False) -> Release:
    """Returns the release that variants are, without variants of its own; `where` is what it is published to.

    Raises PublishError if their names or versions differ, or their sources differed from their commit.
    """
    name, number = _identity(packed, folder, where)
    first = packed[0].metadata
    dirty = any(part.metadata.kernel and part.metadata.kernel.dirty for part in packed)
    if dirty and not allow_dirty:
        reason = "its sources differed from their commit when it was packed"
        raise PublishError(f"{name} {number}", where, reason, "Commit them and pack again, or add --allow-dirty")
    commit = first.kernel.commit if first.kernel else ""
    return Release(name, number, (), first.license, first.source, first.upstream, commit, dirty)


def put(
    store: ObjectStore, packed: list[Packed], facts: Release, signer: Signer | None, report: Report = ignore
) -> Published:
    """Publishes variants as the release that `facts` has, without variants of its own. Raises what `publish` raises."""
    subject, label, key, own = f"{release.KIND}:{facts.name}", facts.version.canonical, "", ""
    if signer:
        key = signer(b"").name
        listed = withdrawal_lists.own(store, signer, key)  # an older list ends it here
        own = listed.released_as(f"{subject}@{label}")
        withdrawal_lists.require_room(store, listed, {subject: {label: own or "0" * 64}})
    there = _there(store, facts, signer, own)
    if there.binds:
        done = _same(store, there, packed, facts, signer)
        index.change(store, facts.name, _listing(store, there, done.digest, facts))
    else:
        with ExitStack() as stack:
            done = _publish(store, there, packed, facts, signer, report, stack)
    if signer:
        withdrawal_lists.publish(store, signer, key, restore=True, released={subject: {label: done.digest}})
    return done


def _there(store: ObjectStore, facts: Release, signer: Signer | None, own: str = "") -> There:
    """Returns the state of a store before a version is published. `own` is its digest in the signer's list.

    A release that the store has lost does not bind: it is put back, as its blobs are. `gc` may have removed it just
    now, before the one who has named it again puts it back. Raises StoreError, KernelFormatError, TrustFileError.
    """
    current = index.read(store, facts.name)
    entry = current.releases.get(facts.version) if current else None
    there = There(own, entry.digest if entry else "")
    file = statements.name_of(there.digest) if there.digest else ""
    stored = store.get(file, release.MAX_BYTES) if file else None
    if stored is None:
        return there
    signed = release.split(stored.data, there.digest, f"{store.url}/{file}")
    # Nobody signs the index. A release that it alone names may be anybody's, with blobs and facts of his own.
    binds = own != "" or signer is None or signer(signed.data) in signed.signatures or _is_trusted(signed, facts.name)
    return there._replace(signed=signed, binds=binds)


def _is_trusted(signed: Signed, name: str) -> bool:
    """Returns whether a key has signed a release that this machine trusts for its name. Raises TrustFileError."""
    try:
        return bool(
            trust_file.verify(name, signed.data, signed.signatures, f"{release.KIND}:{name}", trust_file.read())
        )
    except SignatureError:
        return False


def _publish(
    store: ObjectStore,
    there: There,
    packed: list[Packed],
    facts: Release,
    signer: Signer | None,
    report: Report,
    stack: ExitStack,
) -> Published:
    """Publishes a release that the store has not, or that it has from nobody whose word counts.

    `stack` holds the blobs: one may have to be sent again.
    """
    name, number = facts.name, facts.version
    what, trees, variants = f"{name} {number}", list[PackedTree](), list[Variant]()
    checks = _checks(packed[0].folder)
    for part in packed:
        file = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - the stack closes it
        trees.append(PackedTree(_packed(part, file, store.url), file, report, part.label))
        outcomes = checks.get((part.label, part.digest), UNRECORDED)
        variants.append(Variant(_candidate(part), trees[-1].tree, outcomes))
    new = facts._replace(variants=tuple(variants))
    signed = statements.signed(new.statement(), [signer] if signer else [])
    release.parse(signed.data, what, name, number)  # what nobody could read must not be published
    if there.own not in ("", signed.digest):
        raise _lost(store, what, "the list of its key names this version")
    _refuse_others(store, there, signed, what)
    edit = _listing(store, there if signer else There(), signed.digest, facts)
    try:
        is_new = send(store, PACKAGE, signed, trees, lambda: index.change(store, name, edit) is not None, what)
    except PublishError:  # another was quicker; perhaps with the same files, and other outcomes of the checks
        quicker = _there(store, facts, signer)
        if not quicker.binds:
            raise
        return _same(store, quicker, packed, facts, signer)
    return Published(name, number, signed.digest, sum(part.blob.size for part in variants), is_new)


def _refuse_others(store: ObjectStore, there: There, own: Signed, what: str) -> None:
    """Raises PublishError if keys that are not trusted here have signed another release of this version.

    Whether they may is not known here, and a version must not have two releases by accident.
    """
    if there.signed and there.signed.signatures and there.signed.digest != own.digest:
        others = ", ".join(sorted(there.signed.signers))
        reason = f"this version was published already, signed by {others}, which is not trusted here for it"
        file = statements.name_of(there.signed.digest)
        hint = f"Trust that key: opforge key trust NAME:KEY --for SCOPE. If the key is unknown, remove {file}"
        raise PublishError(what, store.url, reason, f"{hint}, and publish again")


def _packed(part: Packed, file: IO[bytes], url: str) -> Tree:
    """Returns the tree of a variant after writing its blob. Raises PublishError for files that have just changed."""
    tree, hashes = blobs.pack(part.folder, [*digests.files_of(part.folder), metadata.FILE], file)
    stated = {path: base64.b64decode(value).hex() for path, value in part.files.items()}
    if differing := [path for path in {*hashes, *stated} if hashes.get(path) != stated.get(path)]:
        raise PublishError(part.folder, url, f"{min(differing)} changed while it was published", "Publish it again")
    return tree


def _identity(packed: Sequence[Packed], folder: str, url: str) -> tuple[str, Version]:
    identities = {(str(part.metadata.opforge.get("name", "")), part.metadata.release) for part in packed}
    if len(identities) != 1:
        listed = ", ".join(sorted(f"{name} {number}" for name, number in identities))
        raise PublishError(folder, url, f"its variants are of several releases: {listed}", ONE_RELEASE)
    name, number = identities.pop()
    if not name or number is None:
        hint = "Pack it with opforge pack --name ORG/NAME --version VERSION"
        raise PublishError(folder, url, "its metadata states no name or no version", hint)
    commits = sorted({part.metadata.kernel.commit[:12] if part.metadata.kernel else "none" for part in packed})
    if len(commits) > 1:
        raise PublishError(folder, url, f"its variants are of several commits: {', '.join(commits)}", ONE_RELEASE)
    for part in packed:
        if path := difference(packed[0].metadata, part.metadata):
            reason = f"{packed[0].label} and {part.label} were packed from different contents of {path}"
            raise PublishError(folder, url, reason, ONE_RELEASE)
    names.check(name, folder)
    if name.startswith(LOCAL):
        raise PublishError(
            name,
            url,
            "local stands for no organization",
            "Name one in kernel.toml, or pack it again with --name ORG/NAME",
        )
    return name, number


def _same(store: ObjectStore, there: There, packed: list[Packed], facts: Release, signer: Signer | None) -> Published:
    """Returns the release that is there already, after signing it too. Raises PublishError if it has other files."""
    assert there.signed is not None  # it binds
    number, what = facts.version, f"{facts.name} {facts.version}"
    where = f"{store.url}/{statements.name_of(there.digest)}"
    stated = release.parse(there.signed.data, where, facts.name, number)
    if release.tree_of(stated.variants) == {part.label: part.digest for part in packed}:
        _restore(store, stated, packed)
        if signer:
            _sign(store, there.signed, stated, packed, facts, signer)
        return Published(facts.name, number, there.digest, sum(part.blob.size for part in stated.variants), False)
    raise PublishError(what, store.url, "this version was published with other files", _raise_it(number))


def _raise_it(number: Version) -> str:
    following = Version(number.interface, number.rebuild + 1)
    return f"A version never changes: raise it, to {following} for one, and pack it again"


def _lost(store: ObjectStore, what: str, named: str) -> PublishError:
    hint = "Restore it from a mirror, or publish the package under another version"
    return PublishError(what, store.url, f"{named}, and its release is missing", hint)


def _sign(
    store: ObjectStore, signed: Signed, there: Release, packed: list[Packed], facts: Release, signer: Signer
) -> None:
    """Adds a signature to a release that another trusted key has signed: so a new key takes the place of an old one.

    Raises PublishError if it says something else than this key would say, but for what was tried and measured.
    """
    named = signer(signed.data)
    if named in signed.signatures:
        return
    by_label = {part.label: part for part in there.variants}
    variants = tuple(by_label[part.label]._replace(candidate=_candidate(part)) for part in packed)
    if facts._replace(variants=variants, benchmarks=there.benchmarks).statement().data() != signed.data:
        others = ", ".join(sorted(signed.signers))
        reason = f"it was published with other facts, signed by {others or 'nobody'}: its license, source or commit"
        hint = "Pack it from the same commit, or publish it under another version"
        raise PublishError(f"{there.name} {there.version}", store.url, reason, hint)
    send_file(store, Signed(signed.data, (named,)), f"{there.name} {there.version}")


def _candidate(part: Packed) -> VariantCandidate:
    return candidate.of_metadata(part.label, part.metadata, part.folder, part.folder)


def _restore(store: ObjectStore, there: Release, packed: list[Packed]) -> None:
    """Puts the blobs of a release that the store has lost: nothing else could. Those that it has stay as they are."""
    stated = {part.label: part.blob for part in there.variants}
    for part in packed:
        with tempfile.TemporaryFile() as file:
            blob = _packed(part, file, store.url).blob
            if blob == stated[part.label]:  # another version of zstd may pack it otherwise
                store.put_if_absent(blob.name, file)


def _listing(store: ObjectStore, there: There, digest: str, facts: Release) -> Edit:
    """Returns the change of an index that adds a release. It raises PublishError if the version has other files.

    What was `there` did not bind, or the signer's list says otherwise: it is replaced.
    """
    number = facts.version

    def edit(current: Index) -> Index | None:
        listed = current.releases.get(number)
        if listed is not None and listed.digest not in (digest, there.listed):
            reason = "another has just published this version with other files"
            raise PublishError(f"{facts.name} {number}", store.url, reason, _raise_it(number))
        if listed is not None and listed.digest == digest:
            return None
        return current._replace(releases={**current.releases, number: ListedStatement(digest)})

    return edit


def _checks(folder: str) -> Mapping[tuple[str, str], Mapping[str, str]]:
    """Returns the outcome of each variant's checks, by label and digest, as `opforge pack` left it."""
    outcomes = outcomes_in(os.path.dirname(folder))
    return {(label, outcome["digest"]): outcome["checks"] for label, outcome in outcomes.items()}


def outcomes_in(build: str) -> dict[str, Any]:
    """Returns the digest and the checks of each variant that was packed in a folder, by its label; none if damaged."""
    try:
        return dict(schema.read(os.path.join(build, CHECKS), OUTCOMES))
    except (OSError, ValueError):
        return {}
