"""`metadata.json` of a variant, as the hub has it; opforge's own fields are under `x-opforge`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from opforge.cache import schema
from opforge.cache.keys import readable
from opforge.cache.schema import LIST, OBJECT, TEXT, Fields
from opforge.foundation import formats
from opforge.foundation.files import read_file

from . import names, properties, version
from .properties import Properties
from .version import Version

FILE, SIGSTORE = "metadata.json", "metadata.json.sigstore"
MAX_BYTES = 4 << 20
OURS = "x-opforge"
OURS_SCHEMA = schema.record(
    {"format": schema.version(formats.VARIANT)},
    optional={
        "name": TEXT,
        "release": TEXT,
        "properties": properties.SCHEMA,
        "library": TEXT,
        # Another opforge may have built it: it is loaded, and not offered to `.load()`.
        "record": schema.maybe(OBJECT),
        "measured": OBJECT,
        "source": OBJECT,
        "depends": schema.table(TEXT),
    },
)
"""The fields that opforge adds to the hub's."""
SOURCES = "_source"
"""The folder of a variant with the sources of its library."""
TYPES = ("cann", "cpu", "cuda", "metal", "neuron", "rocm", "tpu", "xpu")
ALGORITHMS = ("sha256", "sha512")
MAX_FILES = 10_000
EXPECTED = "metadata as opforge pack or kernel-builder writes it"
FIELDS = (
    "backend",
    "digest",
    "id",
    "kernel-depends",
    "kernels-minver",
    "license",
    "name",
    "provenance",
    "python-depends",
    "source",
    "upstream",
    "version",
    OURS,
)
"""The fields that are read. Others are kept."""


class Provenance(NamedTuple):
    """The commit that a package was made from; `dirty` if the tree held other changes."""

    commit: str
    dirty: bool


class Dependency(NamedTuple):
    """Another package that a package needs: a range of its versions, or a revision on the hub."""

    name: str
    versions: version.Range
    revision: str = ""
    """A branch, a tag or a commit of the repository; empty if a version is stated."""
    repository: str = ""
    """The name as the hub writes it, which may have capital letters; empty if it is not the hub's."""

    @property
    def text(self) -> str:
        """The range, or the revision after an @. Empty for any version."""
        return f"@{self.revision}" if self.revision else self.versions.text

    @property
    def is_hubs(self) -> bool:
        """Whether the hub can state it: it knows revisions, and versions that are whole numbers."""
        return bool(self.revision) or self.versions.text.isdecimal()


class Metadata(NamedTuple):
    """The content of a variant's metadata.json."""

    name: str
    """Without the organization."""
    id: str
    version: int | None
    license: str
    backend: str
    archs: tuple[str, ...] = ()
    python_depends: tuple[str, ...] = ()
    kernel_depends: tuple[Dependency, ...] = ()
    algorithm: str = "sha256"
    files: Mapping[str, str] | None = None
    """Path of each file -> its digest in base64. None if no digests are stated."""
    kernel: Provenance | None = None
    opforge: Mapping[str, Any] = {}
    upstream: str = ""
    source: str = ""
    kernels_minver: str = ""
    rest: Mapping[str, Any] = {}
    """Fields that are not read, kept for writing."""

    @property
    def release(self) -> Version | None:
        """The version with the count of rebuilds; None if the metadata states none."""
        if "release" in self.opforge:
            return version.parse(self.opforge["release"], FILE)
        return None if self.version is None else Version(self.version)

    def properties(self, label: str, where: str) -> Properties:
        """Returns the properties of the variant in the folder `label`. Raises KernelFormatError."""
        from .variant import stated

        return stated(label, self.opforge, self.backend, where)

    def to_json(self) -> dict[str, Any]:
        """Returns the object that is written."""
        backend: dict[str, Any] = {"type": self.backend} | ({"archs": list(self.archs)} if self.archs else {})
        needed = [_dependency_json(dependency) for dependency in self.kernel_depends]
        value: dict[str, Any] = {
            **self.rest,
            "name": self.name,
            "id": self.id,
            "license": self.license,
            "backend": backend,
            "python-depends": list(self.python_depends),
            "kernel-depends": needed,
        }
        optional = {"version": self.version, "upstream": self.upstream, "source": self.source}
        optional["kernels-minver"] = self.kernels_minver
        value |= {name: part for name, part in optional.items() if part not in ("", None)}
        if self.files is not None:
            value["digest"] = {"algorithm": self.algorithm, "files": dict(self.files)}
        if self.kernel is not None:
            value["provenance"] = {**self.rest.get("provenance", {}), "kernel": self.kernel._asdict()}
        return value | ({OURS: dict(self.opforge)} if self.opforge else {})

    def text(self) -> bytes:
        """Returns the content of the file."""
        return readable(self.to_json())


def _dependency_json(dependency: Dependency) -> dict[str, Any]:
    repository = {"repo-id": dependency.repository or dependency.name}
    if dependency.revision:
        return {**repository, "revision": dependency.revision}
    text = dependency.versions.text
    return {**repository, "version": int(text) if text.isdecimal() else text} if text else repository


