"""A variant that may be chosen: its label, its metadata, and the record with which its library is judged."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from opforge.cache import schema
from opforge.cache.records.schemas import RECORD_FIELDS
from opforge.cache.schema import FLAG, TEXT, TEXTS, FormatError
from opforge.foundation.versions import version_of
from opforge.packages.form import properties as form
from opforge.packages.form.properties import STABLE, WITHOUT_LIBRARY, Properties

from .environment import DEVICES

if TYPE_CHECKING:
    from opforge.packages.form.metadata import Metadata

LOADER = "0.17.2"
"""The version of the hub's own loader whose packages are read here: what a newer one needs is not known."""
JUDGED = (
    "abi",
    "built_with_torch",
    "floors",
    "interface",
    "machine",
    "needs",
    "portable",
    "requires",
    "shims",
    "target",
    "torch_target",
    "user_flags",
)
"""The fields of a record that decide whether it fits."""
OFTEN = ("built_with_torch", "interface", "portable", "user_flags")
"""Those of them that a library which opforge did not build may lack."""
RECORD = schema.record(
    {name: RECORD_FIELDS[name] for name in JUDGED if name not in OFTEN},
    optional={name: RECORD_FIELDS[name] for name in OFTEN},
)
SCHEMA = schema.record(
    {
        "label": TEXT,
        "properties": form.SCHEMA,
        "record": schema.maybe(RECORD),
        "python_depends": TEXTS,
        "depends": schema.table(TEXT),
        "own": FLAG,
        "problem": TEXT,
    }
)
"""A variant, as statements and installed releases hold it."""


class VariantCandidate(NamedTuple):
    """A variant, wherever it is."""

    label: str
    properties: Properties
    record: Mapping[str, Any] | None
    """None: no library, or one of which nothing was recorded."""
    python_depends: tuple[str, ...] = ()
    depends: Mapping[str, str] = {}
    """Other packages with ranges of their versions, or with a revision on the hub after an @."""
    own: bool = False
    """Whether opforge built it: then its record has the number of the interface."""
    problem: str = ""
    """Why it can be used nowhere; empty if it can."""

    def to_json(self) -> dict[str, Any]:
        """Returns the value, JSON-able, as receipts and releases hold it."""
        return {
            "label": self.label,
            "properties": self.properties.to_json(),
            "record": dict(self.record) if self.record is not None else None,
            "python_depends": list(self.python_depends),
            "depends": dict(self.depends),
            "own": self.own,
            "problem": self.problem,
        }


def asked_for(candidates: Iterable[VariantCandidate]) -> set[str]:
    """Returns the arguments of `environment.here` to judge candidates: their backends, and tvm-ffi if one needs it."""
    kinds = [candidate.properties for candidate in candidates]
    return {kind.backend for kind in kinds} | (
        {form.TVM} if any(kind.framework == form.TVM for kind in kinds) else set()
    )


def parse(value: Mapping[str, Any]) -> VariantCandidate:
    """Returns the value that `to_json` gave, of a file that others wrote and SCHEMA has passed. Raises FormatError."""
    return _checked(from_json(value))


def from_json(value: Mapping[str, Any]) -> VariantCandidate:
    """Returns the value that `to_json` gave, if SCHEMA has passed it. Raises FormatError."""
    stated = {**value, "properties": form.from_json(value["properties"])}
    return VariantCandidate(**{**stated, "python_depends": tuple(value["python_depends"])})


def of_metadata(label: str, stated: Metadata, folder: str, where: str) -> VariantCandidate:
    """Returns the variant in a folder; of one that opforge did not build the library is read. KernelFormatError."""
    properties = stated.properties(label, where)
    ours = stated.opforge
    depends = dict(ours.get("depends", {}))
    for needed in stated.kernel_depends:
        depends.setdefault(needed.name, needed.text)
    candidate = VariantCandidate(label, properties, None, stated.python_depends, depends)
    if stated.kernels_minver and version_of(stated.kernels_minver) > version_of(LOADER):
        newer = f"it needs the hub's loader {stated.kernels_minver} or newer"
        return candidate._replace(problem=f"{newer}, and this opforge does what {LOADER} does: install a newer one")
    try:
        return _checked(_with_record(candidate, stated, folder))
    except FormatError as error:
        from opforge.errors import KernelFormatError

        raise KernelFormatError(where, str(error), "metadata as opforge pack or kernel-builder writes it") from error


