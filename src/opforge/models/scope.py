"""`kernels_for`: a scope in which layers of a model run kernels, and `explain_kernels`, which says which and why not.

A layer's kernel is an attribute `forward` of the module: its class, parameters, hooks and state stay the model's.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from types import MethodType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from opforge.errors import KernelMappingError, KernelScopeError
from opforge.foundation.arguments import checked
from opforge.foundation.fork_lock import ForkLock

from . import layers
from .mapping import Entries, LayerKernel, modes_of, parse
from .mapping import problem as entry_problem
from .replaced import Record, Rules, forward_of

if TYPE_CHECKING:
    from torch.nn import Module

NO_BACKWARD = "it has no backward, and the scope is for training"
PATCHED = "other code has replaced its forward, which a kernel would leave out"
NOT_COMPILED = "it does not say that torch.compile traces it"
LEAVE = "Leave the scope of kernels_for first"
ORDER, AGAIN = "Leave scopes in their order", "Make a scope for each `with`"
NEARNESS = 0.8
"""How similar a name of a mapping and that of a class are if one is meant for the other."""
CALLS = ("_call_impl", "_wrapped_call_impl")
"""The functions of a module that is being called."""
_scopes: WeakKeyDictionary[Any, list[kernels_for]] = WeakKeyDictionary()
_records: WeakKeyDictionary[Any, list[Record]] = WeakKeyDictionary()
_methods: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()
"""The methods that modules had: a scope that is entered again uses the same, so that nothing is compiled again."""
_lock = ForkLock()
_reported: set[tuple[str, ...]] = set()
"""Models with the names of mappings that they have no class for, which were logged."""
log = logging.getLogger("opforge.kernels")


class kernels_for:
    """A scope in which layers of a model run the kernels of a mapping.

        with kernels_for(model, {"RMSNorm": "org/norms:RMSNorm"}, mode="training"):
            ...

    Args:
        model: A torch.nn.Module.
        mapping: A class, or its name, alone or with its module, to "ORG/NAME:Layer", a `LayerKernel`, or a list of
            them, of which the most specific one that fits is taken.
        mode: "inference" or "training", joined by "+" with "compiled" if torch.compile compiles the model.
        on_error: "raise", or "original": then a call whose kernel fails is answered by the original, unless the kernel
            has changed its inputs, or may have. The first such call is logged, and `explain_kernels` counts them.
        check: How many calls of each layer are compared with the original, gradients and buffers too.
        bound: The greatest difference that such a call may have.
        on_difference: "error", or "original": then the original takes over.

    Leaving restores every method, after an exception too. Raises KernelMappingError for a mapping, or a kernel that
    breaks the rules for layers, before anything is replaced; KernelScopeError for a model that is in a scope of another
    thread, or is being run; and what `opforge.get_kernel` raises.
    """

    @checked
    def __init__(
        self,
        model: Module,
        mapping: Mapping[str | type, Entries],
        *,
        mode: str = "inference",
        on_error: str = "raise",
        check: int = 0,
        bound: float = 1e-3,
        on_difference: str = "error",
    ) -> None:
        for name, value, allowed in (
            ("on_error", on_error, ("raise", "original")),
            ("on_difference", on_difference, ("error", "original")),
        ):
            if value not in allowed:
                raise KernelMappingError(f"{name}={value!r}", "", " or ".join(map(repr, allowed)))
        self._model, self._mapping, self._modes = model, parse(mapping), modes_of(mode, "mode")
        self._rules, self._thread = Rules(on_error, check, bound, on_difference), 0
        self._key = (on_error, check, bound, on_difference)
        self._loaded: dict[tuple[int, type], type] = {}
        self._before: list[tuple[dict[str, Any], str, Any]] = []

    def __enter__(self) -> Any:
        """Replaces the methods, and returns the model."""
        named = list(self._model.named_modules())  # once: torch walks a model in 4 us a module
        with _lock:
            self._refuse({module for _name, module in named})
            chosen, records = self._choose(named)
            self._thread = threading.get_ident()
            for module, method in chosen:
                self._set(module, "forward", method)
            guards = {name: _Guard(_name_of(self._model), problem) for name, problem in GUARDED.items()}
            for module in {self._model, *(module for module, _method in chosen)}:
                for name, guard in guards.items():
                    self._set(module, name, guard)
            _scopes.setdefault(self._model, []).append(self)
            _records[self._model] = records
        return self._model

    def __exit__(self, *error: object) -> None:
        """Restores the methods."""
        with _lock:
            scopes = _scopes.get(self._model, [])
            if not scopes or scopes[-1] is not self:
                raise KernelScopeError(
                    _name_of(self._model), "an outer scope is left first", "Leave scopes in their order"
                )
            if error[0] is None:
                self._refuse_running({*self._model.modules()})
            for attributes, name, value in reversed(self._before):
                if value is self:
                    attributes.pop(name, None)
                else:
                    attributes[name] = value
            self._before.clear()
            scopes.pop()
            if not scopes:
                del _scopes[self._model]

    def _set(self, module: Any, name: str, value: Any) -> None:
        attributes = module.__dict__
        self._before.append((attributes, name, attributes.get(name, self)))
        attributes[name] = value

    def _refuse(self, parts: set[Any]) -> None:
        """Raises KernelScopeError if the model, or a part of it, is in a scope of another thread or is being run."""
        if self._before:
            raise KernelScopeError(
                _name_of(self._model), "this scope is entered already", "Make a scope for each `with`"
            )
        for other, scopes in _scopes.items():
            if not parts.isdisjoint(other.modules()) and scopes[-1]._thread != threading.get_ident():
                raise KernelScopeError(_name_of(self._model), "another thread has a scope on it", "Use one at a time")
            if other is not self._model and not parts.isdisjoint(other.modules()):
                raise KernelScopeError(_name_of(self._model), "it shares layers with a model in a scope", LEAVE)
        self._refuse_running(parts)

    def _refuse_running(self, parts: set[Any]) -> None:
        own = threading.get_ident()
        for thread, frame in sys._current_frames().items():
            if thread != own and any(_runs(part, parts) for part in _callers(frame)):
                advice = "Wait until its calls have ended, then enter or leave the scope"
                raise KernelScopeError(_name_of(self._model), "another thread runs it", advice)

    def _choose(self, parts: list[tuple[str, Any]]) -> tuple[list[tuple[Any, MethodType]], list[Record]]:
        """Returns the modules with their methods, and the outcome for each layer that the mapping names."""
        named = self._named_classes({type(module): None for _name, module in parts})
        names = {kind: _own_class(kind).__qualname__ for kind in named}
        chosen, records = [], []
        device = _device_of((module for _name, module in parts), "cpu")
        found: dict[tuple[type, str], tuple[LayerKernel | None, str, str]] = {}
        for name, module in parts:
            kind = type(module)
            if kind not in named:
                continue
            record = Record(name, names[kind])
            records.append(record)
            if _is_patched(module):
                record.reason = PATCHED
                continue
            entries = self._mapping[named[kind]]
            here = _device_of(module.modules() if module._modules else (module,), device)
            fitting = found.get((kind, here)) or self._fitting(entries, module, here)
            if all(entry.condition is None for entry in entries):
                found[kind, here] = fitting  # it is the same for all layers of the class
            entry, record.kernel, record.reason = fitting
            if entry is not None:
                method, records[-1] = self._method(module, entry, record)
                chosen.append((module, method))
        return chosen, records

    def _fitting(self, entries: list[LayerKernel], module: Any, device: str) -> tuple[LayerKernel | None, str, str]:
        """Returns the entry for a module and its text, or None and why the original stays.

        Raises KernelMappingError for a wrong layer.
        """
        reasons = []
        for entry in entries:
            reason = entry_problem(entry, module, device, _architectures(entry, device), self._modes)
            layer = None if reason else self._layer(entry, type(module))
            if layer is not None and "training" in self._modes and not layers.has_backward(layer):
                reason = NO_BACKWARD
            elif layer is not None and "compiled" in self._modes and not layers.can_compile(layer):
                reason = NOT_COMPILED
            if not reason:
                return entry, str(entry), ""
            reasons.append(f"{entry}: {reason}")
        return None, "", "; ".join(reasons)

    def _method(self, module: Any, entry: LayerKernel, record: Record) -> tuple[MethodType, Record]:
        """Returns the module's method, and its record: the same as the last time, if it had this kernel then."""
        layer = self._layer(entry, type(module))
        made = _methods.setdefault(module, {})
        key = (layer, self._key, record.kernel, record.name)
        if key not in made:
            # A method that refers to its module from here would keep it alive.
            made[key] = forward_of(layer, type(module).forward, record, self._rules), record
        function, kept = made[key]
        kept.reset()
        return MethodType(function, module), kept

    def _layer(self, entry: LayerKernel, original: type) -> type:
        """Returns the layer of an entry. Raises KernelMappingError if it cannot take the place of a class's forward."""
        layer = self._loaded.get((id(entry), original))
        if layer is None:
            layer = entry.load()
            if broken := layers.problem(layer, original):
                raise KernelMappingError(f"{entry} for {original.__qualname__}", broken, "a layer as the hub has them")
            self._loaded[id(entry), original] = layer
        return layer

    def _named_classes(self, of_model: Iterable[type]) -> dict[type, str]:
        """Returns the key of the mapping for each class of the model. Raises KernelMappingError for one named twice."""
        found: dict[type, str] = {}
        kinds_of_model = [*of_model]
        for kind in dict.fromkeys(map(_own_class, kinds_of_model)):
            keys = [key for key in dict.fromkeys(_names_of(kind)) if key in self._mapping]
            if len(keys) > 1:
                raise KernelMappingError(
                    keys[0], f"the class is named by {' and by '.join(keys)}", "one name of a class"
                )
            found |= dict.fromkeys([kind], keys[0]) if keys else {}
        if twice := next((key for key, count in Counter(found.values()).items() if count > 1), ""):
            kinds = [f"{kind.__module__}.{kind.__qualname__}" for kind, key in found.items() if key == twice]
            if not any(hasattr(kind, "kernel_layer_name") for kind in found):
                raise KernelMappingError(twice, f"the model has {' and '.join(kinds)}", "the name with its module")
        self._report_unused({*found.values()}, [kind for kind in map(_own_class, kinds_of_model) if kind not in found])
        return {kind: found[_own_class(kind)] for kind in kinds_of_model if _own_class(kind) in found}

    def _report_unused(self, used: set[str], others: Iterable[type]) -> None:
        """Reports names of the mapping that no layer of the model has; `others` are its classes without a kernel.

        Raises KernelMappingError for one that is nearly the name of such a class, or if no name of the mapping is used.
        Otherwise it is logged: a mapping may be for several models. One of our own for layers of any model is not.
        """
        unused = [name for name, entries in self._mapping.items() if name not in used]
        unused = [name for name in unused if not all(entry.is_for_any_model for entry in self._mapping[name])]
        names = dict.fromkeys(name for kind in others for name in _names_of(kind) if name)
        for name in unused:
            near = get_close_matches(name, names, n=1, cutoff=NEARNESS)
            if near or not used:
                shown = ", ".join(sorted({kind.__name__ for kind in others}))
                expected = f"{near[0]!r}, or another" if near else "a"
                problem = f"the model {_name_of(self._model)} has no such class"
                raise KernelMappingError(name, problem, f"{expected} class of the model: {shown}")
        if unused and (_name_of(self._model), *unused) not in _reported:
            _reported.add((_name_of(self._model), *unused))
            log.warning("kernels_for: the model %s has no %s", _name_of(self._model), ", no ".join(unused))


