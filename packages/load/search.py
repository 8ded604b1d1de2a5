"""Searches a package by its name and version: a checkout, then installed packages, then remotes if requested."""

from __future__ import annotations

import functools
import hashlib
import os
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, TypeAlias

from opforge.foundation import settings
from opforge.foundation.remembered_values import FlatStamps
from opforge.packages.form import names, origin, version
from opforge.packages.form.version import Range
from opforge.packages.installed import layout, releases
from opforge.packages.installed.releases import Installed

from . import callers_lock, checkout, remembered_kernels, variants
from .callers_lock import Locked
from .tree import root_problem
from .variants import Attempt, Loadable

if TYPE_CHECKING:
    from opforge.packages.form.metadata import Dependency

CHECKOUT = "checkout"
Answers: TypeAlias = dict[tuple[object, ...], tuple[ModuleType, FlatStamps]]
"""The modules that calls have returned in this process, each with the stamps of what may change."""


def find(
    key: tuple[object, ...],
    answers: Answers,
    remembered: str,
    name: str,
    version: str | int | None,
    label: str | None,
    install: bool | None,
    caller: str,
) -> ModuleType:
    """Returns the module of `load`. Keeps it in `answers`, and on disk under the name `remembered`, if it may.

    What depends on the current device is in no answer; what depends on more than the machine and torch is not
    remembered.
    """
    at = time.time_ns()
    before = remembered_kernels.stamps(name) if remembered else None
    attempt = Attempt()
    module = load(name, version, label, install, caller, attempt)
    choice = attempt.choice
    is_checkout = attempt.scope == CHECKOUT
    if not attempt.is_per_device and not is_checkout:
        answers[key] = module, FlatStamps()
    elif not attempt.is_per_device and before and choice:
        answers[key] = module, remembered_kernels.watched(before, choice)
    if before and before.paths and choice and choice.receipt and not attempt.needs_more:
        remembered_kernels.remember(remembered, at, before, attempt.scope, choice)
    return module


def local(
    key: tuple[object, ...],
    answers: Answers,
    remembered: str,
    folder: str,
    label: str | None,
    led_to_it: FlatStamps | None = None,
    refusal: Callable[[str], str] | None = None,
    package: str | None = None,
) -> ModuleType:
    """Returns the module of the best variant in a folder, and puts it into `answers` if no device decides.

    `label` is that of a variant, or the package's name as `package` is: other packages are passed over.

    Remembers it under the name `remembered`, with the stamps of what led to the folder. `refusal` returns why a variant
    is not accepted. Raises what `get_local_kernel` raises.
    """
    at = time.time_ns()
    there = remembered_kernels.of_paths(checkout.watched(folder))
    before = FlatStamps.of([*(led_to_it.pairs() if led_to_it else ()), *there.pairs()])
    attempt = Attempt()
    attempt.load_needed, attempt.refusal = needed_by, refusal or attempt.refusal
    module = _from_checkout(folder, folder, version.ANY, label, attempt, package)
    if module is None:
        raise _nothing_fits(f"in {folder}", attempt.reasons, "")
    choice = attempt.choice
    if not attempt.is_per_device and choice:
        answers[key] = module, remembered_kernels.watched(before, choice)
    if remembered and choice and choice.receipt and not attempt.needs_more:
        remembered_kernels.remember(remembered, at, before, CHECKOUT, choice)
    return module


def in_hub_cache(
    key: tuple[object, ...],
    answers: Answers,
    remembered: str,
    name: str,
    revision: str | int | None,
    label: str | None,
) -> ModuleType:
    """Returns the module of a package in the cache of the hub's own loader. Raises what `get_kernel` raises."""
    if (folder := _checkout_folder(names.of_repository(name, "the kernel's name"))) is not None:
        return local(key, answers, remembered, folder, label)
    from opforge.packages.project import hub_cache

    state = hub_cache.snapshot(name, revision)
    led_to_it = remembered_kernels.of_paths(checkout.with_targets([*state.watched, settings.trust_file()]))
    is_same = hub_cache.snapshot(name, revision) == state  # otherwise the stamps are of another state
    refusal = functools.partial(hub_cache.refusal, state.name)
    return local(key, answers, remembered if is_same else "", state.folder, label, led_to_it, refusal)


