"""Packs a project: builds each variant through the normal road, audits it, tries it, and puts it in its place."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from opforge.accelerator import archs
from opforge.accelerator.target import Target
from opforge.builders import toolchains
from opforge.builders.base import OpBuilder
from opforge.builders.declaration.abi import PLAIN, TORCH
from opforge.builders.declaration.machine import this_machine
from opforge.builders.declaration.targets import TORCH_LIBRARY
from opforge.builders.lookup import device_requirements
from opforge.builders.planner import make_plan
from opforge.cache.current_store import current_store
from opforge.cache.keys import key_of, readable
from opforge.cache.records.entry import read_record
from opforge.cache.store import Store
from opforge.errors import OpforgeError, OpIncompatibleError, PackError, ToolchainNotFoundError
from opforge.fast_path.library import Entry
from opforge.foundation.files import folder_names, write_file
from opforge.packages.audit import library as library_audit
from opforge.packages.audit import measure, python_code
from opforge.packages.form import digests
from opforge.packages.form.metadata import FILE, Metadata, Provenance
from opforge.packages.form.properties import PYTHON, SOURCE, Properties
from opforge.packages.form.same_sources import difference
from opforge.packages.form.variant import label_of
from opforge.packages.registry.publish import CHECKS, outcomes_in
from opforge.packages.sources.project import Project

from . import git, plain, properties, variant_checks, write

BUILD = "build"
"""The folder of a project's variants, and of the file with the outcomes of their checks."""
STAGING, STAGING_SECONDS = ".pack-", 24 * 3600.0
"""How the name of a folder in it begins in which variants are made. An older one was left by a killed process."""
AUDIT_ADVICE = "Correct each of these: a package must load on machines that differ from this one."


class Options(NamedTuple):
    """How a project is packed."""

    targets: tuple[Target, ...] = ()
    """Empty: the project's own, or the base level of this processor."""
    portable: bool = False
    split: bool = False
    """Whether each architecture of a device becomes a variant."""
    with_source: bool = False
    """Whether a further variant holds the sources."""
    jobs: int | None = None
    tried: bool = True
    """Whether a variant that runs here is imported and tested."""
    on: str = ""
    """The workers that build the variants, as `build-ops --on` takes them. Empty: this machine."""


class Packed(NamedTuple):
    """A variant that was written."""

    label: str
    folder: str
    digest: str
    """Names the variant by its files."""
    size: int
    """Bytes of all files."""
    metadata: Metadata
    checks: Mapping[str, str]
    """The outcome of each check. It depends on the machine that packs, so it is beside the variant and not in it."""

    def to_json(self) -> dict[str, Any]:
        """Returns the object that `opforge pack --json` prints."""
        return {
            "label": self.label,
            "folder": self.folder,
            "digest": self.digest,
            "size": self.size,
            "checks": dict(self.checks),
            "measured": self.metadata.opforge.get("measured", {}),
        }


class PassedOver(NamedTuple):
    """A backend of a hub kernel that cannot be built here."""

    backend: str
    reason: str


