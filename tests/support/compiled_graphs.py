"""Machines for compiled graphs: folders for torch's caches and for opforge's store, and small functions to compile."""

from __future__ import annotations

import os
import pathlib
import shutil
import warnings

from opforge.cache import current_store
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
        """Makes this process one on the machine `name`; `store` is copied as its store of pages."""
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
        current_store.reset()
        torch.compiler.reset()
        clear_caches()
        inductor._loaded.clear()
        counters.clear()
        return root / "store"


def put(where, artifacts=None, **changes):
    """Adds a page to the store that is used: one artifact that no graph has, and a library; returns its folder."""
    from opforge.graphs import content
    from opforge.jits import store

    if artifacts is None:
        artifacts = [("aot_autograd", f"a{changes.get('made', 1)}", b"")]
    entries = {content.key_of(*one): content.of_artifact(one) for one in artifacts}
    entries["library/okey"] = {"okey.so": b"no library"}
    facts = {"holds": content.HOLDS, "features": [], "made": 1, **changes}
    return pathlib.Path(store.write(current_store.writable_store(), where, entries, facts))


def area_of(store):
    """Makes the store that this process uses; returns its folder of pages."""
    current_store.writable_store()
    os.makedirs(store / "v2" / "jit", mode=0o700, exist_ok=True)
    return store / "v2" / "jit"


def pages(store):
    """Returns the names of the pages in a store."""
    folder = store / "v2" / "jit"
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