def load(
    name: str,
    wanted_version: str | int | None,
    label: str | None,
    install: bool | None,
    caller: str,
    attempt: Attempt,
    locked: Locked | None = None,
) -> ModuleType:
    """Returns the module of the package, as `get_kernel` does; `attempt` gets what was learned on the way.

    With `locked` only the release of a lock file is loaded; without it what the lock file of the caller's package says.
    """
    name = names.of_repository(name, "the kernel's name") if isinstance(name, str) else names.check(name)
    attempt.load_needed = needed_by
    text = str(name if wanted_version is None else f"{name} {wanted_version}")
    numbers = version.parse_range(wanted_version, f"the version of {name}")
    if (folder := _checkout_folder(name)) is not None:
        attempt.scope = CHECKOUT
        module = _from_checkout(name, folder, numbers, label, attempt)
        if module is None:
            raise _nothing_fits(text, attempt.reasons, f"It is in {folder}, which OPFORGE_KERNELS names.")
        return module
    if locked is None and wanted_version is None:
        locked = callers_lock.of(name, caller)
    if (module := _from_roots(name, numbers, label, locked, attempt)) is not None:
        return module
    if install if install is not None else settings.install():
        return _installed_now(name, numbers, label, locked, attempt)
    range_text = locked.numbers.text if locked else numbers.text
    command = f"opforge install '{name}@{range_text}'" if range_text else f"opforge install {name}"
    if attempt.reasons:
        raise _nothing_fits(text, attempt.reasons, f"Install the locked releases with: {command}" if locked else "")
    raise _not_found(name, text, command)


def _from_roots(
    name: str, numbers: Range, label: str | None, locked: Locked | None, attempt: Attempt
) -> ModuleType | None:
    """Returns the module of the newest installed release that fits; None if none does: `attempt` gets the reasons.

    One that was withdrawn from being chosen is only taken if no other one fits.
    """
    for root in layout.roots():
        if problem := folder_problem(root):
            attempt.reasons.append(f"{root.path}: {problem}")
            continue
        for release in sorted(releases.matching(root, name, numbers), key=lambda release: bool(release.stops)):
            objection = locked.objection(release) if locked and not locked.allows(release) else release.refusal
            if objection:
                attempt.reasons.append(f"{release.version} in {root.path}: {objection}")
            elif (module := _from_release(release, label, attempt)) is not None:
                return module
    return None


def _not_found(name: str, text: str, command: str) -> Exception:
    """Returns the error for a package of which no release in the range is installed. `command` installs one."""
    from opforge.errors import KernelNotFoundError
    from opforge.packages.project import hub_cache

    roots = [root for root in layout.roots() if not folder_problem(root)]
    searched = [f"{root.join('names', *name.split('/'))} ({root.scope})" for root in roots]
    others = [
        f"{release.version} in {root.path}" for root in roots for release in releases.matching(root, name, version.ANY)
    ]
    installed = f"Installed: {', '.join(others)}. " if others else ""
    theirs = "The hub's own loader has downloaded it: hub=True takes it from there. Otherwise install it with:"
    advice = theirs if hub_cache.is_cached(name) else "Install it with:"
    return KernelNotFoundError(text, searched, f"{installed}{advice} {command}")


