"""The graphs of one topic in this process: found, offered to torch, recorded and stored, for all its scopes."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain
from typing import Any

from opforge.cache.current_store import current_store, writable_store
from opforge.cache.filesystem.lock import LockResult
from opforge.errors import CacheDirError, LockTimeoutError
from opforge.foundation import settings
from opforge.foundation.events import emit
from opforge.foundation.fork_lock import ForkLock
from opforge.jits import features, notices, page, private_folder
from opforge.jits.entries import WRITE_SECONDS, Entries
from opforge.jits.page import Files, Page, PageTopic
from opforge.jits.store import NOT_USED
from opforge.torch_internals import inductor

from . import content, topic
from .content import Artifact
from .recording import Recording, note_whose

log = logging.getLogger("opforge")
MOST_FUNCTIONS, MOST_BYTES = 16, 64 << 20
"""How many functions of one key a new page takes from those before, for other arguments and settings, and of other
versions of the source; and how many bytes of all keys."""
MOST_PAGES = 4
"""How many pages of a topic are kept: of several models, shapes and versions under one name."""
UNREAD = "torch cannot read its artifacts"
NOTHING = (
    "%s: torch compiled nothing in this scope, and there was nothing to find: what ran in it was compiled before, in"
    " this process, or is not compiled. Begin the scope before its first call"
)
Read = tuple[Page, list[Artifact]]
"""A page, and its artifacts that torch takes."""
ANSWERED = "%s: torch's own remote cache answered, and nothing was compiled here; its answer is kept"


class Session:
    """The graphs of a topic, from the first scope of this process that needs them to the end of the last one."""

    def __init__(self, where: PageTopic) -> None:
        """Begins without graphs."""
        self.topic, self.pid, self.scopes = where, os.getpid(), 0
        torch = where.fingerprint["torch"]
        self.problem = inductor.version_problem(torch) if torch else "torch is not installed"
        """Why nothing is found or stored."""
        self.recording: Recording | None = None
        self.was_left_by_error, self.found_none = False, True
        self.entries: Entries | None = None
        self.pages: list[Page] = []
        """The pages that were found and loaded into torch."""
        self._seen: set[str] = set()
        """The folders of all pages that this session has read, whether torch could take them or not."""
        self.functions: dict[str, list[bytes]] = {}
        """Functions that were compiled ahead, by key: see functions.py. Functions of this machine come first."""
        self._held = ExitStack()
        """The lock that other processes wait for until this one has stored its graphs."""
        self._private = ExitStack()
        """The scope that keeps torch's caches in a folder of this session."""

    @property
    def name(self) -> str:
        """Its name in scopes."""
        return self.topic.label

    def begin(self) -> None:
        """Finds the graphs, in the store or in a remote, or waits for their compiler. A failure is a warning."""
        if self.problem:
            notices.warn("%s: compiled graphs are neither found nor kept: %s.", self.name, self.problem)
            return
        first: Read | None = None
        try:
            self.found_none = not self._folders()
            self.entries = self._opened()
            first = next(found := self._new(), None)
            if first is None:
                self._wait(self.entries)
                first = next(found := self._new(), None)
        except (CacheDirError, OSError) as error:
            self.problem = str(error)
            log.warning("%s: compiled graphs are not kept: %s", self.name, error)
        self.recording = Recording()
        inductor.observers.append(self.recording)
        inductor.watch()
        try:
            self._private.enter_context(inductor.caches_in(private_folder.new(self.topic.key)))
        except OSError as error:  # then what was found must not be given to torch, which would keep it
            first, self.problem = None, f"no private folder can be made ({error.strerror})"
            log.warning("%s: compiled graphs are neither found nor kept: %s.", self.name, self.problem)
        if first is not None:
            self._held.close()
            self._take(chain([first], found))
        if not self.problem:  # the folder is torch's for all threads
            with _lock:
                others = [other for other in [*_sessions.values()] if other.pid == os.getpid()]
            for other in others:
                for one in [*other.pages]:
                    if (artifacts := other._artifacts(one)) is not None:
                        other._give(one, artifacts)
                        artifacts.clear()

    def _opened(self) -> Entries:
        made = features.features()
        return Entries(self.topic, content.HOLDS, made, content.CARRIES, asks_remotes=False)

    def _folders(self) -> list[str]:
        return page.folders(current_store().layout, f"{self.topic.key}.")

    def _wait(self, entries: Entries) -> None:
        """Finds what other processes or machines have compiled meanwhile; nothing if this one is to compile."""
        seconds = settings.compiled_wait()
        result = self._lock_key("", "the compiled graphs of", "They are compiled here too.")
        entries.look()
        if not entries.pages and result is not LockResult.READY and settings.remotes() and not entries.fetch():
            remotes = entries.remotes()
            self._held.callback(remotes.end, False)
            if remotes.claim(0.0 if seconds is None else seconds):
                entries.look()

    def _lock_key(self, key: str, what: str, too: str) -> LockResult:
        """Waits until no other process holds the lock of a key, or there are new pages; holds it until the end."""
        assert self.entries is not None
        before = self._folders()
        is_new: Callable[[], bool] = lambda: self._folders() != before  # noqa: E731
        label, seconds = f"{what} {self.name}", settings.compiled_wait()
        try:
            return self._held.enter_context(
                self.entries.locked(writable_store(), f"made {key}", seconds, label, is_new)
            )
        except LockTimeoutError as error:
            notices.warn("%s %s", str(error).partition(" Raise ")[0], too)
            return LockResult.READY

    def _new(self) -> Iterator[Read]:
        """Yields the pages that this session has not read yet, with their artifacts, which are read one by one."""
        assert self.entries is not None
        for one in [one for one in self.entries.pages if one.folder not in self._seen]:
            artifacts = self._artifacts(one)
            # A damaged page has been set aside, and may be fetched again.
            if any(used.folder == one.folder for used in self.entries.pages):
                self._seen.add(one.folder)
            if artifacts is not None:
                yield one, artifacts

    def _take(self, found: Iterable[Read]) -> bool:
        """Gives pages to torch, and offers their libraries; returns whether it took any.

        The artifacts of a page are dropped before the next one is read: together they may be larger than the memory.
        """
        assert self.entries is not None
        taken = list[Page]()
        for one, artifacts in found:
            if self._give(one, artifacts):
                taken.append(one)
                self.entries.hits += len(artifacts)
                for kind, key, function in artifacts:
                    if kind == inductor.FUNCTION and function not in self.functions.setdefault(key, []):
                        self.functions[key].append(function)
            artifacts.clear()
        self.pages += taken
        if self.recording is not None:
            self.recording.offer(self.entries, taken)
        return bool(taken)

    def _give(self, one: Page, artifacts: Sequence[Artifact]) -> bool:
        """Gives the artifacts of a page to torch; returns whether it took them."""
        import torch

        note_whose(one.is_fetched, artifacts)
        try:
            if not artifacts or torch.compiler.load_cache_artifacts(inductor.packed(artifacts)) is not None:
                return True
        except Exception as error:  # of unpickling: anything
            log.debug("%s: %s", one.folder, error)
        notices.warn(NOT_USED, self.topic.name, one.folder, UNREAD)
        return False

    def _artifacts(self, one: Page) -> list[Artifact] | None:
        """Returns the artifacts of a page; None if it cannot be used: a damaged one is set aside."""
        assert self.entries is not None
        read = dict[str, Files]()
        for key in one.entries:
            if not key.startswith(content.LIBRARY):
                files = self.entries.read(one, key)
                if files is None:
                    return None
                read[key] = files
        try:
            return [*content.artifacts_in(read)]
        except Exception as error:  # of torch's own format: anything
            log.debug("%s: %s", one.folder, error)
        notices.warn(NOT_USED, self.topic.name, one.folder, UNREAD)
        return None

    # -- functions that were compiled ahead: see functions.py ----------------------------------------------------------

    def keep_function(self, key: str, function: bytes) -> None:
        """Keeps a function that was compiled ahead, or found."""
        _used.add(content.key_of(inductor.FUNCTION, key, function))
        if self.recording is not None:
            self.recording.artifact(inductor.FUNCTION, key, function)

    def claim(self, key: str) -> bool:
        """Waits while another process compiles a function; returns whether there are new pages.

        None is waited for if this process is the first: then the others wait until its scope ends.
        """
        if self.problem or self.entries is None:
            return False
        try:
            self._lock_key(key, "a compiled function of", "It is compiled here too.")
            self.entries.look()
        except (CacheDirError, OSError) as error:
            log.info("%s: no other process is waited for: %s", self.name, error)
            return False
        return self._take(self._new())

    # -- the end -------------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Stores what was compiled and is in no page, and lets waiting processes go on. A failure is a warning."""
        recording, self.recording = self.recording, None
        if recording is None:
            return
        inductor.observers.remove(recording)
        if self.pid != os.getpid():  # a forked child: its parent goes on, and others wait for that one
            self._private.close()
            _of_parents.append(self._held)
            return
        made = list[str]()
        try:
            if not self.problem and self.entries:
                made = self._save(self.entries, recording)
        except (CacheDirError, LockTimeoutError, OSError, ValueError) as error:  # a full disk, a lock that is held
            log.warning("%s: compiled graphs were not kept: %s", self.name, error)
        finally:
            self._private.close()
            self._held.close()
        fields: dict[str, Any] = {"graphs": recording.graphs, "result": ",".join(map(os.path.basename, made))}
        emit("compile", op=self.name, seconds=round(recording.seconds, 6), **fields)
        is_idle = self.found_none and not recording.graphs and not self.pages
        if is_idle and recording.keys:
            log.info(ANSWERED, self.name)
        elif is_idle and not self.problem and not self.was_left_by_error and not settings.remotes():
            notices.warn(NOTHING, self.name)  # with remotes, what was refused there has been said
        if recording.seconds:
            text = "%s: torch.compile took %.2f s, and %d graphs were compiled"
            log.info(text, self.name, recording.seconds, len(recording.graphs))

    def _save(self, entries: Entries, recording: Recording) -> list[str]:
        """Writes a page unless this machine has all that was compiled here; returns the folders of what was written.

        Artifacts of fetched pages are not written: these pages stay, with their signatures. Raises CacheDirError,
        OSError, LockTimeoutError, ValueError.
        """
        in_use = {one.folder for one in entries.pages}  # one that was damaged is not
        new = recording.keys - _keys_of(one for one in self.pages if one.folder in in_use and not one.is_fetched)
        if not new:
            return []
        with entries.locked(writable_store(), "write", WRITE_SECONDS, f"the compiled graphs of {self.name}"):
            entries.look()
            others = [one for one in entries.pages if one.folder not in self._seen and not one.is_fetched]
            # Another process has compiled the same graphs: its bytes differ, and serve as well.
            if {*map(content.name_of, new)} <= {*map(content.name_of, _keys_of(others))}:
                return []
            before = self._functions_of([one for one in entries.pages if not one.is_fetched])
            folders = entries.keep({**before, **recording.entries()}, MOST_PAGES)
        if settings.remotes():
            entries.remotes().publish(folders)
        return folders

    def _functions_of(self, pages: Sequence[Page]) -> dict[str, Files]:
        """Returns the functions in pages of this machine, with their libraries: as few pages are kept, each has all.

        Those that this process has used come first, then those of the newest page.
        """
        assert self.entries is not None
        pages_of = {key: one for one in pages for key in one.entries}
        names = [key for one in reversed(pages) for key in one.entries if content.is_function(key)]
        taken, numbers, size = dict[str, Files](), Counter[str](), 0
        for key in sorted(dict.fromkeys(names), key=lambda name: name not in _used):
            files = self.entries.read(pages_of[key], key) or {}
            try:
                artifacts = [*content.artifacts_in({key: files})]
                needed = [each for each in content.libraries_of(artifacts) if each in pages_of and each not in taken]
            except ValueError as error:
                log.debug("%s: %s", pages_of[key].folder, error)
                continue
            added = {key: files, **{each: self.entries.read(pages_of[each], each) or {} for each in needed}}
            size += sum(len(data) for each in added.values() for data in each.values())
            numbers[content.name_of(key)] += 1
            if numbers[content.name_of(key)] <= MOST_FUNCTIONS and size <= MOST_BYTES:
                note_whose(False, artifacts)
                taken.update({each: data for each, data in added.items() if data})
        return taken


