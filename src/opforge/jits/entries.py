"""The entries of a topic in this process: found in pages, made by one process while others wait, and kept."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from opforge.cache.current_store import current_store, writable_store
from opforge.cache.filesystem import lock
from opforge.cache.filesystem.lock import LockResult
from opforge.cache.keys import key_of
from opforge.cache.store import Store
from opforge.errors import CacheDirError, CompileForbiddenError, LockTimeoutError
from opforge.foundation import settings
from opforge.foundation.files import make_folder, write_file
from opforge.foundation.fork_lock import ForkLock
from opforge.torch_internals import inductor

from . import page, private_folder, store
from .page import Files, Page, PageTopic

if TYPE_CHECKING:
    from .remote import PageRemotes

log = logging.getLogger("opforge")
WRITE_SECONDS = 30.0
"""How long a process waits for another one that unites pages of the same topic."""


class Entries:
    """The entries of one JIT under a label. All methods may be called by any thread."""

    def __init__(
        self, topic: PageTopic, holds: str, features: Iterable[str], carries: str, asks_remotes: bool = True
    ) -> None:
        """Finds the pages of this machine, and fetches pages of the remotes. A failure is a warning.

        Args:
            topic: The adapter, the label and the target of the entries.
            holds: What the pages may hold, as an adapter says it.
            features: The instructions that what is compiled here may use.
            carries: A pattern of the paths that an entry may have.
            asks_remotes: Whether the remotes are asked now, whatever is here; otherwise `fetch` asks them.
        """
        self.topic, self._holds, self._features, self._carries = topic, holds, [*features], carries
        self.hits, self.made, self.problem = 0, list[str](), ""
        """How often an entry was found, what was compiled, and why nothing is kept."""
        self._pid, self._lock = os.getpid(), ForkLock()
        self._pages, self._written = dict[str, Page](), list[str]()
        self._problems = dict[str, str]()
        """Why pages are not used, by their folders: each was warned of once."""
        self._folder = ("", 0)
        self._remotes: list[PageRemotes] = []
        self._note_withdrawals()
        self._look()
        if asks_remotes and settings.remotes():
            self._fetch()

    # -- finding -------------------------------------------------------------------------------------------------------

    def get(self, key: str) -> Files | None:
        """Returns the files of an entry, each compared with its digest; None if there is none."""
        found = self.find(key)
        return None if found is None else found[1]

    def find(self, key: str, counts: bool = True) -> tuple[Page, Files] | None:
        """Returns what `get` returns, with the page that has it.

        `counts` is false for a caller that does not use all that it gets, and counts `hits` itself.
        """
        with self._lock:
            for _again in range(2):
                if (found := self._find(key)) is not None:
                    self.hits += counts
                    return found
                self._look()  # another process has made it, or united pages
        return None

    def all_keys(self) -> list[str]:
        """Returns the keys of all entries."""
        with self._lock:
            self._look()
            return sorted({key for one in self._pages.values() for key in one.entries})

    @property
    def pages(self) -> list[Page]:
        """The pages that are in use: those that were made here first, of these the oldest."""
        return sorted(self._pages.values(), key=lambda one: (one.is_fetched, one.facts["made"]))

    def look(self) -> None:
        """Finds the pages that other processes have made since."""
        with self._lock:
            self._look()

    def set_aside(self, key: str, problem: str) -> None:
        """Sets the pages aside that have an entry which must not be used, with a warning that says why."""
        with self._lock:
            for folder in [folder for folder, one in self._pages.items() if key in one.entries]:
                del self._pages[folder]
                store.set_aside(current_store(), self.topic, folder, problem, self._problems)

    def _find(self, key: str) -> tuple[Page, Files] | None:
        for one in self.pages:
            if key in one.entries and (found := self.read(one, key)) is not None:
                return one, found
        return None

    def read(self, one: Page, key: str) -> Files | None:
        """Returns the files of an entry of a page, each compared with its digest.

        None if the page cannot be used: a damaged one is set aside.
        """
        try:
            problem = self._carries_problem(one.entries[key])
            if not problem:
                return one.entry(key)
        except FileNotFoundError:
            problem = "" if not os.path.isdir(one.folder) else "one of its files is missing"
        except OSError as error:
            problem = f"it cannot be read ({error.strerror})"
        except ValueError as error:
            problem = str(error)
        with self._lock:
            self._pages.pop(one.folder, None)
        if problem:
            store.set_aside(current_store(), self.topic, one.folder, problem, self._problems)
        return None

    def _carries_problem(self, paths: Iterable[str]) -> str:
        """Returns why an entry with these paths is never laid out; empty if it may be."""
        bad = [path for path in paths if not re.fullmatch(self._carries, path)]
        return f"{ascii(bad[0])[:100]} is not a file of the adapter {self.topic.adapter}" if bad else ""

    def _look(self) -> None:
        for one in store.find(current_store(), self.topic, self._holds, self._judge, self._pages, self._problems):
            self._pages[one.folder] = one

    def _judge(self, read: Page) -> str:
        from . import remote  # not needed for what was made here

        return remote.kept_problem(read, self.topic)

    def _note_withdrawals(self) -> None:
        layout = current_store().layout
        if settings.remotes() and any(map(page.is_fetched, page.folders(layout, f"{self.topic.key}."))):
            from . import remote

            remote.drop_withdrawn(self.topic, layout)

    def _fetch(self) -> None:
        try:
            with self.locked(writable_store(), "", settings.compiled_wait()):  # the ranks of a job ask once
                self._look()
                self.fetch()
        except (CacheDirError, LockTimeoutError, OSError) as error:
            log.warning("%s: nothing is fetched: %s", self.topic.name, error)

    def fetch(self) -> bool:
        """Fetches the pages that have something new; returns whether there are any. Raises CacheDirError, OSError."""
        known = [part for one in self._pages.values() for part in one.facts["parts"]]
        is_new = self.remotes().fetch(known)
        if is_new:
            self.look()
        return is_new

    def remotes(self) -> PageRemotes:
        """Returns the remotes for these entries. Raises CacheDirError, OSError."""
        if not self._remotes:
            from . import remote

            self._remotes.append(remote.PageRemotes(self.topic, writable_store().layout, self._holds))
        return self._remotes[0]

    # -- making --------------------------------------------------------------------------------------------------------

    def made_once(self, key: str, what: str, make: Callable[[], Files]) -> Files:
        """Returns an entry, or makes it: one process does, and the others wait at most OPFORGE_COMPILED_WAIT seconds.

        Raises CompileForbiddenError, and what `make` raises.
        """
        with ExitStack() as claim:
            found = self.get_or_claim(key, what, claim)
            if found is None:
                found = make()
                self.put(key, what, found)
        return found

    def get_or_claim(
        self, key: str, what: str, claim: ExitStack, look: Callable[[], Files | None] | None = None
    ) -> Files | None:
        """Returns an entry; None if this process is to make it: others wait for it until `claim` is closed.

        `what` is what messages call it; `look` looks for what has not this very key. Raises CompileForbiddenError in a
        scope of `opforge.no_builds`.
        """
        look = look or (lambda: self.get(key))
        found = look()
        if found is None:
            self.check_allowed(what)
            try:
                if (among := self._writable()) is not None:
                    claim.enter_context(self.locked(among, key, settings.compiled_wait()))
                    found = look()  # another process may have made it by now
            except LockTimeoutError as error:
                log.warning("%s It is made here too.", str(error).partition(" Raise ")[0])
        if found is not None:
            claim.close()
        return found

    def check_allowed(self, what: str) -> None:
        """Raises CompileForbiddenError in a scope of `opforge.no_builds`. `what` is what would be compiled."""
        if inductor.is_forbidden():
            raise CompileForbiddenError(what, self.topic.label)

    def put(self, key: str, what: str, files: Files) -> None:
        """Adds an entry that was made here. A failure to keep it is a warning; a forked child keeps nothing."""
        with self._lock:
            self.made.append(what)
            if problem := page.entry_problem(key, files) or self._carries_problem(files):
                log.warning("%s: %s is not kept: %s", self.topic.name, what, problem)
                return
            try:
                if (among := self._writable()) is not None:
                    self._written.append(store.write(among, self.topic, {key: files}, self._facts()))
            except (OSError, ValueError) as error:
                self._note_problem(str(error))

    def keep(self, entries: Mapping[str, Files], most: int) -> list[str]:
        """Writes pages of these entries; returns their folders. Those made here that have nothing else are removed.

        Of the topic at most so many pages stay, those that were used last. What cannot be kept is a warning. Raises
        OSError, ValueError.
        """
        fitting = dict[str, Files]()
        for key, files in entries.items():
            if problem := page.entry_problem(key, files) or self._carries_problem(files):
                log.warning("%s: %s is not kept: %s", self.topic.name, key, problem)
            else:
                fitting[key] = files
        among = self._writable()
        if among is None or not fitting:
            return []
        folders = store.write_all(among, self.topic, fitting, self._facts())
        store.bound(among, self.topic, folders, fitting, most)
        return folders

    def _facts(self) -> dict[str, object]:
        return {"holds": self._holds, "features": self._features}

    def lay(self, key: str, files: Files) -> dict[str, str]:
        """Writes the files of an entry to a folder that this user alone can read; returns their paths.

        It is removed when the process ends. Raises OSError.
        """
        with self._lock:
            if self._folder[1] != os.getpid():
                self._folder = private_folder.new(self.topic.key), os.getpid()
            paths = {path: os.path.join(self._folder[0], key_of(key), path) for path in files}
        for path, content in files.items():
            make_folder(os.path.dirname(paths[path]))
            write_file(paths[path], content, 0o700)
        return paths

    def _writable(self) -> Store | None:
        if self.problem or self._pid != os.getpid():
            return None
        try:
            return writable_store()
        except (CacheDirError, OSError) as error:
            self._note_problem(str(error))
            return None

    def _note_problem(self, problem: str) -> None:
        if not self.problem:
            self.problem = problem
            log.warning("%s: compiled code is not kept: %s", self.topic.name, problem)

    @contextmanager
    def locked(
        self, among: Store, key: str, seconds: float | None, what: str = "", is_ready: Callable[[], bool] | None = None
    ) -> Iterator[LockResult]:
        """Holds the lock of a key in a store, as `lock.acquire` does. `what` is what messages call it."""
        path = among.layout.path("locks", f"jit-{key_of([self.topic.key, key])}")
        with lock.acquire(path, what or f"jit:{self.topic.name}", seconds, is_ready) as result:
            yield result

    # -- the end -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Unites what was made here into one page, and publishes it where the settings say so."""
        if not self._written or self._pid != os.getpid():
            return
        try:
            among = writable_store()
            with self.locked(among, "unite", WRITE_SECONDS):
                self._look()
                own = [one for one in self._pages.values() if not one.is_fetched]
                mine = [one for one in own if one.folder in self._written]
                made = store.united(among, self.topic, own if len(own) > store.MAX_OWN else mine, self._problems)
            if settings.remotes():
                self.remotes().publish(made)
        except (CacheDirError, LockTimeoutError, OSError, ValueError) as error:
            log.warning("%s: compiled code is not united: %s", self.topic.name, error)