def needed_by(dependency: Dependency) -> ModuleType:
    """Returns the module of a package that another one, or a layer, asks for. Raises what `load` raises."""
    if not dependency.revision or _checkout_folder(dependency.name) is not None:
        return load(dependency.name, dependency.versions.text or None, None, None, "", Attempt())
    from opforge.errors import KernelNotFoundError

    attempt, searched = Attempt(), []
    attempt.load_needed = needed_by
    for root in layout.roots():
        for release in () if folder_problem(root) else releases.matching(root, dependency.name, version.ANY):
            source = _origin(release)
            searched.append(f"{release.version} in {root.path}, which is {source or 'of no revision'}")
            if not origin.is_revision(source, dependency.name, dependency.revision) or release.refusal:
                continue
            if (module := _from_release(release, None, attempt)) is not None:
                return module
    text = f"{dependency.name} of the revision {dependency.revision}"
    if attempt.reasons:
        raise _nothing_fits(text, attempt.reasons, "")
    advice = (
        "Lock it and install it: kernels lock, kernels download, opforge install."
        f" Or mirror it: opforge mirror hf:{dependency.repository or dependency.name}@{dependency.revision} REMOTE"
    )
    raise KernelNotFoundError(text, searched or ["the folders of installed packages"], advice)


def _origin(release: Installed) -> str:
    """Returns where a release came from: its signed statement says it of one that was mirrored."""
    from opforge.packages.registry import verify_installed

    stated = verify_installed.stated_source(release)
    return stated if stated.startswith(origin.HUB) else release.source


def folder_problem(root: layout.Root, release: Installed | None = None) -> str:
    """Returns why nothing is loaded from a folder of installed packages, and what to do; or an empty text.

    With `release` the folders of its files are judged too. Whoever can write an environment's folder can change its
    Python too: that of the environment is not looked at.
    """
    if root.scope == "environment" or not os.path.isdir(root.path):
        return ""
    folders = [root.join("names"), root.join("trees")]
    if release:
        record = root.release(release.name, release.version.canonical)
        folders = [os.path.dirname(record), *(part.folder for part in release.variants)]
    return next(filter(None, map(root_problem, folders)), "")


def _checkout_folder(name: str) -> str | None:
    if not settings.kernels.is_set():
        return None
    return checkout.folders().get(name)


def _from_checkout(
    name: str, folder: str, numbers: Range, label: str | None, attempt: Attempt, package: str | None = None
) -> ModuleType | None:
    """Returns the module of the best variant in a folder, after hashing its files; None if none can be loaded.

    A label that no variant has may be the name of the package, which is then that of all variants that count.
    """
    choices, problems = checkout.variants(folder)
    attempt.reasons += problems
    if label and package is None and all(choice.candidate.label != label for choice in choices):
        named = {names.python_name(choice.metadata.name) for choice in choices}
        package, label = (label, None) if names.python_name(label) in named else (None, label)
    if package is not None:
        others = [choice for choice in choices if names.python_name(choice.metadata.name) != names.python_name(package)]
        attempt.reasons += [f"{other.folder}: its package is {other.metadata.name}, not {package}" for other in others]
        choices = [choice for choice in choices if choice not in others]
        if not choices:
            return None
    if not choices and not problems:
        what = "it and its build/ have no folder with a metadata.json, which each variant has"
        attempt.reasons.append(f"{folder}: {what}: run opforge pack there, or download all of it again")
    loadable = []
    _refuse_twice(folder, [(choice.candidate.label, choice.folder) for choice in choices])
    for choice in choices:
        number = choice.metadata.release
        if number is not None and number not in numbers:
            attempt.reasons.append(f"{choice.folder}: it is version {number}, and {numbers} is requested")
            continue
        stamps = checkout.stamps(choice.folder)
        problem = _checkout_problem(choice.folder, choice.metadata.files, choice.metadata.algorithm)
        problem = problem or attempt.refusal(choice.folder)
        if problem:
            attempt.needs_more = True  # its files are not among what is compared
            attempt.reasons.append(f"{choice.folder}: {problem}")
            continue
        # The same name in every process: what is remembered has it.
        path = hashlib.sha256(os.fsencode(os.path.realpath(choice.folder))).hexdigest()
        unique = f"{choice.metadata.id}__{path[:16]}"
        inner = _inner(choice.folder, choice.metadata.name)
        # What is remembered names the variant's own folder.
        stamps = {} if inner else stamps
        content = checkout.content(choice)
        place = Loadable(choice.candidate, choice.folder, choice.folder, unique, None, stamps, inner, content)
        place = place._replace(version=str(number or ""))
        loadable.append(place)
    return variants.best(name, loadable, label, attempt)


