"""Calls a function after a module is imported: for changes of another package that must come right then."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def call_after_import(names: Collection[str], call: Callable[[ModuleType], None]) -> None:
    """Has `call` called with each of these modules after Python has run it. Modules that are imported do not count.

    The same function is registered once.
    """
    if not any(isinstance(finder, _Finder) and finder.call is call for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(names, call))


class _Finder(MetaPathFinder):
    """Finds some modules as Python would, and has their loaders call a function afterwards."""

    def __init__(self, names: Collection[str], call: Callable[[ModuleType], None]) -> None:
        self.names, self.call = names, call

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns the spec of one of the modules, with another loader; None for every other module."""
        if fullname not in self.names:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _CallingLoader(spec.loader, self.call)
                return spec
        return None


class _CallingLoader(Loader):
    """A module's own loader, which calls a function after it has run the module."""

    def __init__(self, loader: Loader, call: Callable[[ModuleType], None]) -> None:
        self._loader, self._call = loader, call

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Returns the module of its own loader; None for a usual one."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Runs the module, and calls the function."""
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._call(module)