GUARDED = {
    "_opforge_scope": "it is copied or saved with its kernels",
    "__prepare_scriptable__": "it is scripted with its kernels",
    "_apply": "it is moved or converted, and its kernels were chosen for its present device and dtype",
}
"""Attributes of a module in a scope -> the code that uses them and would silently take the kernels along."""


class _Guard:
    """Stands in a module's attributes: whatever copies, pickles or calls it gets the error."""

    def __init__(self, model: str, problem: str) -> None:
        self._model, self._problem = model, problem

    def __call__(self, *_arguments: Any, **_keywords: Any) -> Any:
        raise KernelScopeError(self._model, self._problem, LEAVE)

    def __reduce_ex__(self, _protocol: Any) -> Any:
        raise KernelScopeError(self._model, GUARDED["_opforge_scope"], LEAVE)


@checked
def explain_kernels(model: Module) -> Explanation:
    """Returns one line for each layer that the last scope's mapping named: its kernel, or the reason for having none.

    The attributes of a line are `name`, `layer`, `kernel`, `reason`, `failed`, `originals`, `checked`, `difference` and
    `unchecked`. Raises KernelScopeError for a model that had no scope.
    """
    records = _records.get(model)
    if records is None:
        raise KernelScopeError(_name_of(model), "no scope was entered on it", "Use kernels_for(model, mapping)")
    return Explanation(records)


