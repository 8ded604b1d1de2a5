"""`opforge.compile`: a function or a model that starts without tracing, from code that was compiled ahead.

torch.compile traces in each process, which takes most of the time if all graphs are found. An artifact of this module
holds the whole function with its guards: see `torch_internals/dynamo.py`. It is an artifact of
a page, so it travels, is signed and is verified as compiled graphs are; inductor's libraries are the page's.

An artifact is a line of JSON, which has the state that the function depends on, and torch's pickle. The line is
compared before the pickle is read.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import json
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from opforge.foundation.arguments import checked
from opforge.foundation.fork_lock import ForkLock
from opforge.jits import notices
from opforge.torch_internals import dynamo, inductor

from . import session, topic

log = logging.getLogger("opforge")
KIND = inductor.FUNCTION
MOST = 8
"""How many compiled functions one wrapper has: for so many shapes and settings. torch.compile has the same limit."""
MAX_LINE = 8 << 20
NOT_AHEAD = "%s: %s is traced in each process: %s."
HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)
"""The attributes in which a module has hooks."""
FINDING, COMPILING = (1_000_000, 20, 100), (50_000, 20, 100)
"""Thresholds of Python's garbage collection: see `collected_rarely`. Tracing leaves garbage, which takes memory."""
HAS_HOOKS = "%s has hooks; they are traced until they are removed"


_thresholds_lock = ForkLock()
_finding = 0
"""How many calls are inside `collected_rarely`."""
_before: tuple[int, int, int] | None = None
"""The thresholds before the first of them; None if they were kept."""


@contextmanager
def collected_rarely() -> Iterator[None]:
    """Has Python look for garbage less often.

    The imports of torch's compiler make many objects that stay, and a sixth of their time goes into looking for garbage
    among them. Thresholds that are as high, or 0, stay as they are, and so do those that are set meanwhile.
    """
    global _finding, _before
    with _thresholds_lock:
        if _finding == 0:
            found = gc.get_threshold()
            _before = found if 0 < found[0] < COMPILING[0] else None
            if _before is not None:
                gc.set_threshold(*FINDING)
        _finding += 1
    try:
        yield
    finally:
        with _thresholds_lock:
            _finding -= 1
            if _finding == 0 and _before is not None and gc.get_threshold() in (FINDING, COMPILING):
                _count_as_old()
                gc.set_threshold(*_before)


def _collect_while_compiling() -> None:
    with _thresholds_lock:
        if _before is not None and gc.get_threshold() == FINDING:
            gc.set_threshold(*COMPILING)


def _count_as_old() -> None:
    """Has Python take all objects for old ones, which only a whole collection looks at.

    Otherwise the next object that is made has it look at all that were made meanwhile, which takes 0.1 s.
    """
    if gc.get_freeze_count() == 0:  # what the program has frozen stays so
        gc.freeze()
        gc.unfreeze()


@checked
def compile(
    function: Callable[..., Any],
    name: str,
    *,
    mode: str | None = None,
    dynamic: bool | None = None,
    options: Mapping[str, Any] | None = None,
) -> CompiledFunction:
    """Returns a function that is compiled once, kept under a name, and found by other processes without tracing.

        encode = opforge.compile(model, "encoder")
        loss = encode(batch).sum()  # the first call compiles, or finds what was compiled

    The compiled function is found in the user's store, or fetched from a remote with its signature, as in
    `opforge.compiled`. The whole function must be one graph. Otherwise it is traced in each process, inside
    `opforge.compiled(name)`, and a warning gives the reason.

    Args:
        function: A function, a method or a module.
        name: Up to 100 letters, digits, '_' and '-'. Raises SettingError for any other.
        mode: As torch.compile takes it.
        dynamic: As torch.compile takes it.
        options: As torch.compile takes them.
    """
    return CompiledFunction(function, name, mode, dynamic, options or {})


