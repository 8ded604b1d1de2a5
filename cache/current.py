"""The store that builders use, as the environment asks for it: opened on first use, checked each time it is opened."""

from __future__ import annotations

import os

from opforge import settings
from opforge.cache.store import Store
from opforge.errors import CacheDirError, LayerError

from . import layout
from .filesystem import trust

NOWHERE = os.path.join(os.devnull, "no-cache-folder")
"""Where nobody can make a folder: what stands for a default folder that was refused, until something is built."""
_stores: dict[tuple[object, ...], Store] = {}


def current_store() -> Store:
    """The store under the settings as they are now; creates no folder.

    A chosen folder that cannot be trusted raises CacheDirError; the default one gives way to a fresh private folder,
    with one warning, once something is built.
    """
    root, chosen = settings.cache_dir()
    names, layers = settings.trusted_owners(), settings.cache_layers()
    key = (root, chosen, names, layers)
    store = _stores.get(key)
    if store is None:
        owners = trust.trusted_ids(names)
        problem = layout.find_problem(root, trust.trusted_ids())
        if problem and chosen:
            raise problem
        store = Store(NOWHERE if problem else root, owners, _trusted_layers(layers, owners))
        if not problem:
            _stores[key] = store
    return store


def open_store(folder: str) -> Store:
    """The store in a folder that was chosen for it, without layers. Raises CacheDirError."""
    store = Store(os.path.abspath(folder), trust.trusted_ids(settings.trusted_owners()))
    problem = layout.find_problem(store.layout.root, trust.trusted_ids())
    if problem:
        raise problem
    return store


def writable_store(given: Store | None = None) -> Store:
    """`given`, or the current store, with its folders made, so that it can be built in. Raises CacheDirError."""
    if given is not None:
        layout.prepare(given.layout.root, trust.trusted_ids())
        return given
    store = current_store()
    root, chosen = settings.cache_dir()
    mine = trust.trusted_ids()
    try:
        layout.prepare(root if store.layout.root == NOWHERE else store.layout.root, mine)
        return current_store()
    except CacheDirError as problem:
        if chosen:
            raise
        fallback = Store(layout.private_fallback(problem), store.owners, tuple(str(one) for one in store.layers))
        layout.prepare(fallback.layout.root, mine)
        _stores[root, chosen, settings.trusted_owners(), settings.cache_layers()] = fallback
        return fallback


def _trusted_layers(paths: tuple[str, ...], owners: frozenset[int]) -> tuple[str, ...]:
    """The layers that may be loaded from. One that was named and cannot be trusted is an error, not a silence."""
    for path in paths:
        found = trust.objection(path, owners)
        if found:
            problem, advice = found
            raise LayerError(path, problem, advice if advice.startswith("Run: ") else "Name its owner there")
    return paths
