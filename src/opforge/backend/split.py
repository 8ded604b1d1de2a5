"""`opforge split-wheel`: a wheel with built ops becomes one wheel for each kind of machine (wheel variants).

The wheel holds an op's libraries for several targets, one below another in the layers of its packages. A variant is the
same wheel with fewer of these. So it is made from the finished wheel, after auditwheel's repair, whichever build system
made that.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from opforge.accelerator.target import Target
from opforge.builders.inspection import instructions
from opforge.builders.inspection.reader import FileFormatError
from opforge.builders.lookup.device_requirements import driver_floor
from opforge.cache.layout import PACKAGE_LAYER, Layout
from opforge.cache.records.entry import read_record
from opforge.errors import BuilderError
from opforge.foundation.versions import version_of
from opforge.packages.audit import measure

from . import variant_format
from .variant_format import NULL, Variant
from .wheel_file import NAME, Wheel

WHO = "opforge split-wheel"
PARTIAL = "or leave it out of the variants for which it has no code (`partial`, --partial)"


class Built(NamedTuple):
    """One library of an op in an unpacked wheel."""

    layer: str
    """The layer's folder, relative to the wheel's."""
    name: str
    """The name of its entry."""
    op: str
    target: Target
    record: Mapping[str, Any]


class Written(NamedTuple):
    """A wheel that was written."""

    name: str
    label: str
    """Empty for the plain wheel."""
    properties: variant_format.Properties
    size: int
    """Bytes."""


def split(
    wheel: str,
    wheel_directory: str,
    labels: Mapping[str, str] | None = None,
    plain: str = "all",
    partial: bool = False,
) -> list[Written]:
    """Writes a wheel's variants, and the plain wheel, into a folder. The index of the variants there is written anew.

    Args:
        wheel: A wheel with built ops, after its repair.
        wheel_directory: Where the wheels go. It may be the folder of `wheel`, and is made if it is missing.
        labels: Target -> the label of its variant, for those that are to have another one than the default.
        plain: What the plain wheel holds, the one for installers that know no variants: "all" code, or that of the
            variant "null".
        partial: Whether a variant may lack ops. Such an op is built when it is loaded, as it is without a wheel.

    Raises:
        BuilderError: The wheel has no ops, its ops cannot be split, or a library needs more than its label says. Then
            nothing was written.
        OSError: A file cannot be read or written.
    """
    with tempfile.TemporaryDirectory(prefix="opforge-split-") as scratch:
        opened = Wheel.open(wheel, os.path.join(scratch, "whole"), WHO)
        libraries = _libraries(opened.folder)
        if not libraries:
            raise _error(wheel, "it holds no built op", "Name a wheel that was built with [tool.opforge]")
        variants = variants_of(_targets_by_op(libraries), _drivers(libraries), labels, partial)
        _audit(opened.folder, libraries)
        made = os.path.join(scratch, "made")
        os.mkdir(made)
        whole = opened.write(made, opened.tag)
        for variant in variants:
            kept = [library for library in libraries if _belongs(library, variant)]
            part = opened._replace(folder=_part(opened, libraries, kept, os.path.join(scratch, variant.label)))
            part.write(made, opened.tag, variant.label, variant_format.document([variant]))
            if variant.label == NULL and plain == "null":
                os.unlink(os.path.join(part.folder, part.metadata, variant_format.METADATA))
                part.write(made, opened.tag)
        if plain == "null" and os.path.abspath(wheel) == os.path.abspath(os.path.join(wheel_directory, whole)):
            raise _error(wheel, "a smaller plain wheel would replace it", "Write the variants into another folder")
        with open(os.path.join(made, variant_format.index_name(whole)), "wb") as file:
            file.write(_index(wheel_directory, whole, variants))
        os.makedirs(wheel_directory, exist_ok=True)
        for name in sorted(os.listdir(made)):
            _move(os.path.join(made, name), os.path.join(wheel_directory, name))
    names = [(whole, Variant("", Target("cpu")))]
    names += [(variant_format.wheel_name(whole, variant.label), variant) for variant in variants]
    sizes = (os.path.getsize(os.path.join(wheel_directory, name)) for name, _variant in names)
    return [Written(name, each.label, each.properties, size) for (name, each), size in zip(names, sizes, strict=True)]


def variants_of(
    ops: Mapping[str, Sequence[Target]],
    drivers: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    partial: bool = False,
) -> list[Variant]:
    """Returns the variants of a wheel whose ops are built for these targets: one for each target, and `null`.

    `drivers` has the oldest CUDA of a target's driver, and `labels` the label of a target, both by the target's text.
    The variant `null` has the target of the processor's lowest level. Raises BuilderError for what cannot be split.
    """
    _check_properties(ops)
    if not partial:
        _check_whole(ops)
    drivers, labels = drivers or {}, labels or {}
    targets = sorted({target for each in ops.values() for target in each}, key=_rank)
    if unknown := sorted(set(labels) - {str(target) for target in targets}):
        advice = f"The targets are {', '.join(map(str, targets))}"
        raise BuilderError(WHO, f"a label is given to {', '.join(unknown)}, for which nothing is built", advice)
    found = [Variant(NULL, next((target for target in targets if target.device == "cpu"), Target("cpu")))]
    for target in targets:
        driver = drivers.get(str(target), "")
        properties = variant_format.properties(target, driver)
        if not properties:
            continue
        label = labels.get(str(target)) or variant_format.default_label(target, driver)
        problem = variant_format.label_problem(label)
        same = next((other for other in found if other.label == label), None)
        problem = problem or (f"{same.target} and {target} have the label {label!r}" if same else "")
        if problem:
            raise BuilderError(WHO, problem, "Give each target a label of its own: --label TARGET=LABEL")
        same = next((other for other in found if other.properties == properties), None)
        if same:
            problem = f"no property tells code for {same.target} from code for {target}: an installer would take any"
            raise BuilderError(WHO, problem, "Build for one of them, or for both in one target")
        found.append(Variant(label, target, properties))
    return found


def _check_properties(ops: Mapping[str, Sequence[Target]]) -> None:
    """Raises BuilderError for a target that no property can describe."""
    for target in sorted({target for each in ops.values() for target in each}, key=_rank):
        # One wheel is for one machine: of a processor without levels there is only the variant `null`.
        problem = variant_format.target_problem(target) if target.device != "cpu" else ""
        if problem:
            raise BuilderError(WHO, problem, "Build that code into a wheel of its own, without variants")


def _check_whole(ops: Mapping[str, Sequence[Target]]) -> None:
    """Raises BuilderError if a variant would lack an op: it has no code for the CPU, or other targets than the rest."""
    for op, targets in ops.items():
        if not any(target.device == "cpu" for target in targets):
            problem = f"{op} is built for {' and '.join(map(str, targets))} alone: the variant {NULL!r} would lack it"
            raise BuilderError(WHO, problem, f"Give the op code for the CPU, {PARTIAL}")
    for device in sorted({target.device for targets in ops.values() for target in targets}):
        sets = {op: sorted({str(each) for each in targets if each.device == device}) for op, targets in ops.items()}
        if differing := [op for op in sets if sets[op] and sets[op] != max(sets.values(), key=len)]:
            most = max(sets, key=lambda op: len(sets[op]))
            problem = (
                f"{most} is built for {', '.join(sets[most])}, and {differing[0]} for {', '.join(sets[differing[0]])}:"
                " a variant would lack an op"
            )
            raise BuilderError(WHO, problem, f"Build all ops for the same targets, {PARTIAL}")


def _index(wheel_directory: str, whole: str, variants: Sequence[Variant]) -> bytes:
    """Returns the list of a release's variants: these of one wheel, and those of other wheels in the folder.

    Raises BuilderError if the folder has variants of the same wheel that are not written now, or one of another wheel
    with the same label and other properties.
    """
    found = {variant.label: variant for variant in variants}
    start, stem = "-".join(whole.split("-")[:2]) + "-", whole.removesuffix(".whl")
    for name in sorted(os.listdir(wheel_directory)) if os.path.isdir(wheel_directory) else ():
        base, _, label = name.removesuffix(".whl").rpartition("-")
        if not (name.startswith(start) and name.endswith(".whl")) or NAME.match(name):
            continue
        if base == stem:
            if label not in found:
                raise _error(name, f"it is in {wheel_directory}, and is not a variant of this wheel", "Remove it")
            continue
        properties = _properties(os.path.join(wheel_directory, name), label)
        if label in found and found[label].properties != properties:
            problem = f"it has the label {label!r} and other properties than the new variant"
            raise _error(name, problem, "Remove it, or give one of them another label")
        found.setdefault(label, Variant(label, Target("cpu"), properties))
    return variant_format.document([found[label] for label in sorted(found)])


def _properties(path: str, label: str) -> variant_format.Properties:
    """Returns the properties that a variant's own metadata states. Raises BuilderError if it has none."""
    try:
        with zipfile.ZipFile(path) as archive:
            member = next(name for name in archive.namelist() if name.endswith(f".dist-info/{variant_format.METADATA}"))
            return variant_format.read(archive.read(member), label)
    except (StopIteration, KeyError, ValueError, OSError, zipfile.BadZipFile) as error:
        raise _error(path, f"it is not a variant that can be read ({error!r})", "Remove it") from error


