"""A variant's folder: whether it may be imported, and the import of its module."""

from __future__ import annotations

import os
import sys
from collections.abc import Container, Iterable
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import cache_from_source, module_from_spec
from types import ModuleType
from typing import TYPE_CHECKING

from opforge.foundation import file_owners, settings
from opforge.foundation.fork_lock import ForkLock

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

_lock = ForkLock()
"""Held while a package is imported. Reentrant: a package's Python may load another package."""
_modules: dict[str, ModuleType] = {}
"""By the name in sys.modules."""
_contents: dict[str, tuple[str, str]] = {}
"""By the id of a build, which names its ops in torch: the digest of what was imported under it, and the folder."""


def root_problem(root: str) -> str:
    """Returns why a folder of installed packages cannot be trusted, or an empty text."""
    problem = file_owners.folder_problem(
        root, file_owners.trusted_ids(settings.trusted_owners()), shared=settings.trusted_folders()
    )
    return f"{problem[0]}: {problem[1]}" if problem else ""


def has_bytecode(files: Iterable[str], bytecode: Container[str]) -> bool:
    """Returns whether the bytecode that this Python would run of these files is what an installation has made.

    With `-O`, and in another Python, it would run other files, which nobody has compared.
    """
    if sys.pycache_prefix:
        return True  # it is looked for there, and compared with the sources
    return all(cache_from_source(path) in bytecode for path in files if path.endswith(".py"))


def id_problem(name: str, content: str) -> str:
    """Returns why a variant of this module's name, whose content has a digest, must not be imported, or an empty text.

    Its ops would be those of the other content. Empty for one without a digest.
    """
    build = _id_of(name)
    other, folder = _contents.get(build, (content, ""))
    if not content or other == content:
        return ""
    return f"its id {build} is that of {folder}, which is loaded and has other files: two builds must not share an id"


def _id_of(name: str) -> str:
    """Returns the id in a module's name, which has digits after it."""
    return name.rpartition("__")[0]


def import_tree(
    folder: str,
    name: str,
    bytecode: bool = True,
    around: AbstractContextManager[None] | None = None,
    content: str = "",
    version: str = "",
) -> ModuleType:
    """Returns the module of a variant's folder under a name of its own; imports it if this process has not yet.

    `content` is a digest of its files, for `id_problem`. `version` becomes the module's `__version__`, unless it sets
    one itself.

    Without `bytecode` Python neither reads nor writes any below the folder: one that is not installed may have some
    that no digest covers. `around` is entered while the module is executed, by one thread at a time. Raises whatever
    importing raises; then nothing stays in sys.modules.
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
            from . import source_only

            source_only.prepare(folder)
            loader = source_only.SourceOnly(name, path)
        spec = ModuleSpec(name, loader, origin=path, is_package=True)
        spec.has_location = True
        assert spec.submodule_search_locations is not None
        spec.submodule_search_locations.append(folder)
        module = module_from_spec(spec)
        sys.modules[name] = module
        try:
            if around is None:
                loader.exec_module(module)
            else:
                with around:
                    loader.exec_module(module)
        except BaseException:
            _forget(name)
            raise
        if version:
            vars(module).setdefault("__version__", version)
        _modules[name] = module
        if content:
            _contents.setdefault(_id_of(name), (content, folder))
        return module


def _forget(name: str) -> None:
    prefix = name + "."
    for other in [other for other in sys.modules if other == name or other.startswith(prefix)]:
        del sys.modules[other]
