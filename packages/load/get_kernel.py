"""`get_kernel`: a package by its name and version, from a checkout or from what is installed."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import NamedTuple

from opforge import settings
from opforge.cache.filesystem import trust
from opforge.errors import OpforgeError
from opforge.packages.choose.candidate import Candidate
from opforge.packages.form import names, version
from opforge.packages.form.properties import SOURCE
from opforge.packages.form.version import Range, Version
from opforge.packages.installed import layout, receipt, releases
from opforge.packages.installed.releases import Installed, InstalledVariant

from .module import import_tree

log = logging.getLogger("opforge.kernels")
_answers: dict[tuple[object, ...], ModuleType] = {}
"""What `get_kernel` returned, by its arguments, the caller's package and the variables that it reads."""
VARIABLES = ("OPFORGE_KERNELS", "OPFORGE_KERNEL_PATH")


class Loadable(NamedTuple):
    """A variant on disk."""

    candidate: Candidate
    folder: str
    where: str
    """For messages: the label, and where it lies."""
    module: str
    """The name of its module in sys.modules."""
    installed: InstalledVariant | None = None


def reset() -> None:
    """Forgets what was returned: the next call looks again. What is imported stays imported."""
    _answers.clear()


def get_kernel(
    name: str, version: str | int | None = None, variant: str | None = None, *, install: bool | None = None
) -> ModuleType:
    """Returns the Python module of a kernel package, with its ops loaded.

    Args:
        name: ORG/NAME, such as "acme/relu".
        version: The interface, such as 2; an exact version, "2.3"; or a range, ">=2.1,<3". By default what the lock
            file of the calling package says, else the newest that is installed.
        variant: The label of a variant, in place of the one that fits best.
        install: Whether to download the package if it is not installed; by default OPFORGE_INSTALL. Without it the
            network is never used.

    The same release gives the same module, in every thread. Two versions can be loaded side by side: each has its own
    module, and its own namespace in torch.ops.

    Raises KernelNotFoundError, KernelIncompatibleError with the reason of each variant, KernelLoadError,
    KernelFormatError for a name or a version that is none.
    """
    caller = sys._getframe(1).f_globals.get("__package__") or ""
    environment = os.environ
    key = (name, version, variant, caller, *[environment.get(variable) for variable in VARIABLES])
    module = _answers.get(key)
    if module is None:
        module = _answers[key] = _load(name, version, variant, install, caller)
    return module


def _load(
    name: str, wanted_version: str | int | None, label: str | None, install: bool | None, caller: str
) -> ModuleType:
    names.check(name)
    text = str(name if wanted_version is None else f"{name} {wanted_version}")
    numbers = version.parse_range(wanted_version, f"the version of {name}")
    searched: list[str] = []
    reasons: list[str] = []
    folder = _checkout_folder(name)
    if folder is not None:
        module = _from_checkout(name, folder, numbers, label, reasons)
        if module is None:
            raise _nothing_fits(text, reasons, f"It is in {folder}, which OPFORGE_KERNELS names.")
        return module
    locked = _locked(name, caller, wanted_version)
    for root in layout.roots():
        if problem := _root_problem(root):
            reasons.append(f"{root.path}: {problem}")
            continue
        for release in releases.matching(root, name, numbers):
            if locked is not None and not locked.allows(release):
                reasons.append(f"{release.version} in {root.path}: {locked.objection(release)}")
                continue
            module = _from_release(release, label, reasons)
            if module is not None:
                return module
        searched.append(f"{root.join('names', *name.split('/'))} ({root.scope})")
    if install if install is not None else settings.installs_kernels():
        return _installed_now(name, numbers, label, locked)
    if reasons:
        raise _nothing_fits(text, reasons, "")
    from opforge.errors import KernelNotFoundError

    what = f"'{name}@{numbers}'" if numbers.text else name
    raise KernelNotFoundError(text, searched, f"Install it with: opforge install {what}")


def _root_problem(root: layout.Root) -> str:
    """Returns why a folder of installed packages cannot be trusted, or an empty text.

    Whoever can write an environment's folder can change its Python too: that of the environment is not looked at.
    """
    if root.scope == "environment" or not os.path.isdir(root.path):
        return ""
    problem = trust.folder_problem(root.path, trust.trusted_ids(settings.trusted_owners()))
    return f"{problem[0]}: {problem[1]}" if problem else ""


def _checkout_folder(name: str) -> str | None:
    if not os.environ.get("OPFORGE_KERNELS"):
        return None
    from . import checkout

    return checkout.folders().get(name)


def _from_checkout(name: str, folder: str, numbers: Range, label: str | None, reasons: list[str]) -> ModuleType | None:
    """Returns the module of the best variant in a folder, after hashing its files; None if none can be loaded."""
    from . import checkout

    variants, problems = checkout.variants(folder)
    reasons += problems
    if not variants and not problems:
        reasons.append(f"{folder}: there is no variant in it: run opforge pack there")
    loadable = []
    for choice in variants:
        number = choice.metadata.release
        if number is not None and number not in numbers:
            reasons.append(f"{choice.folder}: it is version {number}, and {numbers} is requested")
            continue
        problem = _checkout_problem(choice.folder, choice.metadata.files, choice.metadata.algorithm)
        if problem:
            reasons.append(f"{choice.folder}: {problem}")
            continue
        unique = f"{choice.metadata.id}__{abs(hash(os.path.realpath(choice.folder))):x}"
        loadable.append(Loadable(choice.candidate, choice.folder, choice.folder, unique))
    return _best(name, loadable, label, reasons)


