"""`get_kernel`: a package by its name and version, from a checkout or from what is installed.

What loads an installed package that was loaded before is in this one file: each further module that it imported would
take a twentieth of its time.

Which installed variant a call led to is remembered, so the next process need not judge variants again. The name of what
is remembered covers the arguments, the folders that are searched, torch, and everything of the machine that a variant
for the CPU is judged by. It holds the stamps of the folders in which another release would appear. What needs a device,
other Python packages or the caller's lock file is not remembered. That nothing in the variant has changed, and that its
folder is nobody else's, is checked at each load.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from collections.abc import Container, Iterable
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import cache_from_source, module_from_spec
from types import ModuleType
from typing import Any

import opforge
from opforge import formats, settings, trust
from opforge.cache.filesystem.files import changed_path, stamp_of
from opforge.warm import machine, machine_folder

CHECKOUT = "checkout"
VARIABLES = ("OPFORGE_KERNELS", "OPFORGE_KERNEL_PATH")
Stamps = list[list[Any]]
_answers: dict[tuple[object, ...], ModuleType] = {}
"""What `get_kernel` returned, by its arguments, the caller's package and the variables that it reads."""
_lock = threading.RLock()
"""Held while a package is imported. Reentrant: a package's Python may load another package."""
_modules: dict[str, ModuleType] = {}
"""By the name in sys.modules."""


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
    module, and its own namespace in torch.ops. On a machine with devices of several architectures the variant is
    that of torch's current device: another device may have another module.

    Raises KernelNotFoundError, KernelIncompatibleError with the reason of each variant, KernelLoadError,
    KernelFormatError for a name or a version that is none.
    """
    caller = sys._getframe(1).f_globals.get("__package__") or ""
    environment = os.environ
    key = (name, version, variant, caller, *[environment.get(variable) for variable in VARIABLES])
    module = _answers.get(key)
    if module is None:
        try:
            module = _look_up(key, name, version, variant, install, caller)
        except BaseException as error:
            from opforge import tracebacks

            tracebacks.shorten(error)
            raise
    return module


def _look_up(
    key: tuple[object, ...],
    name: str,
    version: str | int | None,
    variant: str | None,
    install: bool | None,
    caller: str,
) -> ModuleType:
    remembered = _name_of(name, version, variant, caller)
    module = _recall(remembered) if remembered else None
    if module is not None:
        _answers[key] = module
        return module
    from . import memory, search  # not for what is remembered
    from .variants import Attempt

    before = memory.stamps(name) if remembered else []
    attempt = Attempt()
    module = search.load(name, version, variant, install, caller, attempt)
    if not attempt.is_per_device:
        _answers[key] = module
    choice = attempt.choice
    if remembered and before and choice and choice.receipt and not attempt.needs_more:
        memory.remember(remembered, before, *attempt.place, choice.folder, choice.module, choice.receipt)
    return module


def _name_of(name: str, version: object, variant: str | None, caller: str) -> str:
    """Returns the name under which a call's outcome is remembered; empty if it must not be."""
    torch = sys.modules.get("torch")
    checkout = settings.kernel_checkouts().get(name, "")
    if torch is None or (version is None and caller and not checkout):
        return ""
    is_locked = getattr(sys, "_is_gil_enabled", lambda: True)()
    value = [
        formats.KERNEL_LOOKUP,
        "kernel",
        opforge.__version__,
        name,
        version,
        variant,
        checkout,
        settings.kernel_folders(),
    ]
    value += [is_locked, torch.__version__, torch.__file__, sys.platform, machine.libstdcxx(), *machine.name_parts()]
    return hashlib.sha256(repr(value).encode("utf-8", "surrogateescape")).hexdigest()[:32]


def stamp(folder: str) -> list[int] | None:
    """Returns the stamp of a folder; None if there is none."""
    try:
        return stamp_of(folder)
    except OSError:
        return None


def _recall(key: str) -> ModuleType | None:
    """Returns the module that a call led to before; None if anything that led there has changed, or it cannot be had.

    Then the search is made in full, and says why.
    """
    try:
        memory: Any = machine_folder.recall(key)
        if memory is None or memory["format"] != formats.KERNEL_LOOKUP or memory["key"] != key:
            return None
        if any(stamp(folder) != expected for folder, expected in memory["stamps"]):
            return None
        folder, scope = memory["folder"], memory["scope"]
        if scope not in ("environment", CHECKOUT) and root_problem(memory["root"]):
            return None
        if changed_path(folder, memory["receipt"]):
            return None
        own = memory["receipt"]
        return import_tree(folder, memory["module"], bytecode=scope != CHECKOUT and has_bytecode(own, own))
    except Exception:  # of a damaged file, or of the package's own Python: the search says what is wrong
        return None


def root_problem(root: str) -> str:
    """Returns why a folder of installed packages cannot be trusted, or an empty text."""
    problem = trust.folder_problem(root, trust.trusted_ids(settings.trusted_owners()))
    return f"{problem[0]}: {problem[1]}" if problem else ""


def has_bytecode(files: Iterable[str], bytecode: Container[str]) -> bool:
    """Returns whether the bytecode that this Python would run of these files is what an installation has made.

    With `-O`, and in another Python, it would run other files, which nobody has compared.
    """
    if sys.pycache_prefix:
        return True  # it is looked for there, and compared with the sources
    return all(cache_from_source(path) in bytecode for path in files if path.endswith(".py"))


def _replace_lock() -> None:
    """Replaces the lock in a forked child: the thread that held it is gone, and nobody would release it."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_replace_lock)


def import_tree(folder: str, name: str, bytecode: bool = True) -> ModuleType:
    """Returns the module of a variant's folder under a name of its own; imports it if this process has not yet.

    Without `bytecode` Python neither reads nor writes any below the folder: one that is not installed may have some
    that no digest covers. Raises whatever importing raises; then nothing stays in sys.modules.
    """
    module = _modules.get(name)
    if module is not None:
        return module
    with _lock:
        module = _modules.get(name)
        if module is not None:
            return module
        path = os.path.join(folder, "__init__.py")
        loader = SourceFileLoader(name, path)
        if not bytecode:
            from . import source_only  # not for what is installed

            source_only.prepare(folder)
            loader = source_only.SourceOnly(name, path)
        spec = ModuleSpec(name, loader, origin=path, is_package=True)
        spec.has_location = True
        assert spec.submodule_search_locations is not None
        spec.submodule_search_locations.append(folder)
        module = module_from_spec(spec)
        sys.modules[name] = module
        try:
            loader.exec_module(module)
        except BaseException:
            _forget(name)
            raise
        _modules[name] = module
        return module


def _forget(name: str) -> None:
    prefix = name + "."
    for other in [other for other in sys.modules if other == name or other.startswith(prefix)]:
        del sys.modules[other]