class CompiledFunction:
    """The compiled function that `opforge.compile` returns: call it instead of the original."""

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        mode: str | None,
        dynamic: bool | None,
        options: Mapping[str, Any],
    ) -> None:
        self.name, self._function = topic.of(name).label, function
        self._mode, self._dynamic, self._options = mode, dynamic, dict(options)
        self._lock, self._ready = ForkLock(), list[Any]()
        self._traced: Callable[..., Any] | None = None
        self._was_traced = False
        self.found, self.compiled = 0, 0
        """How many functions were found without tracing, and how many were compiled here."""
        self.problem = ""
        """Why it is traced in each process; empty if it need not be."""
        functools.update_wrapper(self, function, updated=())

    def __repr__(self) -> str:
        return f"<CompiledFunction {self.name}: {self.found} found, {self.compiled} compiled>"

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Calls the function compiled for such arguments, after finding or compiling it."""
        if not self.problem and not self._has_hooks_around():
            for each in self._ready:
                if each.fits(arguments, named):
                    return each(*arguments, **named)
            if not self._has_hooks_inside() and (ahead := self._obtained(arguments, named)) is not None:
                return ahead(*arguments, **named)
        return self._trace(arguments, named)

    def _has_hooks_around(self) -> bool:
        """Returns whether hooks run around `forward`, which alone is compiled ahead, or around that of any module."""
        module = sys.modules.get("torch.nn.modules.module")
        if module is None:
            return False
        of_all = vars(module)
        own = vars(self._function) if hasattr(self._function, "_forward_hooks") else {}
        return any(own.get(each) or of_all.get(f"_global{each}") for each in HOOKS)

    def _has_hooks_inside(self) -> bool:
        """Returns whether a module in the module has hooks. Where one has got them since, a guard fails."""
        owner: Any = getattr(self._plain, "__self__", None)
        modules = owner.modules() if hasattr(owner, "_forward_hooks") else ()
        return any(vars(module).get(each) for module in modules for each in HOOKS)

    @property
    def _plain(self) -> Any:
        """The compiled function; for a module, its forward."""
        return getattr(self._function, "forward", self._function)

    def _asked(self) -> dynamo.Options:
        return dynamo.Options(self._mode, self._dynamic, self._options)

    def _keys(self) -> list[str]:
        """Returns the keys that an artifact may have: if there may be one for all ranks its key, and this rank's."""
        return [self._key(True), self._key(False)] if dynamo.is_for_all_ranks() else [self._key(False)]

    def _key(self, is_for_all: bool) -> str:
        """Returns the key of an artifact: the function, the options of its compile, and the ranks."""
        plain = self._plain
        owner = type(getattr(plain, "__self__", None))
        texts = [plain.__module__, plain.__qualname__, owner.__module__, owner.__qualname__, repr(self._asked())]
        texts.append(dynamo.ranks(is_for_all))
        return "f" + hashlib.sha256("\0".join(map(str, texts)).encode()).hexdigest()[:40]

    @collected_rarely()
    def _obtained(self, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Finds or compiles what fits a call. Returns None if it must be traced."""
        with self._lock:
            for each in self._ready:  # another thread was here first
                if each.fits(arguments, named):
                    return each
            if len(self._ready) >= MOST:
                self._refuse(f"{MOST} functions were compiled for it, and none fits")
                return None
            begun = session.enter(self.name)
            is_error = True
            try:
                ahead = self._found(begun, arguments, named)
                if ahead is None and begun.claim(self._keys()[0]):
                    ahead = self._found(begun, arguments, named)
                if ahead is None:
                    ahead = self._compiled(begun, arguments, named)
                is_error = ahead is None  # why has been said
            finally:
                session.leave(begun, is_error)
            if ahead is not None:
                self._ready.append(ahead)
            return ahead

    def _found(self, begun: session.Session, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        for key, content in [(each, one) for each in self._keys() for one in begun.functions.get(each, ())]:
            try:
                facts, pickle = _read(content)
                if reason := dynamo.problem(facts, self._plain, self._asked(), _registrations()):
                    raise dynamo.AheadError(reason)
                ahead = dynamo.load(pickle, self._plain, facts, _registrations())
            except dynamo.AheadError as error:
                log.info("%s: the function compiled for %s is not used: %s", self.name, self._label, error)
                continue
            if ahead.fits(arguments, named):
                self.found += 1
                begun.keep_function(key, content)
                return ahead
            log.info("%s: the function compiled for %s does not fit: a guard fails", self.name, self._label)
        return None

    def _compiled(self, begun: session.Session, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        if inductor.is_forbidden():
            inductor.check_allowed(f"{self._label} for other arguments than those that were compiled")
        _collect_while_compiling()
        try:
            ahead, facts = dynamo.compiled(self._plain, arguments, named, self._asked(), _registrations())
            content = _written(facts, ahead.to_bytes())
        except dynamo.AheadError as error:
            self._refuse(str(error))
            return None
        if not ahead.fits(arguments, named):
            self._refuse("a guard does not hold right after it was compiled")
            return None
        begun.keep_function(self._keys()[-1 if facts.is_of_rank else 0], content)
        self.compiled += 1
        return ahead

    @property
    def _label(self) -> str:
        return str(getattr(self._function, "__qualname__", type(self._function).__qualname__))

    def _refuse(self, reason: str) -> None:
        self.problem = reason
        notices.warn(NOT_AHEAD, self.name, self._label, reason)

    def _trace(self, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Calls the function by torch.compile; the first call is in a scope of the name."""
        import torch

        with self._lock:
            traced, was_called = self._traced, self._was_traced
            self._was_traced = True
            if traced is None:
                options: Any = self._options or None
                traced = torch.compile(self._function, mode=self._mode, dynamic=self._dynamic, options=options)
                self._traced = traced
        if was_called:
            with dynamo.with_hook_guards():
                return traced(*arguments, **named)
        if not self.problem:
            notices.warn(NOT_AHEAD, self.name, self._label, HAS_HOOKS % self._label)
        begun = session.enter(self.name)
        is_error = True
        try:
            with dynamo.with_hook_guards():
                result = traced(*arguments, **named)
            is_error = False
        finally:
            session.leave(begun, is_error)
        return result


def _registrations() -> dynamo.Registrations:
    from opforge.builders.registration import compile_tag, described, traced

    def digest(value: Any) -> str:
        description = described.Description()
        description.add(value)
        return description.digest

    return dynamo.Registrations(
        digest, compile_tag.ops_of, compile_tag.of_ops, traced.stated, traced.problem, traced.Pinned
    )


def _written(facts: dynamo.Facts, pickle: bytes) -> bytes:
    value = {**facts._asdict(), "guards": [list(guard) for guard in facts.guards]}
    return json.dumps(value, separators=(",", ":")).encode() + b"\n" + pickle


def _read(content: bytes) -> tuple[dynamo.Facts, bytes]:
    """Returns the state that a function depends on, and its pickle. Raises AheadError."""
    line, _, pickle = content.partition(b"\n")
    try:
        value = json.loads(line) if len(line) <= MAX_LINE else {}
        guards = [dynamo.Guard(*guard) for guard in value.pop("guards")]
        return dynamo.Facts(**value, guards=guards), pickle
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise dynamo.AheadError(f"its facts cannot be read ({error})") from error