def pack(
    project: Project,
    out: str,
    options: Options,
    store: Store | None = None,
    commit: Provenance | None = None,
    report: Callable[[str], None] = lambda _text: None,
    pass_over: Callable[[PassedOver], None] = lambda _backend: None,
    note: Callable[[str], None] = lambda _text: None,
) -> list[Packed]:
    """Writes the project's variants below `out`/build and returns them. Nothing is there if one of them fails.

    `store` is where the op is built, by default the user's; then a stored entry is used. `commit` replaces what git
    says of the project's folder. `pass_over` gets each backend of a hub kernel that cannot be built here, unless
    `options` names targets; `report` the steps; `note` what to know afterwards. Raises PackError, KernelFormatError,
    and what building raises.
    """
    commit = commit or git.provenance(project.folder)
    build = os.path.join(out, BUILD)
    os.makedirs(build, exist_ok=True)
    _sweep(build)
    # In build/, which is no change of the sources: a process that is killed leaves it.
    staging = tempfile.mkdtemp(prefix=STAGING, dir=build)
    try:
        finished: list[Packed] = []
        kinds: list[Properties] = []
        for number, (kind, library) in enumerate(_variants(project, options, store, report, pass_over)):
            folder = os.path.join(staging, str(number))
            os.mkdir(folder, 0o755)
            stated = write.write(folder, project, kind, library, commit)
            _audit(folder, project, library)
            digest = write.finish(folder, stated)
            report(f"check {label_of(kind)}")
            checks = (
                variant_checks.run(folder, project, stated, note)
                if options.tried
                else variant_checks.not_run("not requested")
            )
            size = sum(os.path.getsize(os.path.join(folder, name)) for name in [*digests.files_of(folder), FILE])
            finished.append(Packed(label_of(kind), folder, digest, size, stated, checks))
            kinds.append(kind)
        _check_outcomes(project, finished)
        placed = [
            variant._replace(folder=write.place(variant.folder, build, kind, project.name))
            for variant, kind in zip(finished, kinds, strict=True)
        ]
        declared = key_of(project.declared)
        _remove_outdated(build, placed, declared, staging, note)
        outcomes = {
            variant.label: {"digest": variant.digest, "checks": dict(variant.checks), "declared": declared}
            for variant in placed
        }
        write_file(os.path.join(build, CHECKS), readable(_recorded(build) | outcomes), 0o644)
        return placed
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        with suppress(OSError):
            os.rmdir(build)  # not if there are variants


def _sweep(build: str) -> None:
    """Removes what processes have left that were killed while they packed."""
    for name in folder_names(build):
        path = os.path.join(build, name)
        with suppress(OSError):  # another process does the same
            if name.startswith(STAGING) and time.time() - os.lstat(path).st_mtime > STAGING_SECONDS:
                shutil.rmtree(path)


def _remove_outdated(
    build: str, placed: Sequence[Packed], declared: str, staging: str, note: Callable[[str], None]
) -> None:
    """Moves away the variants that were packed before of another release, other sources or another declaration.

    They could not be published beside the new ones. A checkout that is loaded could take one of them: old code.
    """
    new, present, before = placed[0].metadata, {variant.label for variant in placed}, outcomes_in(build)
    for label in sorted(os.listdir(build)):
        folder = os.path.join(build, label)
        old = None if label in present else write.packed_in(folder)
        if old is None:
            continue
        path = difference(new, old)
        if (old.opforge.get("name"), old.release) != (new.opforge["name"], new.release):
            reason = f"it was {old.opforge.get('name')} {old.release}"
        elif path:
            reason = f"it was packed from another {path}"
        elif before.get(label, {}).get("declared", declared) != declared:
            reason = "its op was declared with other attributes"
        else:
            continue
        with suppress(FileNotFoundError):  # another process has just replaced it
            os.rename(folder, os.path.join(staging, label))
            note(f"{folder} was removed: {reason}")


def _check_outcomes(project: Project, variants: Sequence[Packed]) -> None:
    """Raises PackError if two variants have one label, or a check of one has failed."""
    labels = [variant.label for variant in variants]
    if twice := next((label for label in labels if labels.count(label) > 1), ""):
        raise PackError(project.name, [f"two targets give the variant {twice}"], "Name each target once.")
    failed = [
        f"{variant.label}: {check}: {outcome}"
        for variant in variants
        for check, outcome in variant.checks.items()
        if outcome.startswith("failed")
    ]
    if failed:
        raise PackError(project.name, failed, "Correct the package, or pack with --no-try to leave the checks out.")


def _recorded(build: str) -> dict[str, Any]:
    """Returns the outcomes of the variants that were packed before, for other targets, and are still there."""
    return {label: part for label, part in outcomes_in(build).items() if os.path.isdir(os.path.join(build, label))}