def _libraries(folder: str) -> list[Built]:
    """Returns the libraries in an unpacked wheel. Raises BuilderError if a record is damaged."""
    found = []
    for parent, names, _files in os.walk(folder):
        if PACKAGE_LAYER not in names:
            continue
        layer = os.path.join(parent, PACKAGE_LAYER)
        entries = Layout(layer).path("entries")
        for name in sorted(os.listdir(entries)) if os.path.isdir(entries) else ():
            try:
                record = read_record(os.path.join(entries, name)) or {}
                built = Built(
                    os.path.relpath(layer, folder), name, str(record["op"]), Target.parse(record["target"]), record
                )
                driver_floor(record)
            except (KeyError, TypeError, AttributeError, NotADirectoryError) as error:
                raise _error(os.path.join(entries, name), "its record is damaged", "Build the wheel again") from error
            found.append(built)
    return found


def _targets_by_op(libraries: Iterable[Built]) -> dict[str, list[Target]]:
    ops: dict[str, list[Target]] = {}
    for library in libraries:
        ops.setdefault(library.op, []).append(library.target)
    return ops


def _drivers(libraries: Iterable[Built]) -> dict[str, str]:
    """Returns for each target the oldest CUDA of a driver that loads all libraries for it."""
    floors: dict[str, str] = {}
    for library in libraries:
        floor, name = driver_floor(library.record), str(library.target)
        floors[name] = max(floors.get(name, ""), floor, key=version_of)
    return floors


