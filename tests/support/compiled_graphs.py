"""Machines for compiled graphs: folders for torch's caches and for opforge's store, and small functions to compile."""

from __future__ import annotations

import os
import shutil
import warnings

from opforge.cache import current
from opforge.torch_internals import inductor


def double(x):
    """Returns what inductor makes C++ of."""
    return (x * 2).sin()


def flat(x):
    """Returns what inductor makes a graph of, and no C++: it compiles in no time."""
    return x.view(1, -1)


def tall(x):
    """Returns a view, as `flat` does."""
    return x.view(-1, 1)


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


def facts(where, **changes):
    """Returns what is said of a bundle of this topic."""
    return {**where._asdict(), "features": [], "parts": ["0" * 24], "ops": {}, "made": 1, **changes}


def made(folder, where, artifacts=None, **changes):
    """Writes a bundle that holds one artifact that no graph has, and a library; returns its folder."""
    from opforge.graphs import bundle

    stated = facts(where, **changes)
    if artifacts is None:
        artifacts = inductor.packed([("aot_autograd", f"a{stated['made']}", b"")])
    os.makedirs(folder)
    (folder / "library").write_bytes(b"no library")
    digest = bundle.write(str(folder / "made"), artifacts, {"okey": str(folder / "library")}, stated)
    return (folder / "made").rename(folder / bundle.name_of(where, digest))


def area_of(store):
    """Makes the store that this process uses; returns its folder of bundles."""
    current.writable_store()
    os.makedirs(store / "v2" / "graphs", mode=0o700, exist_ok=True)
    return store / "v2" / "graphs"


def bundles(store):
    """Returns the names of the bundles in a store."""
    folder = store / "v2" / "graphs"
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
