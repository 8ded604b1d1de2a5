"""The entries of a topic in this process: found in pages, made by one process while others wait, and kept."""

from __future__ import annotations

import logging
import os
import re
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager

from opforge.cache.current import current_store, writable_store
from opforge.cache.filesystem import lock
from opforge.cache.keys import key_of
from opforge.cache.store import Store
from opforge.errors import CacheDirError, CompileForbiddenError, LockTimeoutError
from opforge.foundation import settings
from opforge.foundation.files import make_folder, write_file
from opforge.graphs import private_folder
from opforge.torch_internals import inductor

from . import kind, page, store
from .page import Files, Page, PageError, Topic

log = logging.getLogger("opforge")
WRITE_SECONDS = 30.0
"""How long a process waits for another one that unites pages of the same topic."""
_alive: weakref.WeakSet[Entries] = weakref.WeakSet()
"""All that there are, for a forked child."""


def _replace_locks() -> None:
    """Replaces the locks in a forked child: a thread that held one is gone, and nobody would release it."""
    for one in [*_alive]:
        one._lock = threading.RLock()


os.register_at_fork(after_in_child=_replace_locks)


class Entries:
    """What is kept of one JIT under a label. All methods may be called by any thread."""

    def __init__(self, topic: Topic, holds: str, features: Iterable[str], carries: str) -> None:
        """Finds the pages of this machine, and fetches those of the remotes. What fails is a warning.

        Args:
            topic: What is kept under which label.
            holds: What the pages may hold, as an adapter says it.
            features: The instructions that what is compiled here may use.
            carries: A pattern of the paths that an entry may have.
        """
        self.topic, self._holds, self._features, self._carries = topic, holds, [*features], carries
        self.hits, self.made, self.problem = 0, list[str](), ""
        """How often an entry was found, what was compiled, and why nothing is kept."""
        self._pid, self._lock = os.getpid(), threading.RLock()
        _alive.add(self)
        self._pages, self._written = dict[str, Page](), list[str]()
        self._folder = ("", 0)
        self._note_withdrawals()
        self._look()
        if settings.remotes():
            self._fetch()

    # -- finding -------------------------------------------------------------------------------------------------------

    def get(self, key: str, counts: bool = True) -> Files | None:
        """Returns the files of an entry, each compared with its digest; None if there is none.

        `counts` is false for a caller that does not use all that it gets, and counts `hits` itself.
        """
        with self._lock:
            for _again in range(2):
                found = self._get(key)
                if found is not None:
                    self.hits += counts
                    return found
                self._look()  # another process has made it, or united pages
        return None

    def all_keys(self) -> list[str]:
        """Returns the keys of all entries."""
        with self._lock:
            self._look()
            return sorted({key for one in self._pages.values() for key in one.entries})

    def set_aside(self, key: str, problem: str) -> None:
        """Sets the pages aside that have an entry which must not be used, with a warning that says why."""
        with self._lock:
            for folder in [folder for folder, one in self._pages.items() if key in one.entries]:
                del self._pages[folder]
                store.set_aside(current_store(), self.topic, folder, problem)

    def _get(self, key: str) -> Files | None:
        for folder, one in sorted(self._pages.items(), key=lambda item: (item[1].is_fetched, item[1].facts["made"])):
            if key in one.entries:
                try:
                    problem = self._carries_problem(one.entries[key])
                    if not problem:
                        return one.entry(key)
                except FileNotFoundError:
                    problem = ""
                except (OSError, ValueError) as error:
                    problem = str(error)
                del self._pages[folder]
                if problem:
                    store.set_aside(current_store(), self.topic, folder, problem)
        return None

    def _carries_problem(self, paths: Iterable[str]) -> str:
        """Returns why an entry with these paths is never laid out; empty if it may be."""
        bad = [path for path in paths if not re.fullmatch(self._carries, path)]
        return f"{ascii(bad[0])[:100]} is no file that {self.topic.adapter} carries" if bad else ""

    def _look(self) -> None:
        for one in store.find(current_store(), self.topic, self._holds, self._judge, self._pages):
            self._pages[one.folder] = one

    def _judge(self, read: Page) -> str:
        from . import remote  # not needed for what was made here

        return remote.kept_problem(read, self.topic)

    def _note_withdrawals(self) -> None:
        layout = current_store().layout
        if settings.remotes() and any(map(page.is_fetched, kind.folders(layout, f"{self.topic.key}."))):
            from . import remote

            remote.drop_withdrawn(self.topic, layout)

    def _fetch(self) -> None:
        from . import remote

        try:
            among = writable_store()
            with self._locked(among, "", settings.compiled_wait()):  # the ranks of a job ask once
                self._look()
                known = [part for one in self._pages.values() for part in one.facts["parts"]]
                if remote.fetch(self.topic, among.layout, self._holds, known):
                    self._look()
        except (CacheDirError, LockTimeoutError, OSError) as error:
            log.warning("%s: nothing is fetched: %s", self.topic.name, error)

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
                among = self._writable()
                if among is not None:
                    claim.enter_context(self._locked(among, key, settings.compiled_wait()))
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
        """Adds an entry that was made here. What cannot be kept is a warning; a forked child keeps nothing."""
        with self._lock:
            self.made.append(what)
            problem = page.entry_problem(key, files) or self._carries_problem(files)
            if problem:
                log.warning("%s: %s is not kept: %s", self.topic.name, what, problem)
                return
            try:
                among = self._writable()
                if among is not None:
                    facts = {"holds": self._holds, "features": self._features}
                    self._written.append(store.write(among, self.topic, {key: files}, facts))
            except (OSError, ValueError) as error:
                self._note_problem(str(error))

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
            log.warning("%s: what is compiled is not kept: %s", self.topic.name, problem)

    @contextmanager
    def _locked(self, among: Store, key: str, seconds: float | None) -> Iterator[None]:
        path = among.layout.path("locks", f"jit-{key_of([self.topic.key, key])}")
        with lock.acquire(path, f"jit:{self.topic.name}", seconds):
            yield

    # -- the end -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Unites what was made here into one page, and publishes it where the settings say so."""
        if not self._written or self._pid != os.getpid():
            return
        try:
            among = writable_store()
            with self._locked(among, "unite", WRITE_SECONDS):
                self._look()
                own = [one for one in self._pages.values() if not one.is_fetched]
                mine = [one for one in own if one.folder in self._written]
                made = store.united(among, self.topic, own if len(own) > store.MAX_OWN else mine)
            if settings.remotes():
                from . import remote

                remote.publish(self.topic, among.layout, made)
        except (CacheDirError, LockTimeoutError, OSError, PageError) as error:
            log.warning("%s: what was compiled is not united: %s", self.topic.name, error)
