"""The graphs of one topic in this process: found, offered to torch, recorded and stored, for all its scopes."""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from opforge.cache.current import current_store, writable_store
from opforge.cache.filesystem import lock
from opforge.cache.filesystem.lock import LockResult
from opforge.cache.store import Store
from opforge.errors import CacheDirError, LockTimeoutError
from opforge.fast_path import library
from opforge.foundation import settings
from opforge.foundation.events import emit
from opforge.torch_internals import inductor

from . import bundle, notices, private_folder, store, topic
from .bundle import Bundle
from .recording import Recording, note_whose
from .topic import Topic

if TYPE_CHECKING:
    from .remote import Remotes

log = logging.getLogger("opforge")
WRITE_SECONDS = 30.0
"""How long a process waits for another one that writes a bundle of the same topic."""
MOST_FUNCTIONS = 16
"""How many functions of one key a bundle has: for other arguments and settings, and of other versions of the source."""
UNREAD = "torch cannot read its artifacts"
NOTHING = (
    "%s: torch compiled nothing in this scope, and there was nothing to find: what ran in it was compiled before, in"
    " this process, or is not compiled. Begin the scope before its first call"
)
ANSWERED = "%s: torch's own remote cache answered, and nothing was compiled here; what it gave is kept"
TOO_MANY = "they are %d artifacts and libraries, and a bundle has at most %d: use a name for each model"


