"""The store that the commands of `opforge cache` work on."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opforge.cache.store import Store


def own_store() -> Store:
    """Returns the user's own store, as the settings name it. Raises CacheDirError if it cannot be trusted."""
    from opforge import settings
    from opforge.cache.current import open_store
    from opforge.cache.filesystem.trust import trusted_ids
    from opforge.cache.layout import find_problem

    root = settings.cache_dir()[0]
    problem = find_problem(root, trusted_ids())  # the path as it is, e.g. "~/.cache" if there is no home folder
    if problem:
        raise problem
    return open_store(root)