def _inner(folder: str, short: str) -> str:
    """Returns the folder in a variant that has its Python: older builders wrote `NAME/`; empty if it is the variant."""
    inner = names.python_name(short)
    if os.path.isfile(os.path.join(folder, "__init__.py")):
        return ""
    return inner if os.path.isfile(os.path.join(folder, inner, "__init__.py")) else ""


def _refuse_twice(folder: str, variants_there: Sequence[tuple[str, str]]) -> None:
    """Raises KernelFormatError if a variant is in a folder twice: nothing says which of the two is meant."""
    places: dict[str, str] = {}
    for label, path in variants_there:
        other = places.setdefault(label, path)
        if other != path:
            from opforge.errors import KernelFormatError

            raise KernelFormatError(folder, f"{other} and {path} are both the variant {label}", "each variant once")


def _checkout_problem(folder: str, files: object, algorithm: str) -> str:
    from opforge.packages.form import digests

    if not isinstance(files, dict):
        return ""  # an older builder's package, which states no digests
    try:
        problems = digests.problems(folder, files, algorithm)
    except (OSError, ValueError) as error:
        return str(error)
    return f"it does not match its digests ({problems[0]}): pack it again" if problems else ""


def _from_release(release: Installed, label: str | None, attempt: Attempt) -> ModuleType | None:
    """Returns the module of the best variant of an installed release; None if none can be loaded."""
    where = f"{release.version} in {release.root.path}"
    if problem := folder_problem(release.root, release):
        attempt.reasons.append(f"{where}: {problem}")
        return None
    loadable = [
        Loadable(
            part.candidate,
            part.folder,
            f"{part.candidate.label} ({where})",
            f"{part.id}__{part.digest[:16]}",
            part,
            content=checkout.content_of(part.files),
            version=str(release.version),
        )
        for part in release.variants
    ]
    attempt.scope = release.root.scope
    return variants.best(f"{release.name} {release.version}", loadable, label, attempt)


def _nothing_fits(name: str, reasons: Sequence[str], advice: str) -> Exception:
    from opforge.errors import KernelIncompatibleError

    return KernelIncompatibleError(name, reasons, advice)


def _installed_now(name: str, numbers: Range, label: str | None, locked: Locked | None, attempt: Attempt) -> ModuleType:
    """Downloads and installs the package for the user, with those that it needs, and returns its module."""
    from opforge.packages.registry import dependencies, install_release, selection

    if locked is not None:
        numbers = locked.numbers
    choices = dependencies.resolve([(name, numbers)], selection.sources(), all_platforms=label is not None)
    by_name = {choice.verified.release.name: choice for choice in choices}
    choice = by_name.pop(name)
    if locked is not None and locked.digest not in ("", choice.verified.signed.digest):
        where = f"{choice.verified.release.version} in {choice.verified.source.remote}"
        reason = f"{where}: {locked.path} has another digest for {locked.version}"
        raise _nothing_fits(name, [reason], "Name the remote that it was locked with in OPFORGE_REMOTES.")
    if label is not None:
        requested = tuple(part for part in choice.variants if part.label == label)
        if not requested:
            labels = [f"{part.label}: {label} is requested" for part in choice.variants]
            raise _nothing_fits(f"{name} {choice.verified.release.version}", labels, "")
        choice = choice._replace(variants=requested)
    for needed in by_name.values():
        install_release.install_release(layout.user_root(), selection.for_this_machine(needed))
    release, _is_new = install_release.install_release(layout.user_root(), choice)
    module = _from_release(release, label, attempt)
    if module is None:
        raise _nothing_fits(f"{name} {release.version}", attempt.reasons, "")
    return module