def _belongs(library: Built, variant: Variant) -> bool:
    """Returns whether a variant holds a library.

    One for a device holds the code of all levels of the processor too: it is small.
    """
    if variant.target.device == "cpu":
        return library.target == variant.target
    return library.target == variant.target or library.target.device == "cpu"


def _part(opened: Wheel, libraries: Sequence[Built], kept: Sequence[Built], folder: str) -> str:
    """Makes a folder with a wheel's files but for the libraries that are not kept. Returns it."""

    def link(source: str, target: str) -> None:
        (shutil.copy2 if f"{os.sep}{opened.metadata}{os.sep}" in source else os.link)(source, target)

    shutil.copytree(opened.folder, folder, copy_function=link)
    for library in libraries:
        if library in kept:
            continue
        layout = Layout(os.path.join(folder, library.layer))
        shutil.rmtree(os.path.join(layout.path("entries"), library.name))
        descriptions = layout.path("descriptions")
        for description in os.listdir(descriptions) if os.path.isdir(descriptions) else ():
            pointer = os.path.join(descriptions, description, library.name)
            if os.path.exists(pointer):
                os.unlink(pointer)
    return folder


def _audit(folder: str, libraries: Sequence[Built]) -> None:
    """Raises BuilderError if a library's machine code, for the host or a device, exceeds what its variant says.

    The variant for a device names no level of the processor: its host code must run on the lowest one.
    """
    lowest = next(library.target for library in sorted(libraries, key=lambda each: _rank(each.target)))
    for library in libraries:
        entries = Layout(os.path.join(folder, library.layer)).path("entries")
        path = os.path.join(entries, library.name, library.record["file"])
        problem = ""
        if library.target.device != "cpu":
            measured = measure.of_library(path, target=library.target)
            problem = next(iter(measure.problems(measured, library.target)), "")
            extra = sorted(set(measured["archs"]) - set(measure.claimed(library.target)))
            if extra and not problem:
                problem = f"it is for {library.target}, and holds code for {', '.join(extra)} too"
        host = library.target if library.target.device == "cpu" else lowest
        if problem := problem or _level_problem(path, host, library.record["machine"]):
            advice = "Correct its flags, or the op's targets: an installer would choose it for the wrong machine"
            raise BuilderError(WHO, f"{library.op}: {problem}", advice)


def _level_problem(path: str, target: Target, machine: str) -> str:
    """Returns why a library's code for the host needs more than a target has; empty if it does not."""
    if machine != "x86_64":
        return ""
    level = target.arch[0] if target.device == "cpu" and target.arch else instructions.LEVELS[0]
    objdump = shutil.which("objdump")
    if objdump is None:
        raise BuilderError(WHO, "objdump is not here, which shows what a library needs", "Install binutils")
    try:
        need = instructions.needed_level(path, objdump)
    except FileFormatError as error:
        return str(error)
    if not instructions.exceeds(need, level) or need.asks:  # such code chooses by itself what the processor has
        return ""
    return f"it is for {level}, and {need.function} has {need.instruction!r}, which is of {need.level}"


def _rank(target: Target) -> tuple[bool, str, tuple[str, ...]]:
    """Returns the sort key of a target: the CPU's levels come first, from the lowest."""
    return target.device != "cpu", target.device, target.arch


def _move(source: str, target: str) -> None:
    """Moves a file to another file system too; what is there is replaced at once or not at all."""
    scratch = f"{target}.part"
    shutil.copyfile(source, scratch)
    os.replace(scratch, target)


def _error(path: str, problem: str, advice: str) -> BuilderError:
    return BuilderError(WHO, f"{os.path.basename(path)}: {problem}", advice)
