"""The packages that a package of the hub asks for while it is imported, by `kernels.get_kernel_dep`.

Each is loaded when it is asked for, as `get_kernel` loads it: the version is what the package states, the variant the
one that fits. If the hub's own loader is not installed, a module of its name stands in for it while the package is
imported: it has that one function.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from opforge.packages.form import metadata
from opforge.packages.form.metadata import Dependency

CLIENT, FUNCTION = "kernels", "get_kernel_dep"
MAX_BYTES = 1 << 20
"""Of a Python file that is searched for the function's name."""
Load = Callable[[Dependency], ModuleType]
_loading: list[str] = []
"""The packages that are being imported, the outermost first: what needs itself would wait for itself."""


class Needed(dict[str, ModuleType]):
    """The mapping that the hub's function searches: name of a repository -> its module, loaded on first use."""

    def __init__(self, needed: Sequence[Dependency], load: Load) -> None:
        super().__init__()
        self._by_name, self._load = {dependency.name: dependency for dependency in needed}, load

    def get(self, key: str, default: Any = None) -> Any:
        """Returns the module of a package that is needed; the default for one that is not."""
        dependency = self._by_name.get(key.lower())
        if dependency is None:
            return default
        if key not in self:
            self[key] = self._load(dependency)
        return self[key]


def asks(folder: str) -> tuple[Dependency, ...]:
    """Returns a variant's dependencies if its Python calls the hub's function; else nothing. Raises OSError."""
    needed = metadata.read(folder).kernel_depends
    return needed if needed and any(map(_calls, _python(folder))) else ()


def _python(folder: str) -> Iterator[str]:
    for parent, _folders, files in os.walk(folder):
        yield from (os.path.join(parent, name) for name in files if name.endswith(".py"))


def _calls(path: str) -> bool:
    with open(path, "rb") as file:
        return FUNCTION.encode() in file.read(MAX_BYTES)


@contextmanager
def offered(name: str, needed: Sequence[Dependency], load: Load) -> Iterator[None]:
    """Offers a package's dependencies while it is imported. Raises KernelDependencyError if its import has begun.

    Called with the lock of imports held: the stand-in for the hub's loader is the whole process's.
    """
    if name in _loading:
        from opforge.errors import KernelDependencyError

        raise KernelDependencyError(name, [" needs ".join([*_loading[_loading.index(name) :], name])])
    found = Needed(needed, load)
    _loading.append(name)
    try:
        with _hubs(found) if _has_client() else _stand_in(found):
            yield
    finally:
        _loading.pop()


class _StandIn(ModuleType):
    """The part of the hub's loader that opforge provides while a package is imported."""


def _has_client() -> bool:
    """Returns whether the hub's loader is installed. Its stand-in may be in its place, for a package around this."""
    return not isinstance(sys.modules.get(CLIENT), _StandIn) and importlib.util.find_spec(CLIENT) is not None


@contextmanager
def _hubs(found: Needed) -> Iterator[None]:
    """Lets the hub's own function, of the loader that is installed, find the packages."""
    use: Any = importlib.import_module(f"{CLIENT}.deps").use_kernel_deps
    with use(found):
        yield


@contextmanager
def _stand_in(found: Needed) -> Iterator[None]:
    def get_kernel_dep(repo_id: str) -> ModuleType:
        module: ModuleType | None = found.get(repo_id)
        if module is None:
            text = f"{repo_id} is not among what the package needs"
            raise RuntimeError(f"{text}: add it to kernel-depends in build.toml")
        return module

    module: Any = _StandIn(CLIENT, _StandIn.__doc__)
    module.__spec__, module.get_kernel_dep = ModuleSpec(CLIENT, None), get_kernel_dep
    before, sys.modules[CLIENT] = sys.modules.get(CLIENT), module
    try:
        yield
    finally:
        if before is None:
            sys.modules.pop(CLIENT, None)
        else:
            sys.modules[CLIENT] = before