def _variants(
    project: Project,
    options: Options,
    store: Store | None,
    report: Callable[[str], None],
    pass_over: Callable[[PassedOver], None],
) -> list[tuple[Properties, write.Library | None]]:
    if project.builder is None:
        if options.targets:
            listed = ", ".join(map(str, options.targets))
            advice = "It is packed for its backends alone: see `backends` in kernel.toml."
            raise PackError(project.name, [f"it has no library that could be built for {listed}"], advice)
        return [(Properties(PYTHON, None, _backend(backend)), None) for backend in project.backends]
    if options.with_source or project.with_source:
        plain.check_source(project, project.builder(None, False))
    builders = _builders(project, options, store, pass_over)
    variants: list[tuple[Properties, write.Library | None]]
    if options.on:
        from . import farm

        entries = farm.build(project, builders, options.on, _is_portable(project, options), options.jobs, report)
        variants = [
            _variant(project, entry, builder, options) for entry, builder in zip(entries, builders, strict=True)
        ]
    else:
        variants = [_built(project, builder, options, store, report) for builder in builders]
    if options.with_source or project.with_source:
        devices = project.builder(None, False).devices
        backend = properties.BACKENDS.get(devices[0], "universal") if len(devices) == 1 else "universal"
        variants.append((Properties(SOURCE, None, backend), None))
    return variants


def _builders(
    project: Project, options: Options, store: Store | None, pass_over: Callable[[PassedOver], None]
) -> list[OpBuilder]:
    """Returns the builders of the variants. Raises PackError, BuilderError, SettingError.

    A hub kernel's file names backends and no architectures, and few machines can build for all of them. Those that
    cannot be built here are passed over, unless none is left.
    """
    if options.targets or not project.backends:
        return [_builder(project, target, options) for target in _targets(project, options)]
    builders: list[OpBuilder] = []
    problems: list[PassedOver] = []
    for backend in project.backends:
        try:
            device = properties.DEVICES.get(backend)
            if device is None:
                problems.append(PassedOver(backend, f"opforge builds for {', '.join(properties.DEVICES)}"))
                continue
            ours = [_builder(project, target, options) for target in _targets(project, options, (device,))]
            if not options.on:
                for builder in ours:
                    _check_here(project, builder, store or current_store())
            builders += ours
        except OpforgeError as error:
            problems.append(PassedOver(backend, _reason(error)))
    if not builders:
        listed = [f"{backend}: {reason}" for backend, reason in problems]
        raise PackError(project.name, listed, "Install what is missing, or name a --target.")
    for problem in problems:
        pass_over(problem)
    return builders


def _reason(error: OpforgeError) -> str:
    """Returns an error's reason in one line."""
    if isinstance(error, ToolchainNotFoundError):
        return error.short
    return "; ".join(error.reasons) if isinstance(error, OpIncompatibleError) else str(error).splitlines()[0]


def _check_here(project: Project, builder: OpBuilder, store: Store) -> None:
    """Plans a build here and raises its errors. Raises OpIncompatibleError if torch here lacks the device's headers."""
    spec = builder.spec()
    device, here = spec.target.device, this_machine(builder.target.device)
    library = TORCH_LIBRARY.get(device)
    if spec.abi == TORCH and library and here.torch and library not in here.torch_libraries:
        reason = f"its sources include torch's headers for {device}, and torch {here.torch} is not built for it"
        raise OpIncompatibleError(spec.name, str(spec.target), [reason])
    plan = make_plan(spec, toolchains.find_toolchain(spec, store))
    backend = properties.BACKENDS[device]
    if problem := properties.toolkit_problem(backend, dict(plan.requires), project.toolkits.get(backend, ("", ""))):
        raise OpIncompatibleError(spec.name, str(spec.target), [problem])


def _backend(name: str) -> str:
    return "cann" if name == "npu" else name


def _targets(project: Project, options: Options, own: Sequence[str] = ()) -> list[Target | None]:
    """Returns the targets that are named, or else those of `own`, by default the project's."""
    targets: list[Target | None] = [*(options.targets or map(Target.parse, own or project.targets))]
    base = [_default(target, project) if target in (None, Target("cpu")) else target for target in targets or [None]]
    return [part for target in base for part in _split(target, project)] if options.split else [*base]


