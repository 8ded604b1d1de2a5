"""Which store the commands work on."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opforge.cache.store import Store


def own_store() -> Store:
    """The user's own store, as the environment names it. Raises CacheDirError where it cannot be trusted."""
    from opforge import settings
    from opforge.builders.opened import open_store

    return open_store(settings.cache_dir()[0])
