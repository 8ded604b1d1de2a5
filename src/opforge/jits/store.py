"""The pages of a store: found, added, and united where this machine has made many."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from opforge.cache import staging
from opforge.cache.layout import Layout
from opforge.cache.maintenance import limits
from opforge.cache.records import size_log
from opforge.cache.store import Store
from opforge.foundation.files import discard, make_folder, renew, size_of

from . import features, notices, page
from .page import AREA, Files, Page, PageError, PageTopic

log = logging.getLogger("opforge")
RENEW_SECONDS = 3600.0
MAX_OWN = 8
"""How many pages of a topic that were made here stay as they are."""
NOT_USED = "%s: the content of %s is not used: %s. Missing code is compiled."


def unfit(facts: Mapping[str, Any], holds: str) -> str:
    """Returns why a page holds a kind of file that it must not hold; empty if it does not."""
    return "" if facts["holds"] == holds else f"it holds code for {facts['holds']!r}, expected {holds!r}"


def find(
    among: Store,
    where: PageTopic,
    holds: str,
    judge: Callable[[Page], str],
    but: Mapping[str, object],
    problems: dict[str, str],
) -> list[Page]:
    """Returns the pages of a topic that can be used, except those in the folders `but`.

    For each other one a warning says why not, unless `problems` has that already: a page is looked at at each miss. One
    that is damaged is set aside. One that is not trusted now stays, and so does one for another processor, of which
    nothing is said: a store may be shared.
    """
    found = list[Page]()
    for folder in page.folders(among.layout, f"{where.key}."):
        if folder in but:
            continue
        problem = ""
        try:
            read = page.read(folder, where, among.owners)
            if lacking := features.lacking(read.facts["features"]):
                log.info("%s: %s is for another machine: %s", where.name, folder, lacking)
                continue
            problem = unfit(read.facts, holds) or (judge(read) if read.is_fetched else "")
            if not problem:
                renew(folder, RENEW_SECONDS)
                found.append(read)
        except FileNotFoundError:
            if os.path.isdir(folder):  # otherwise another process has united it with others
                set_aside(among, where, folder, "one of its files is missing", problems)
        except OSError as error:
            problem = f"it cannot be read ({error.strerror})"
        except ValueError as error:
            set_aside(among, where, folder, str(error), problems)
        if problem:
            _warn(where, folder, problem, problems)
    return found


def _warn(where: PageTopic, folder: str, problem: str, problems: dict[str, str]) -> None:
    """Says why a page is not used, once."""
    if problems.get(folder) != problem:
        notices.warn(NOT_USED, where.name, folder, problem)
    problems[folder] = problem


def set_aside(among: Store, where: PageTopic, folder: str, problem: str, problems: dict[str, str]) -> None:
    """Moves a damaged page away, with a warning: otherwise each process would read it, and refuse it.

    `problems` are those of which was warned. Where nothing can be moved the page is met again.
    """
    _warn(where, folder, problem, problems)
    if not staging.set_aside(among.layout, folder, problem):
        log.debug("%s could not be set aside", folder)


def add(layout: Layout, where: PageTopic, made: str, digest: str) -> str:
    """Makes a finished folder a page of a store; returns its folder. Raises OSError.

    A page that was made here replaces an equal page that was fetched: the key of the latter may no longer be trusted.
    """
    target = layout.path(AREA, page.name_of(where, digest))
    make_folder(os.path.dirname(target))
    if page.is_fetched(target) and not page.is_fetched(made):
        discard(target)
    try:
        os.rename(made, target)
        size_log.append(layout, size_of(target))
    except OSError:
        if not os.path.isdir(target):
            raise  # otherwise another process was first
    return target


def write(among: Store, where: PageTopic, entries: Mapping[str, Files], facts: Mapping[str, Any]) -> str:
    """Writes a page of these entries; returns its folder. Raises OSError, ValueError."""
    return _write(among, where, entries.items(), facts)


def _write(among: Store, where: PageTopic, entries: Iterable[tuple[str, Files]], facts: Mapping[str, Any]) -> str:
    staged = staging.new_folder(among.layout, where.key)
    try:
        finished = os.path.join(staged, "page")
        make_folder(finished)
        stated = {**where._asdict(), "fingerprint": dict(where.fingerprint), "made": int(time.time()), **facts}
        return add(among.layout, where, finished, page.write(finished, entries, stated))
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def write_all(among: Store, where: PageTopic, entries: Mapping[str, Files], facts: Mapping[str, Any]) -> list[str]:
    """Writes these entries to as many pages as they need; returns their folders. Raises OSError, ValueError."""
    return [write(among, where, part, facts) for part in _parts(entries)]


def _parts(entries: Mapping[str, Files]) -> Iterator[Mapping[str, Files]]:
    part, size = dict[str, Files](), 0
    for key, files in entries.items():
        more = sum(map(len, files.values()))
        if part and (size + more > page.MAX_BYTES or len(part) == page.MAX_ENTRIES):
            yield part
            part, size = {}, 0
        part[key], size = files, size + more
    if part:
        yield part


def bound(among: Store, where: PageTopic, kept: Sequence[str], keys: Collection[str], most: int) -> None:
    """Removes pages of a topic that are not in `kept`: those made here whose keys are all in `keys`, and the oldest.

    At most `KEPT` stay: the ones used last. A page that another key has signed is never removed here.
    """
    mine, others = {*map(page.part_of, keys)}, list[str]()
    for folder in sorted(page.folders(among.layout, f"{where.key}."), key=_used, reverse=True):
        if folder not in kept:
            try:
                is_needless = {*page.read_record(folder)["facts"]["parts"]} <= mine
            except (OSError, PageError):
                is_needless = True
            if is_needless and not page.is_fetched(folder):
                discard(folder)
            else:
                others.append(folder)
    for folder in others[max(0, most - len(kept)) :]:
        discard(folder)
    limits.enforce_settings(among.layout)


def _used(folder: str) -> float:
    try:
        return os.lstat(folder).st_mtime
    except OSError:
        return 0.0


def united(among: Store, where: PageTopic, pages: Sequence[Page], problems: dict[str, str]) -> list[str]:
    """Unites pages that were made here, as far as one may be large; returns the folders that have their entries.

    Of two entries with a key the first one stays. Raises OSError, ValueError.
    """
    left, made = [*pages], list[str]()
    while left:
        keys, size, taken = set[str](), 0, list[Page]()
        for one in [*left]:
            if taken and (size + one.size > page.MAX_BYTES or len(keys | one.entries.keys()) > page.MAX_ENTRIES):
                continue
            try:
                page.check_tree(os.path.join(one.folder, page.TREE), one.digest, one.owners)
                keys, size = keys | one.entries.keys(), size + one.size
                taken.append(one)
            except FileNotFoundError:
                pass  # another process has united it
            except PageError as error:
                set_aside(among, where, one.folder, str(error), problems)
            left.remove(one)
        if taken:
            facts = {
                "holds": taken[0].facts["holds"],
                "features": sorted({feature for one in taken for feature in one.facts["features"]}),
            }
            folder = taken[0].folder if len(taken) == 1 else _write(among, where, _entries_of(taken), facts)
            made.append(folder)
            for one in taken:
                if one.folder != folder:
                    discard(one.folder)
    limits.enforce_settings(among.layout)
    return made


def _entries_of(pages: Sequence[Page]) -> Iterator[tuple[str, Files]]:
    """Yields the entries of pages, one after another: together they may be larger than the memory that a job leaves."""
    known = set[str]()
    for one in pages:
        for key in one.entries:
            if key not in known:
                known.add(key)
                yield key, one.entry(key)