def _checkout_problem(folder: str, files: object, algorithm: str) -> str:
    from opforge.packages.form import digests

    if not isinstance(files, dict):
        return ""  # an older builder's package, which states no digests
    try:
        problems = digests.problems(folder, files, algorithm)
    except (OSError, ValueError) as error:
        return str(error)
    return f"it does not match its digests ({problems[0]}): pack it again" if problems else ""


def _from_release(release: Installed, label: str | None, reasons: list[str]) -> ModuleType | None:
    """Returns the module of the best variant of an installed release; None if none can be loaded."""
    where = f"{release.version} in {release.root.path}"
    loadable = [
        Loadable(
            part.candidate, part.folder, f"{part.candidate.label} ({where})", f"{part.id}__{part.digest[:16]}", part
        )
        for part in release.variants
    ]
    return _best(f"{release.name} {release.version}", loadable, label, reasons)


def _best(name: str, variants: Sequence[Loadable], label: str | None, reasons: list[str]) -> ModuleType | None:
    """Returns the module of the best variant that can be loaded, or None; `reasons` gets why the others cannot."""
    from opforge.packages.choose import environment, order

    if label is not None:
        reasons += [f"{choice.where}: {label} is requested" for choice in variants if choice.candidate.label != label]
        variants = [choice for choice in variants if choice.candidate.label == label]
    backends = {choice.candidate.properties.backend for choice in variants}
    if any(choice.candidate.properties.framework == "tvm-ffi" for choice in variants):
        backends.add("tvm-ffi")
    by_candidate = {id(choice.candidate): choice for choice in variants}
    for decision in order.decide([choice.candidate for choice in variants], environment.here(backends)):
        choice = by_candidate[id(decision.candidate)]
        problem = decision.problem or _requirement_problem(choice.candidate.python_depends)
        if not problem and choice.installed:
            problem = _change(choice)
        if problem:
            reasons.append(f"{choice.where}: {problem}")
            continue
        try:
            module = import_tree(choice.folder, choice.module, bytecode=choice.installed is not None)
        except OSError as error:  # dlopen's, for one: the next variant may load
            reasons.append(f"{choice.where}: {error}")
            continue
        except Exception as error:
            if choice.candidate.properties.framework == SOURCE and isinstance(error, OpforgeError):
                reasons.append(f"{choice.where}: it cannot be built here: {error}")
                continue
            raise _import_failed(name, choice.folder, error) from error
        log.debug("%s: %s", name, choice.where)
        return module
    return None


def _change(choice: Loadable) -> str:
    """Returns why an installed variant is not what was installed, or an empty text."""
    part = choice.installed
    assert part is not None
    changed = receipt.differs(choice.folder, part.receipt)
    if not changed:
        return ""
    # A copied environment has other stamps. Then the contents decide.
    problem = receipt.digest_problem(choice.folder, part.files, part.metadata_sha256)
    return f"it was changed after it was installed ({problem}): install it again" if problem else ""


def _requirement_problem(requirements: Sequence[str]) -> str:
    if not requirements:
        return ""
    from . import requirements as installed

    return installed.problem(requirements)


def _import_failed(name: str, folder: str, error: Exception) -> Exception:
    from opforge.errors import KernelLoadError

    problem = f"importing it failed: {type(error).__name__}: {error}"
    return KernelLoadError(name, folder, problem, "The error above is the package's own: report it to its author")


def _nothing_fits(name: str, reasons: Sequence[str], advice: str) -> Exception:
    from opforge.errors import KernelIncompatibleError

    return KernelIncompatibleError(name, reasons, advice)


class Locked(NamedTuple):
    """What the calling package's lock file says of a kernel."""

    path: str
    version: Version
    digest: str

    def allows(self, release: Installed) -> bool:
        """Returns whether an installed release is the one that was locked."""
        return release.version == self.version and (not self.digest or release.digest == self.digest)

    def objection(self, release: Installed) -> str:
        """Returns why it is not."""
        if release.version != self.version:
            return f"{self.path} says {self.version}"
        return f"{self.path} has another digest for {self.version}"


def _locked(name: str, caller: str, wanted_version: object) -> Locked | None:
    """Returns what the lock file of the calling package says; None if it has none, or a version is requested.

    Raises KernelFormatError for a lock file that is damaged.
    """
    top = caller.partition(".")[0]
    if wanted_version is not None or not top:
        return None
    from . import callers_lock

    for path, kernel in callers_lock.kernels(top):
        if kernel.name == name:
            return Locked(path, kernel.version, kernel.digest)
    return None


def _installed_now(name: str, numbers: Range, label: str | None, locked: Locked | None) -> ModuleType:
    """Downloads and installs the package for the user, and returns its module."""
    from opforge.packages.registry import install

    if locked is not None:
        numbers = version.parse_range(f"=={locked.version.interface}.{locked.version.rebuild}")
    choice = install.choose(name, numbers, install.sources())
    release, _is_new = install.install(layout.user_root(), choice)
    reasons: list[str] = []
    module = _from_release(release, label, reasons)
    if module is None:
        raise _nothing_fits(f"{name} {release.version}", reasons, "")
    return module
