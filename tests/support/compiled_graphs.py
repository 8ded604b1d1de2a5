"""Machines for compiled graphs: folders for torch's caches and for opforge's store, and small functions to compile."""

from __future__ import annotations

import shutil
import warnings

from opforge import inductor
from opforge.cache import current


def double(x):
    return (x * 2).sin()


class Machines:
    """Machines that this process is in turn: each with caches of its own, and nothing compiled in memory."""

    def __init__(self, folder, monkeypatch):
        self.folder, self._patch = folder, monkeypatch

    def enter(self, name, store=None):
        """Makes this process one on the machine `name`; `store` is copied as its store of bundles."""
        import torch

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of torch's own imports
            import torch._inductor.compile_fx
        from torch._dynamo.utils import counters
        from torch._inductor.utils import clear_caches

        root = self.folder / name
        self._patch.setenv("OPFORGE_CACHE_DIR", str(root / "store"))
        self._patch.setenv("XDG_CACHE_HOME", str(root / "caches"))
        self._patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(root / "inductor"))
        if store is not None:
            shutil.copytree(store, root / "store")
        current.reset()
        torch.compiler.reset()
        clear_caches()
        inductor._loaded.clear()
        counters.clear()
        return root / "store"


def bundles(store):
    """Returns the names of the bundles in a store."""
    folder = store / "v2" / "graphs"
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
