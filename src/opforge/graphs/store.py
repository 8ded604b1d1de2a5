"""The user's own store of bundles: a few for each topic, those that were used last."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from opforge.cache import staging
from opforge.cache.layout import Layout
from opforge.cache.maintenance import limits
from opforge.cache.records import size_log
from opforge.cache.store import Store
from opforge.foundation.files import discard, make_folder, renew, size_of

from . import bundle, notices
from .bundle import AREA, SIGNED, Bundle, BundleError, UnfitError
from .topic import Topic

log = logging.getLogger("opforge")
MAX_BUNDLES = 4
"""How many bundles of a topic are kept: of several models, shapes and versions under one name."""
RENEW_SECONDS = 3600.0
NOT_USED = "%s: the compiled graphs in %s are not used: %s. What is needed is compiled."
Judge = Callable[[str, Bundle], str]
"""Returns why a fetched bundle is not used now: the path of what is kept of its statement, and what its record says.

Raises OSError, and BundleError if it is damaged.
"""


def all_folders(layout: Layout) -> list[str]:
    """Returns the folders of the bundles of all topics."""
    area = layout.path(AREA)
    try:
        return [os.path.join(area, name) for name in sorted(os.listdir(area)) if name.count(".") == 1]
    except OSError:
        return []


def folders(layout: Layout, where: Topic) -> list[str]:
    """Returns the folders of a topic's bundles, those that were used last first."""
    found = [path for path in all_folders(layout) if os.path.basename(path).startswith(f"{where.key}.")]
    return sorted(found, key=_used, reverse=True)


def _used(path: str) -> float:
    try:
        return os.lstat(path).st_mtime
    except OSError:
        return 0.0


def find(store: Store, where: Topic, judge: Judge) -> list[Bundle]:
    """Returns the bundles of a topic that can be used. For each other one a warning says why not.

    One that is damaged is set aside. One that is not trusted now stays: a key may be missing for a minute.
    """
    bundles = []
    for folder in folders(store.layout, where):
        try:
            read = bundle.read(folder, where, store.owners)
            problem = judge(os.path.join(folder, SIGNED), read) if read.is_fetched else ""
            if not problem:
                renew(folder, RENEW_SECONDS)
                bundles.append(read)
            else:
                notices.warn(NOT_USED, where.name, folder, problem)
            continue
        except FileNotFoundError:
            if not os.path.isdir(folder):
                continue  # another process has removed it
            problem = "one of its files is missing"
        except OSError as error:
            problem = f"it cannot be read ({error.strerror})"
        except UnfitError as error:
            log.info("%s: the compiled graphs in %s are for another machine: %s", where.name, folder, error)
            continue
        except BundleError as error:
            problem = str(error)
        notices.warn(NOT_USED, where.name, folder, problem)
        # It would be read, and refused, by each process.
        if not staging.set_aside(store.layout, folder, problem):
            log.debug("%s could not be set aside", folder)
    return bundles


def add(store: Store, where: Topic, made: str, digest: str) -> str:
    """Makes a finished folder a bundle of the store; returns its folder. Raises OSError."""
    target = store.layout.path(AREA, bundle.name_of(where, digest))
    make_folder(os.path.dirname(target))
    try:
        os.rename(made, target)
        size_log.append(store.layout, size_of(target))
    except OSError:
        if not os.path.isdir(target):
            raise  # otherwise another process was first
    return target


def new_folder(store: Store, where: Topic) -> str:
    """Returns a new folder for a bundle that is made, which is swept if this process is killed. Raises OSError."""
    return staging.new_folder(store.layout, where.key)


def bound(store: Store, where: Topic, facts_of: Mapping[str, Any], kept: str) -> None:
    """Removes bundles of a topic: of those made here all whose parts are in the one in `kept`, and the longest unused.

    What another has signed is no part of one of this machine: a fetched bundle is not needless.
    """
    mine, others = frozenset(facts_of["parts"]), list[str]()
    for folder in folders(store.layout, where):
        if folder == kept:
            continue
        try:
            parts = frozenset(bundle.read_record(folder)["facts"]["parts"])
        except (OSError, BundleError):
            parts = frozenset()
        if parts <= mine and not bundle.is_fetched(folder):
            discard(folder)
        else:
            others.append(folder)
    for folder in others[MAX_BUNDLES - 1 :]:
        discard(folder)
    limits.enforce_settings(store.layout)


def parts_of(bundles: Iterable[Bundle]) -> frozenset[str]:
    """Returns what is in any of some bundles."""
    return frozenset[str]().union(*(each.parts for each in bundles))