class Explanation(list[Record]):
    """The lines of `explain_kernels`; printed, one below the other."""

    def __str__(self) -> str:
        """Returns the lines."""
        return "\n".join(map(str, self))

    __repr__ = __str__  # what a notebook shows of the last expression of a cell


def _is_patched(module: Any) -> bool:
    """Returns whether a module has a forward of its own that is neither its class's nor a scope's."""
    method = vars(module).get("forward")
    made = (function for function, _record in _methods.get(module, {}).values())
    return method is not None and getattr(method, "__func__", None) not in made


def _name_of(model: Any) -> str:
    return type(model).__qualname__


def _names_of(kind: type) -> tuple[str, ...]:
    """Returns the names by which a mapping may name a class."""
    return getattr(kind, "kernel_layer_name", ""), kind.__name__, f"{kind.__module__}.{kind.__qualname__}"


def _own_class(kind: type) -> type:
    """Returns the class that a module was made of: FSDP2 gives one that it shards a class of that and its own."""
    return kind.__bases__[1] if [base.__name__ for base in kind.__bases__[:-1]] == ["FSDPModule"] else kind


def _device_of(modules: Iterable[Any], default: str) -> str:
    """Returns the type of the device of the first parameter, or buffer, of these modules themselves."""
    buffer = None
    for module in modules:  # torch's walks over parameters and buffers take 14 us a module together
        for tensor in module._parameters.values():
            if tensor is not None:
                return str(tensor.device.type)
        if buffer is None:
            buffer = next((tensor for tensor in module._buffers.values() if tensor is not None), None)
    return default if buffer is None else str(buffer.device.type)


def _architectures(entry: LayerKernel, device: str) -> tuple[str, ...]:
    if not entry.architectures:
        return ()
    from opforge.builders.declaration.machine import this_machine

    return tuple(this_machine(device).devices)


def _callers(frame: Any) -> Iterator[Any]:
    """Yields the modules that a thread is calling, by its frames."""
    while frame is not None:
        if frame.f_code.co_name in CALLS:
            yield frame.f_locals.get("self")
        frame = frame.f_back


def _runs(module: Any, parts: set[Any]) -> bool:
    """Returns whether a module that is called is one of these, or a compiled form of one."""
    return module in parts or getattr(module, "_orig_mod", None) in parts