def read(folder: str) -> Metadata:
    """Returns the metadata of a variant's folder. Raises KernelFormatError, OSError if it cannot be read."""
    path = os.path.join(folder, FILE)
    try:
        data = read_file(path, MAX_BYTES)
    except ValueError as error:
        from opforge.errors import KernelFormatError

        raise KernelFormatError(path, str(error).replace(f"{path} ", "it "), EXPECTED) from error
    return parse(data, path)


def parse(data: bytes, where: str = FILE) -> Metadata:
    """Returns the metadata in a text. Raises KernelFormatError."""
    fields = Fields.parse(data, where, EXPECTED, MAX_BYTES)
    backend = Fields(fields.table("backend"), f"{where}: backend", EXPECTED)
    kind = backend.text("type")
    if kind not in TYPES:
        raise backend.error(f"'type' is {ascii(kind)[:100]}: expected one of {', '.join(TYPES)}")
    identifier = fields.text("id")
    if not (identifier.isidentifier() and identifier.isascii() and len(identifier) <= 200):
        raise fields.error(f"'id' is {ascii(identifier)[:100]}: expected an identifier of Python")
    minver = fields.text("kernels-minver", "")
    if minver and not re.fullmatch(r"\d+\.\d+\.\d+", minver, re.ASCII):
        raise fields.error(f"'kernels-minver' is {ascii(minver)[:100]}, and not three numbers such as 0.17.0")
    algorithm, files = _digests(fields, where)
    rest = {name: value for name, value in fields.values.items() if name not in FIELDS}
    provenance = fields.table("provenance", {})
    builder = {name: value for name, value in provenance.items() if name != "kernel"}
    return Metadata(
        name=names.check_short(fields.text("name"), f"{where}: name"),
        id=identifier,
        version=fields.whole("version", None),
        license=fields.text("license", ""),
        backend=kind,
        archs=backend.texts("archs", ()),
        python_depends=fields.texts("python-depends"),
        kernel_depends=tuple(dependency(value, where) for value in fields.get("kernel-depends", LIST, ())),
        algorithm=algorithm,
        files=files,
        kernel=_provenance(provenance.get("kernel"), where),
        opforge=_ours(fields, where),
        upstream=fields.text("upstream", ""),
        source=fields.text("source", ""),
        kernels_minver=minver,
        rest=rest | ({"provenance": builder} if builder else {}),
    )


def _digests(fields: Fields, where: str) -> tuple[str, dict[str, str] | None]:
    from . import digests

    if fields.values.get("digest") is None:
        return "sha256", None
    digest = Fields(fields.table("digest"), f"{where}: digest", EXPECTED)
    algorithm, files = digest.text("algorithm"), digest.table("files")
    if algorithm not in ALGORITHMS:
        raise digest.error(f"'algorithm' is {ascii(algorithm)[:100]}: expected one of {', '.join(ALGORITHMS)}")
    if len(files) > MAX_FILES:
        raise digest.error(f"'files' names {len(files)} files, more than {MAX_FILES}")
    for path, value in files.items():
        if problem := digests.path_problem(path) or digests.text_problem(value, algorithm):
            raise digest.error(problem)
    return algorithm, files


def dependency(value: Any, where: str, expected: str = EXPECTED) -> Dependency:
    """Returns the dependency in an entry of `kernel-depends`, of metadata or build.toml. Raises KernelFormatError."""
    fields = Fields(value, f"{where}: kernel-depends", expected)
    repository = fields.text("repo-id")
    name = names.of_repository(repository, fields.where)
    if fields.values.get("revision") is None:
        return Dependency(name, version.parse_range(fields.values.get("version"), fields.where), "", repository)
    if fields.values.get("version") is not None:
        raise fields.error(f"{repository} has both 'version' and 'revision'")
    revision = fields.text("revision")
    if not revision.strip() or not revision.isprintable():
        raise fields.error(f"'revision' is {ascii(revision)[:100]}: expected a branch, tag or commit")
    return Dependency(name, version.ANY, revision, repository)


def _provenance(value: Any, where: str) -> Provenance | None:
    if value is None:
        return None
    fields = Fields(value, f"{where}: provenance", EXPECTED)
    commit = fields.text("commit", None) or fields.text("sha")
    if not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", commit):
        raise fields.error(f"'commit' is {ascii(commit)[:100]}, and not 40 or 64 hex digits")
    return Provenance(commit, fields.flag("dirty"))


def _ours(fields: Fields, where: str) -> Mapping[str, Any]:
    ours = fields.table(OURS, {})
    if ours and (problem := schema.problem(ours, OURS_SCHEMA)):
        raise fields.error(f"in {OURS!r} {problem}")
    if "release" in ours:
        version.parse(ours["release"], where)
    if "name" in ours:
        names.check(ours["name"], where)  # it becomes a part of paths
    return ours
