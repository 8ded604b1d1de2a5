"""`opforge.warm`: a scope in which JITs load code compiled under a label before, and store the code they compile."""

from __future__ import annotations

import atexit
import logging
import os
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType, TracebackType

from opforge.errors import SettingError
from opforge.foundation import settings
from opforge.foundation.after_import import call_after_import
from opforge.foundation.fork_lock import ForkLock

from . import adapter, notices
from .adapter import Adapter
from .entries import Entries
from .page import LABEL

log = logging.getLogger("opforge")
EXPECTED = "up to 100 letters, digits, '_' and '-'"
_open: list[warm] = []
_after: dict[str, Callable[[ModuleType], None]] = {}
_lock = ForkLock()


class warm:
    """A scope in which JITs load code compiled under a label from opforge's store, and store the code they compile.

        with opforge.warm("solver", jits=["triton", "triton-host"]):
            step(model, batch)  # the first call compiles, on one machine

    Missing code is fetched from the remotes, if a key signed it that is trusted for jit:ADAPTER/LABEL: such a key
    signs code for every process that warms this label. Leaving the scope unites the compiled code into a page, and
    publishes it to the remotes with `push=1`. A failure with stored code is never an error: a warning reports it, and
    the JIT compiles.

    Args:
        name: The label: up to 100 letters, digits, '_' and '-'.
        jits: Adapters by name; by default all but `inductor`. An adapter begins when its JIT is imported.

    Raises SettingError for an invalid label, and for an unknown adapter.
    """

    def __init__(self, name: str, jits: Sequence[str] | None = None) -> None:
        if not isinstance(name, str) or not re.fullmatch(LABEL, name):
            raise SettingError("name", name, EXPECTED)
        known = adapter.every()
        if isinstance(jits, str):
            raise SettingError("jits", jits, "a list of adapters, such as ['triton', 'triton-host']")
        for jit in jits or ():
            if jit not in known:
                raise SettingError("jits", jit, f"some of {', '.join(known)}")
        self.name, self._is_named = name, jits is not None
        self._paths = {jit: known[jit] for jit in (known.keys() - {*adapter.BY_NAME_ALONE} if jits is None else jits)}
        self._ready = dict[str, Adapter]()
        self._begun = dict[str, tuple[Adapter, Entries | None]]()
        self._depth = 0

    @property
    def hits(self) -> dict[str, int]:
        """Number of entries that were found, by adapter."""
        return {name: entries.hits for name, (_adapter, entries) in self._begun.items() if entries}

    @property
    def compiled(self) -> dict[str, tuple[str, ...]]:
        """The entries that were compiled since the scope began, by adapter."""
        return {name: tuple(entries.made) for name, (_adapter, entries) in self._begun.items() if entries}

    def __enter__(self) -> warm:
        """Begins the adapters of imported JITs, and each of the others when its JIT is imported."""
        with _lock:
            self._depth += 1
            if self._depth == 1:
                _open.append(self)
                self._begun = {}
                for name in self._paths:
                    self._prepare(name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Keeps what was compiled, after an error too."""
        with _lock:
            self._depth -= 1
            if self._depth:
                return
            _open.remove(self)
            begun = [*self._begun.values()]
        for one, entries in begun:
            if entries is not None:
                try:
                    one.end(entries)
                except Exception as failed:  # of another package, or of a disk
                    notices.warn("jit:%s: not all that it compiled is kept: %s", entries.topic.name, failed)
                entries.close()

    def _prepare(self, name: str) -> None:
        try:
            one = adapter.at(self._paths[name])
            if one.name != name:
                raise TypeError(f"the adapter at {self._paths[name]} is named {one.name!r}")
            problem = one.version_problem() if self._is_named and not one.version() else ""
        except Exception as error:  # of another package
            notices.warn("jit:%s cannot be used: %s: %s", name, type(error).__name__, error)
            return
        if problem:
            notices.warn("jit:%s is neither found nor kept: %s", name, problem)
            return
        self._ready[name] = one
        if one.module not in _after:
            _after[one.module] = partial(_imported, one.module)
            call_after_import((one.module,), _after[one.module])
        module = sys.modules.get(one.module)
        if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
            self._begin(name, one)

    def _begin(self, name: str, one: Adapter) -> None:
        if name in self._begun:
            return
        self._begun[name] = one, None
        try:
            if problem := one.version_problem():
                notices.warn("jit:%s/%s: %s", name, self.name, problem)
                return
            entries = one.open(self.name)
        except Exception as error:  # of a store that cannot be trusted, or of another package
            notices.warn("jit:%s/%s: its compiled code is neither found nor kept: %s", name, self.name, error)
            return
        try:
            one.begin(entries)
            self._begun[name] = one, entries
        except Exception as error:  # of another package, or of a disk
            notices.warn("jit:%s/%s: its compiled code is neither found nor kept: %s", name, self.name, error)


def _imported(name_of_module: str, _module: ModuleType) -> None:
    with _lock:
        for scope in _open:
            for name, one in scope._ready.items():
                if one.module == name_of_module:
                    scope._begin(name, one)


_job: list[warm] = []


def begin_job() -> None:
    """Begins the scope that OPFORGE_WARM names, for this whole process. A setting that cannot be one is a warning."""
    if _job:
        return
    label, _colon, jits = settings.warm().partition(":")
    try:
        scope = warm(label, [jit for jit in jits.split(",") if jit] or None)
    except SettingError as error:
        log.warning("OPFORGE_WARM: %s", error)
        return
    _job.append(scope.__enter__())
    process = os.getpid()
    atexit.register(lambda: scope.__exit__(None, None, None) if os.getpid() == process else None)