def _split(target: Target | None, project: Project) -> list[Target]:
    """Returns a target for each architecture of a device. PTX goes with the newest one, from which it is made.

    Raises PackError if the op itself declares its architectures.
    """
    assert project.builder is not None
    whole = project.builder(target, False).target
    if whole.device == "cpu":
        return [whole]
    with_ptx = archs.newest_portable(whole.arch) if "ptx" in whole.arch else ""
    parts = [
        Target(whole.device, (arch, "ptx") if arch == with_ptx else (arch,)) for arch in whole.arch if arch != "ptx"
    ]
    for part in parts if len(parts) > 1 else ():
        if project.builder(part, False).target != part:
            problem = f"its op declares the architectures that it is compiled for: {'+'.join(whole.arch)}"
            raise PackError(project.name, [problem], "Pack it without --split-arch, or name them as targets instead.")
    return parts


def _default(target: Target | None, project: Project) -> Target | None:
    """Returns the base level of this processor, for a CPU op without a target: its library runs on every machine."""
    assert project.builder is not None
    if target is None and "cpu" not in project.builder(None, False).devices:
        return None
    return Target("cpu", ("x86-64" if os.uname().machine == "x86_64" else "aarch64",))


def _is_portable(project: Project, options: Options) -> bool:
    return options.portable or project.portable


def _builder(project: Project, requested: Target | None, options: Options) -> OpBuilder:
    """Returns the builder of a variant. Raises PackError if a package cannot hold what it declares."""
    assert project.builder is not None
    builder = project.builder(requested, _is_portable(project, options))
    target = builder.target
    if target.device not in builder.devices:
        problem = f"its op is for {', '.join(builder.devices)}, and not for {target.device}"
        raise PackError(project.name, [problem], "Choose another --target.")
    held = ("fakes",) if builder.abi == PLAIN else ("fakes", "python_functions")
    lost = [name for name in held if getattr(builder, name)]
    if lost and not project.python:
        advice = "Write them into the package's own Python (`python` in kernel.toml), where they need no opforge."
        raise PackError(project.name, [f"its builder has {lost[0]}, which a package does not hold"], advice)
    return builder


def _built(
    project: Project, builder: OpBuilder, options: Options, store: Store | None, report: Callable[[str], None]
) -> tuple[Properties, write.Library]:
    target = builder.target
    report(f"build for {target}")
    entry = builder.build(store=store, exact=True, force=store is not None, jobs=options.jobs)
    return _variant(project, entry, builder, options)


def _variant(project: Project, entry: Entry, builder: OpBuilder, options: Options) -> tuple[Properties, write.Library]:
    # What is remembered of an entry lacks the fields by which other machines choose it.
    entry = entry._replace(record=read_record(entry.folder) or entry.record)
    target, built_for = builder.target, Target.parse(entry.record["target"])
    functions, module = plain.calls(project, builder)
    toolkit = "" if functions is None else plain.backend_version(project, built_for)
    measured = measure.of_library(entry.library, device_requirements.driver_floor(entry.record), built_for)
    arch = properties.capabilities(target.device, tuple(measured["archs"]) or target.arch)
    kind = properties.of_record(
        project.name, entry.record, by_architecture=options.split, tvm_ffi=project.tvm_ffi, toolkit=toolkit
    )
    return kind, write.Library(entry.library, entry.record, arch, measured, functions, module)


def _audit(folder: str, project: Project, library: write.Library | None) -> None:
    """Raises PackError with everything that is wrong with a variant."""
    problems = python_code.problems(folder, project.python_name)
    if library:
        record: Mapping[str, Any] = library.record
        allowed = (*project.allow_libraries, *([properties.TVM_LIBRARY] if project.tvm_ffi else ()))
        problems += library_audit.problems(library.path, record["abi"], record["torch_target"], allowed)
        backend = properties.BACKENDS[Target.parse(record["target"]).device]
        limits = project.toolkits.get(backend, ("", ""))
        problems += filter(None, [properties.toolkit_problem(backend, record["requires"], limits)])
        problems += measure.problems(library.measured, Target.parse(record["target"]))
    if problems:
        raise PackError(project.name, problems, AUDIT_ADVICE)
