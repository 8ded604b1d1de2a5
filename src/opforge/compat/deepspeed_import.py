"""Installs `opforge.compat.deepspeed` when DeepSpeed is imported, as OPFORGE_DEEPSPEED requests it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from opforge import settings

BUILDERS = "deepspeed.ops.op_builder"
"""The part of DeepSpeed after whose import it is changed: the parts that take builders from it are imported later."""


def install_after_import() -> None:
    """Arranges that DeepSpeed is put on opforge when it is imported, or does it now if it is imported already."""
    if BUILDERS in sys.modules:
        _install()
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _install() -> None:
    """Calls `install` with the builders that the variable names."""
    requested = settings.deepspeed()
    if requested is None:
        return
    from .deepspeed import install
    from .deepspeed.builders import DROP_IN

    install(requested or DROP_IN)


class _Finder(MetaPathFinder):
    """Finds BUILDERS as Python would, and has its loader call `_install` afterwards."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns the spec of BUILDERS, with another loader; None for every other module."""
        if fullname != BUILDERS:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _InstallingLoader(spec.loader)
                return spec
        return None


class _InstallingLoader(Loader):
    """A module's own loader, which calls `_install` after it has run the module."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Returns what the module's own loader returns."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Runs the module, and installs."""
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        _install()
