"""Which store the commands work on."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opforge.cache.store import Store


def own_store() -> Store:
    """The user's own store, as the environment names it. Raises CacheDirError where it cannot be trusted."""
    from opforge import settings
    from opforge.cache.current import open_store
    from opforge.cache.filesystem.trust import trusted_ids
    from opforge.cache.layout import find_problem

    root = settings.cache_dir()[0]
    problem = find_problem(root, trusted_ids())  # of the path as it is: "~/.cache" where no home folder is known
    if problem:
        raise problem
    return open_store(root)