def _keys_of(pages: Iterable[Page]) -> frozenset[str]:
    return frozenset(key for one in pages for key in one.entries)


_used: set[str] = set()
"""The entries of the functions that this process has compiled or found."""
_sessions: dict[str, Session] = {}
_beginning: dict[str, ForkLock] = {}
_lock = ForkLock()
_of_parents: list[ExitStack] = []
"""In a forked child, the locks of the parent: the child never releases them, and keeps them from garbage collection."""


def enter(name: str) -> Session:
    """Returns the session of a name, with one scope more. Scopes of one name share it, in all threads.

    Raises SettingError for a name that cannot be one.
    """
    where = topic.of(name)
    with _lock:
        beginning = _beginning.setdefault(where.key, ForkLock())
    with beginning:  # a second thread waits until the first has found the graphs
        session = _sessions.get(where.key)
        if session is None or session.pid != os.getpid():  # a forked child has its parent's, which it does not store
            session = Session(where)
            session.begin()
            _sessions[where.key] = session
        session.scopes += 1
        return session


def leave(session: Session, by_error: bool = False) -> None:
    """Ends a scope of a session; the last one stores what was compiled."""
    with _beginning[session.topic.key]:
        session.was_left_by_error |= by_error
        session.scopes -= 1
        if session.scopes == 0:
            if _sessions.get(session.topic.key) is session:
                del _sessions[session.topic.key]
            session.end()