class Session:
    """The graphs of a topic, from the first scope of this process that needs them to the end of the last one."""

    def __init__(self, where: Topic) -> None:
        """Begins without graphs."""
        self.topic, self.pid, self.scopes = where, os.getpid(), 0
        self.problem = inductor.version_problem(where.torch) if where.torch else "torch is not installed"
        """Why nothing is found or stored."""
        self.recording: Recording | None = None
        self.was_left_by_error, self.found_none = False, True
        self.bundles: list[Bundle] = []
        self.functions: dict[str, list[bytes]] = {}
        """What was compiled ahead, by key: see functions.py. Those of this machine come first."""
        self._store: Store | None = None
        self._remotes: Remotes | None = None
        self._held = ExitStack()
        """What keeps other processes waiting until this one has stored its graphs."""
        self._private = ExitStack()
        """What keeps torch's caches in a folder of this session."""

    def begin(self) -> None:
        """Finds the graphs, in the store or in a remote, or waits for who compiles them. What fails is a warning."""
        if self.problem:
            notices.warn("%s: compiled graphs are neither found nor kept: %s.", self.topic.name, self.problem)
            return
        try:
            self.found_none = not store.folders(current_store().layout, self.topic)
            self.bundles = self._still_signed(current_store(), self._find(current_store()))
            if not self.bundles:
                self._store = writable_store()
                self.bundles = self._wait(self._store)
        except (CacheDirError, OSError) as error:
            self.problem = str(error)
            log.warning("%s: compiled graphs are not kept: %s", self.topic.name, error)
        self.recording = Recording()
        inductor.observers.append(self.recording)
        inductor.watch()
        try:
            self._private.enter_context(inductor.caches_in(private_folder.new(self.topic.key)))
        except OSError as error:  # then what was found must not be given to torch, which would keep it
            self.bundles, self.problem = [], f"no private folder can be made ({error.strerror})"
            log.warning("%s: compiled graphs are neither found nor kept: %s.", self.topic.name, self.problem)
        if self.bundles:
            self._held.close()
            self.bundles = [each for each in self.bundles if self._load(each)]
            self.recording.offer(self.bundles)
        if not self.problem:  # the folder is torch's for all threads
            with _lock:
                others = [other for other in _sessions.values() if other.pid == os.getpid()]
            for each in [each for other in others for each in other.bundles]:
                self._load(each, is_own=False)

    def _find(self, among: Store) -> list[Bundle]:
        return store.find(among, self.topic, self._judge)

    def _still_signed(self, among: Store, found: list[Bundle]) -> list[Bundle]:
        """Returns those bundles that nobody has withdrawn: a remote is asked, as nothing needs to be fetched."""
        if settings.remotes() and any(each.is_fetched for each in found):
            from opforge.remote import take  # not needed for what was made here

            take.drop_withdrawn(self.topic.name, f"compiled:{self.topic.name}", among.layout)
            found = [each for each in found if os.path.isdir(each.folder)]
        return found

    def _judge(self, note: str, read: Bundle) -> str:
        from . import remote  # not needed for what was made here

        return remote.kept_problem(note, read, self.topic)

    def _wait(self, among: Store) -> list[Bundle]:
        """Returns graphs that other processes or machines have compiled meanwhile; none if this one is to compile."""
        seconds, before = settings.compiled_wait(), store.folders(among.layout, self.topic)
        path = among.layout.path("locks", f"{bundle.AREA}-{self.topic.key}")
        label = f"the compiled graphs of {self.topic.name}"
        try:
            result = self._held.enter_context(
                lock.acquire(path, label, seconds, lambda: store.folders(among.layout, self.topic) != before)
            )
        except LockTimeoutError as error:
            notices.warn("%s They are compiled here too.", str(error).partition(" Raise ")[0])
            result = LockResult.READY
        found = self._find(among)
        if found or result is LockResult.READY or not settings.remotes():
            return found
        from .remote import Remotes  # most programs have none

        self._remotes = Remotes(self.topic, among)
        return self._find(among) if self._remotes.fetch(seconds) else []

    def _load(self, each: Bundle, is_own: bool = True) -> bool:
        """Gives a bundle's artifacts to torch; returns whether it took them. It may be one of another name's scope."""
        import torch

        try:
            content = each.artifacts()
            artifacts = inductor.unpacked(content)
            note_whose(each, artifacts)
            for kind, key, function in artifacts:
                if is_own and kind == inductor.FUNCTION and function not in self.functions.setdefault(key, []):
                    self.functions[key].append(function)
            if torch.compiler.load_cache_artifacts(content) is not None:
                return True
        except Exception as error:  # of unpickling: anything
            log.debug("%s: %s", each.folder, error)
        notices.warn(store.NOT_USED, self.topic.name, each.folder, UNREAD)
        return False

    # -- functions that were compiled ahead: see functions.py ----------------------------------------------------------

    def keep_function(self, key: str, content: bytes) -> None:
        """Keeps a function that was compiled ahead, with those of the key that this machine has compiled before."""
        if self.recording is not None:
            for each in [content, *self.functions.get(key, ())][:MOST_FUNCTIONS]:
                self.recording.artifact(inductor.FUNCTION, key, each)

    def claim(self, key: str) -> bool:
        """Waits while another process compiles a function; returns whether there are new bundles.

        None is waited for if this process is the first: then the others wait until its scope ends.
        """
        if self.problem:
            return False
        try:
            among = self._store or writable_store()
            known = {each.folder for each in self.bundles}
            before = store.folders(among.layout, self.topic)
            path = among.layout.path("locks", f"{bundle.AREA}-{self.topic.key}-{key}")
            label = f"a compiled function of {self.topic.name}"
            is_new = lambda: store.folders(among.layout, self.topic) != before  # noqa: E731
            self._held.enter_context(lock.acquire(path, label, settings.compiled_wait(), is_new))
            new = [each for each in self._find(among) if each.folder not in known]
        except LockTimeoutError as error:
            notices.warn("%s It is compiled here too.", str(error).partition(" Raise ")[0])
            return False
        except (CacheDirError, OSError) as error:
            log.info("%s: nobody is waited for: %s", self.topic.name, error)
            return False
        loaded = [each for each in new if self._load(each)]
        self.bundles += loaded
        if self.recording is not None:
            self.recording.offer(loaded)
        return bool(loaded)

    # -- the end -------------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Stores what was compiled and is in no bundle, and lets waiting processes go on. A failure is a warning."""
        recording, self.recording = self.recording, None
        if recording is None:
            return
        inductor.observers.remove(recording)
        made = ""
        try:
            if self.pid == os.getpid() and not self.problem:
                made = self._save(recording)
        except (OSError, ValueError) as error:  # a full disk, a lock that is held
            log.warning("%s: compiled graphs were not kept: %s", self.topic.name, error)
        finally:
            self._private.close()
            self._held.close()
            if self._remotes is not None:
                self._remotes.end(False)
        fields: dict[str, Any] = {"graphs": recording.graphs, "result": os.path.basename(made)}
        emit("compile", op=self.topic.name, seconds=round(recording.seconds, 6), **fields)
        is_idle = self.found_none and not recording.graphs and not self.bundles
        if is_idle and recording.parts:
            log.info(ANSWERED, self.topic.name)
        elif is_idle and not self.problem and not self.was_left_by_error and not settings.remotes():
            notices.warn(NOTHING, self.topic.name)  # with remotes, what was refused there has been said
        if recording.seconds:
            text = "%s: torch.compile took %.2f s, and %d graphs were compiled"
            log.info(text, self.topic.name, recording.seconds, len(recording.graphs))

    def _save(self, recording: Recording) -> str:
        """Writes a bundle unless this machine has one with all that was compiled here; returns its folder, or "".

        What fetched bundles have is not written: these stay, with their signatures. Raises OSError, ValueError.
        """
        parts = recording.parts
        new = parts - store.parts_of(each for each in self.bundles if not each.is_fetched)
        if not new:
            self._publish("")
            return ""
        if len(parts) > bundle.MAX_KEYS:
            raise ValueError(TOO_MANY % (len(parts), bundle.MAX_KEYS))
        among = self._store or writable_store()
        path = among.layout.path("locks", f"{bundle.AREA}-{self.topic.key}-write")
        with lock.acquire(path, f"the compiled graphs of {self.topic.name}", WRITE_SECONDS):
            known = {each.folder for each in self.bundles}
            others = [each for each in self._find(among) if each.folder not in known and not each.is_fetched]
            # Another process has compiled the same graphs: its bytes differ, and serve as well.
            if bundle.keys_of(new) <= bundle.keys_of(store.parts_of(others)):
                return ""
            for each in others:  # of other ranks, say: a topic has room for few bundles
                self._join(recording, each)
            folder = self._write(among, recording)
        self._publish(folder)
        return folder

    def _join(self, recording: Recording, other: Bundle) -> None:
        """Adds the functions that another process has compiled meanwhile, with the rest of their bundle."""
        try:
            artifacts = inductor.unpacked(other.artifacts())
        except Exception as error:  # of unpickling: anything
            log.debug("%s: %s", other.folder, error)
            return
        if not any(kind == inductor.FUNCTION for kind, _key, _content in artifacts):
            return
        note_whose(other, artifacts)
        for artifact in artifacts:
            recording.artifact(*artifact)
        for key, path in other.libraries.items():
            recording.library(key, path)

    def _write(self, among: Store, recording: Recording) -> str:
        facts = {
            **self.topic._asdict(),
            "features": [*topic.features()],
            "parts": sorted(recording.parts),
            "ops": library.loaded_ops(),
            "made": int(time.time()),
        }
        staged = store.new_folder(among, self.topic)
        try:
            finished = os.path.join(staged, "bundle")
            os.mkdir(finished, 0o700)
            digest = bundle.write(finished, inductor.packed(recording.artifacts), recording.libraries, facts)
            folder = store.add(among, self.topic, finished, digest)
        finally:
            shutil.rmtree(staged, ignore_errors=True)
        store.bound(among, self.topic, facts, folder)
        return folder

    def _publish(self, folder: str) -> None:
        if self._remotes is None and folder and settings.remotes():
            from .remote import Remotes

            self._remotes = Remotes(self.topic, self._store or current_store())
        if self._remotes is not None:
            self._remotes.publish(folder)


_sessions: dict[str, Session] = {}
_beginning: dict[str, threading.RLock] = {}
_lock = threading.Lock()


def enter(name: str) -> Session:
    """Returns the session of a name, with one scope more. Scopes of one name share it, in all threads.

    Raises SettingError for a name that cannot be one.
    """
    where = topic.of(name)
    with _lock:
        beginning = _beginning.setdefault(where.key, threading.RLock())
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