def _with_record(candidate: VariantCandidate, stated: Metadata, folder: str) -> VariantCandidate:
    properties, ours = candidate.properties, stated.opforge
    if properties.framework in WITHOUT_LIBRARY:
        return candidate
    if "record" in ours:
        record = {name: ours["record"][name] for name in JUDGED if name in ours["record"]}
        if problem := schema.problem(record, RECORD):
            raise FormatError(f"in its record {problem}")
        return candidate._replace(record=record, own=True, problem=_lie(properties, record))
    return _foreign(candidate, stated, folder)


def _checked(choice: VariantCandidate) -> VariantCandidate:
    """Returns the candidate. Raises FormatError for values that nothing could judge."""
    from opforge.accelerator.target import Target
    from opforge.packages.form import names, variant, version

    variant.check_label(choice.label, choice.properties)
    for name, text in choice.depends.items():
        names.check(name, "a dependency")
        version.parse_range(None if text.startswith("@") else text or None, "a dependency")
    record = choice.record
    if record is None:
        return choice
    cuda = record["requires"].get("cuda", "0")
    if not all(map(str.isdecimal, cuda.split("."))):
        raise FormatError(f"'requires.cuda' of its record is {ascii(cuda)[:40]}: expected a version such as 12.8")
    Target.parse(record["target"])
    return choice


def _lie(properties: Properties, record: Mapping[str, Any]) -> str:
    """Returns how a label contradicts the library's record, or an empty text."""
    machine = record.get("machine")
    if machine != properties.processor:
        return f"its label says {properties.processor}, and its library is for {machine}"
    device = str(record.get("target", "")).partition(":")[0]
    expected = DEVICES.get(properties.backend, properties.backend)
    return f"its label is for {expected}, and its library for {device}" if device != expected else ""


def _foreign(candidate: VariantCandidate, stated: Metadata, folder: str) -> VariantCandidate:
    """Returns a variant with the record that its label, its metadata and its library's own file give."""
    from opforge.builders.declaration import abi
    from opforge.builders.inspection import elf

    properties = candidate.properties
    device = DEVICES.get(properties.backend, properties.backend)
    record: dict[str, Any] = {
        "abi": abi.STABLE if properties.framework == STABLE else abi.PLAIN,
        "target": target_of(properties, stated.archs),
        "machine": properties.processor,
        "torch_target": ".".join(map(str, properties.framework_version or ())),
        "requires": {},
        "floors": {},
        "needs": [],
        "shims": [],
        "built_with_torch": "",
        "user_flags": {},
    }
    if properties.backend_version and device == "cuda":
        record["requires"] = {"cuda": ".".join(map(str, properties.backend_version))}
    problem = ""
    for library in _libraries(folder):
        try:
            read = elf.read_library(library)
        except (OSError, ValueError) as error:
            problem = problem or f"its library cannot be read: {error}"
            continue
        record |= {name: read[name] for name in ("machine", "floors", "needs", "shims")}
        problem = problem or _lie(properties, record)
    return candidate._replace(record=record, problem=problem)


def _libraries(folder: str) -> list[str]:
    names = sorted(name for name in os.listdir(folder) if name.endswith(".so")) if folder else []
    return [os.path.join(folder, name) for name in names]


def target_of(properties: Properties, capabilities: Sequence[str]) -> str:
    """Returns the target of a variant by its properties and the architectures that its metadata states."""
    from opforge.accelerator import archs
    from opforge.errors import SettingError

    device = DEVICES.get(properties.backend, properties.backend)
    arch = properties.arch
    if not arch and capabilities and device in ("cuda", "hip"):
        try:
            arch = archs.parse_list(device, "archs", ";".join(capabilities))
        except SettingError:
            arch = ()
    return f"{device}:{'+'.join(arch)}" if arch else device


def read(folder: str, label: str = "") -> tuple[VariantCandidate, Metadata]:
    """Returns the variant in a folder, and its metadata. Raises KernelFormatError, OSError."""
    from opforge.packages.form import metadata  # not on the path of what is installed

    stated = metadata.read(folder)
    name = label or os.path.basename(os.path.abspath(folder))
    if not label:
        name = _label(name, stated)
    return of_metadata(name, stated, folder, folder), stated


def _label(name: str, stated: Metadata) -> str:
    """Returns the label of a folder: its name, or what opforge's own properties give for a folder of another name."""
    from opforge.packages.form import variant

    if "properties" in stated.opforge:
        return variant.label_of(form.from_json(stated.opforge["properties"]))
    return name
