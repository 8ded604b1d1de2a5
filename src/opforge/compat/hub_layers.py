"""The layers of the hub's loader on opforge: `install()` lets `kernelize` load what opforge has installed.

Mappings, modes and what is replaced in a model stay those of `kernels`. Only the functions that fetch and load a
package are replaced, so a library that calls `kernelize`, `use_kernel_mapping` or `get_kernel` runs unchanged: its
kernels come from what `opforge install` has installed, or OPFORGE_KERNELS names, compared with their digests.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from opforge.compat.rebinding import Rebound, Replacement, rebind, restore
from opforge.compat.tested_version import installed_version
from opforge.errors import HubLoaderError, KernelIncompatibleError, KernelLockError, KernelNotFoundError
from opforge.packages.form import names
from opforge.packages.form import version as versions
from opforge.packages.form.metadata import Dependency
from opforge.packages.load import callers_lock, search
from opforge.packages.load.get_kernel import get_kernel, get_local_kernel
from opforge.packages.load.variants import Attempt

__all__ = ["TESTED", "install", "uninstall"]
TESTED = ">=0.17.2,<0.18"
"""The versions of `kernels` that opforge's tests ran with."""
LOCAL_KERNELS = "LOCAL_KERNELS"
"""The variable of `kernels` that names folders for repositories."""
BRANCH = re.compile(r"v(\d+)")
"""The branch of a version."""
log = logging.getLogger("opforge.kernels")
_rebound: list[Rebound] = []


def install(*, lock: str | os.PathLike[str] | None = None, hub_cache: bool = False) -> None:
    """Makes `kernels` load packages by opforge. Imports `kernels`; modules that were imported before are changed too.

    Args:
        lock: An opforge.lock. Then a kernel must be the release that is locked in it, by version and digest.
        hub_cache: Whether what is not installed is taken from the cache in which `kernels` keeps its downloads.

    Nothing is downloaded. What cannot be loaded is a FileNotFoundError, as in `kernels`, and is logged: a library may
    go on with its own layer then. Layers that models have already are not changed.

    Raises:
        HubLoaderError: `kernels` is missing, or its interface differs from the one that opforge supports.
        KernelFormatError, KernelLockError: The lock file cannot be used.
    """
    uninstall()
    version, locked = (
        installed_version("kernels", "kernels", TESTED, HubLoaderError),
        os.fspath(lock) if lock is not None else "",
    )
    if locked:
        callers_lock.in_file(locked, "")  # one that is damaged is an error now
    try:
        loading, layers = importlib.import_module("kernels.load"), importlib.import_module("kernels.layer.layer")
        load = functools.partial(_load, locked, hub_cache)
        new = {"get_kernel_with_resolver": load, "get_local_kernel": _load_local, "has_kernel": _has(load)}
        replacements = [Replacement(name, getattr(loading, name), function) for name, function in new.items()]
        select = Replacement("select_revision_or_version", layers.select_revision_or_version, _revision)
        _forget(layers)
    except (ImportError, AttributeError) as error:
        raise HubLoaderError(f"kernels {version} has an unsupported interface ({error})", TESTED) from error
    _rebound.extend(rebind(replacements, keeps=lambda module: module.startswith("opforge.")))
    # The commands of `kernels` ask the hub for the commit of a version: they keep their function.
    _rebound.extend(rebind([select], keeps=lambda module: not module.startswith("kernels.layer.")))


def uninstall() -> None:
    """Restores the functions of `kernels`. Layers that have a kernel keep it."""
    if _rebound:
        _forget(importlib.import_module("kernels.layer.layer"))
    restore(_rebound)
    _rebound.clear()


def _forget(layers: Any) -> None:
    """Forgets the layers that were loaded, and the revisions of versions: they come from elsewhere now."""
    layers._CACHED_LAYER.clear()
    layers.LayerRepository._resolve_revision.cache_clear()


def _revision(repo_id: str, *, revision: str | None, version: int | None, local_files_only: bool) -> str:
    """Returns the revision of a layer's repository: the branch of its version, without asking the hub."""
    return f"v{version}" if revision is None else revision


def _load(locked: str, hub_cache: bool, **options: Any) -> ModuleType:
    """Returns a package's module; called as `get_kernel_with_resolver` of `kernels`. Raises FileNotFoundError."""
    kernel, locks = options["kernel"], getattr(options.get("resolver"), "kernel_locks", None)
    if options.get("backend") is not None:
        expected = "None: opforge takes the variant that fits best. Name a folder in OPFORGE_KERNELS for another one"
        raise ValueError(f"backend={options['backend']!r} cannot be used. Expected {expected}")
    if locks is not None:  # of a kernels.lock: the commit is what is requested
        revision = str(locks[kernel].commit)
    else:
        revision = str(getattr(kernel.version, "revision", "")) or f"v{kernel.version.version}"
    repository = str(kernel.repo_id)
    try:
        return _found(repository, revision, locked, hub_cache)
    except (KernelNotFoundError, KernelIncompatibleError) as error:
        log.warning("%s %s was not loaded: %s", repository, revision, error)
        raise FileNotFoundError(str(error)) from error


def _found(repository: str, revision: str, locked: str, hub_cache: bool) -> ModuleType:
    if folder := _local_kernels().get(repository):
        return get_local_kernel(folder)
    name = names.of_repository(repository, "the kernel's name")
    number = BRANCH.fullmatch(revision)
    if locked:
        return _locked(name, number.group(1) if number else "", locked)
    try:
        if number:
            return get_kernel(name, int(number.group(1)))
        return search.needed_by(Dependency(name, versions.ANY, revision, repository))
    except KernelNotFoundError:
        if not hub_cache:
            raise
        return get_kernel(repository, revision, hub=True)


def _locked(name: str, wanted: str, path: str) -> ModuleType:
    """Returns the module of the release that a lock file has. Raises KernelLockError for one that it has not."""
    there = callers_lock.in_file(path, name)
    if there is None:
        raise KernelLockError(path, [f"{name} is not in it"], "Add it to the project's kernels, and run: opforge lock")
    if wanted and there.version not in versions.parse_range(wanted, f"the version of {name}"):
        problem = f"it has {name} {there.version}, and version {wanted} is requested"
        raise KernelLockError(path, [problem], "Lock the version that is requested: opforge lock")
    return search.load(name, there.numbers.text, None, None, "", Attempt(), there)


def _local_kernels() -> dict[str, str]:
    pairs = [entry.partition("=") for entry in os.environ.get(LOCAL_KERNELS, "").split(":") if entry]
    return {repository: folder for repository, _equals, folder in pairs}


def _load_local(repo_path: str | Path, package_name: str | None = None, **_options: Any) -> ModuleType:
    """Returns the module of a package in a folder; called as `get_local_kernel` of `kernels`."""
    try:
        return get_local_kernel(repo_path, package_name=package_name)
    except KernelIncompatibleError as error:
        raise FileNotFoundError(str(error)) from error


def _has(load: Callable[..., ModuleType]) -> Callable[..., bool]:
    """Returns the function for `has_kernel` of `kernels`: it says whether a package can be loaded, and loads it."""

    def has_kernel(repo_id: str, *, revision: str | None = None, version: int | None = None, **_options: Any) -> bool:
        loading = importlib.import_module("kernels.load")
        kernel = loading.KernelDependency(
            repo_id=repo_id, version=loading.revision_or_version(revision=revision, version=version)
        )
        try:
            load(kernel=kernel)
        except FileNotFoundError:
            return False
        return True

    return has_kernel
