"""Describes Python values of any type by a digest that is the same in every process.

Values with equal digests behave alike. The digest of a function covers its code and everything the code reads:
defaults, closure, globals, and imports that run with it. The digest of an object covers its class and its state. A
value that Python's library, torch or an installed package has under a name is described by the name and the version.
A value that cannot be described is an error; it is not skipped.
"""

from __future__ import annotations

import abc
import builtins
import contextvars
import copyreg
import ctypes
import dis
import functools
import hashlib
import importlib
import importlib.util
import logging
import os
import sys
import sysconfig
import threading
import types
import weakref
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from importlib.machinery import EXTENSION_SUFFIXES
from typing import Any, NamedTuple

from opforge.fast_path import library
from opforge.foundation.fork_lock import ForkLock

MAX_VALUES, MAX_BYTES = 200_000, 64 << 20
"""More is an error: a description is made for each graph."""
PLAIN = (type(None), type(...), type(NotImplemented), bool, int, float, complex, str, bytes)
"""Types whose values are described by their repr."""
NEUTRAL = (type(threading.Lock()), type(threading.RLock()), ForkLock, logging.Logger, logging.Handler)
"""Types whose state does not decide what a function returns."""
UNTRACKED = (*PLAIN, tuple, frozenset, types.CodeType)
"""Types whose equal constants may or may not be the same object, by chance."""
NATIVE: tuple[type, ...] = (
    types.BuiltinFunctionType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
)
"""Types of functions and attributes that are machine code."""
WRAPPED: Mapping[type, tuple[str, ...]] = {
    property: ("fget", "fset", "fdel"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    types.MethodType: ("__func__", "__self__"),
    types.MethodWrapperType: ("__name__", "__self__"),
    functools.partial: ("func", "args", "keywords"),
    functools._lru_cache_wrapper: ("__wrapped__",),
}
"""Classes that wrap functions -> the attributes that hold the wrapped function."""
NOT_DONE = frozenset(
    [
        "__doc__",
        "__module__",
        "__dict__",
        "__weakref__",
        "__firstlineno__",
        "__annotations__",
        "__annotate__",
        "__annotate_func__",
        "__annotations_cache__",
        "__qualname__",
        "__slotnames__",
        "__static_attributes__",
        "__classdictcell__",
        "_abc_impl",
        "_backward_cls",
    ]
)
"""Attributes of a class that do not affect its behaviour. Torch adds `_backward_cls` to each autograd.Function, with a
different number in each process."""
COPIED = {*functools.WRAPPER_ASSIGNMENTS, "__wrapped__"}
"""Attributes that a wrapper copies from its function."""
WRAPPER_ID = "_torchdynamo_wrapper_id"
"""An attribute that torch adds to functions: a number that differs in each process."""
OPEN, CLOSE = "(", ")"
VARIABLES = frozenset((*dis.haslocal, *dis.hasfree)) | {
    dis.opmap[name] for name in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS") if name in dis.opmap
}
"""Instructions that name a variable."""
ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "DELETE_ATTR")
CHECKED = "_check_pystubs_once.<locals>.inner", "checked"
"""A variable of torch's wrapper of fake kernels: whether it has run."""


class UndescribedError(ValueError):
    """A value cannot be described; the text names the value and the place where it is used."""


class Of(NamedTuple):
    """A value to describe."""

    value: Any
    name: str = ""
    """The name of the value's place, for messages."""


Part = str | Of
"""Part of a description: a text, or another value."""


class Description:
    """A digest of values. A value that occurs again is a reference to its first occurrence."""

    def __init__(self) -> None:
        """Begins without a value."""
        self.ops: dict[str, None] = {}
        """The ops that the values may call, by public name. The kernels registered for these ops count too."""
        self._digest = hashlib.sha256()
        self._seen: dict[int, tuple[int, Any]] = {}  # with the object, so that no other one gets its id
        self._values, self._bytes = 0, 0
        self._names: set[str] = set()
        """Every name in the functions, including names in texts."""
        self._passed_on: dict[str, types.ModuleType] = {}
        """Modules whose attributes any of the functions may use."""
        self._stated: set[tuple[str, str]] = set()
        """The module attributes that are described already: (module, attribute)."""

    @property
    def digest(self) -> str:
        """The digest so far."""
        return self._digest.hexdigest()

    def add(self, *values: Any, name: str = "") -> None:
        """Adds values, which are used at a place that messages call `name`. Raises UndescribedError."""
        # A list of iterators, and no recursion: functions that call each other may be a long chain.
        stack: list[tuple[Iterator[Part], str]] = [
            (self._parts_of_passed_on(), name),
            (iter([Of(value, name) for value in values]), name),
        ]
        while stack:
            parts, place = stack[-1]
            try:
                part = next(parts, None)
                if isinstance(part, str):
                    self._feed(part.encode("utf-8", "surrogatepass"))
            except Exception as error:  # of any type's code
                text = str(error) if isinstance(error, (UndescribedError, RecursionError)) else _failed(error)
                raise UndescribedError(f"{text}{f', in {place}' if place else ''}") from error
            if part is None:
                stack.pop()
            elif isinstance(part, Of):
                stack.append((self._parts(part.value), part.name or place))

    def _feed(self, data: bytes) -> None:
        self._bytes += len(data)
        if self._bytes > MAX_BYTES:
            raise UndescribedError(f"it depends on more than {MAX_BYTES >> 20} MiB of values")
        self._digest.update(b"%d:" % len(data) + data)

    def _parts(self, value: Any) -> Iterator[Part]:
        kind = type(value)
        self._values += 1
        if self._values > MAX_VALUES:
            raise UndescribedError(f"it depends on more than {MAX_VALUES} values")
        if kind in PLAIN:
            yield f"{kind.__name__} {value!r}"
            return
        if kind not in UNTRACKED:
            if id(value) in self._seen:
                yield f"again {self._seen[id(value)][0]}"
                return
            self._seen[id(value)] = len(self._seen), value
        yield OPEN + kind.__qualname__
        yield from self._parts_of(value, kind)
        yield CLOSE

    def _parts_of(self, value: Any, kind: type) -> Iterator[Part]:
        if (own := self._torch_parts(value, kind)) is not None:
            yield from own
        elif (name := _fixed_name(value)) is not None:
            yield name
        elif isinstance(value, types.FunctionType):
            yield from self._function_parts(value)
        elif isinstance(value, types.CodeType):
            yield from _code_parts(value)
        elif isinstance(value, type):
            yield from _class_parts(value)
        elif isinstance(value, types.ModuleType):
            yield from self._module_parts(value)
        elif kind in (tuple, list):
            yield from map(Of, value)
        elif kind in (dict, types.MappingProxyType):
            yield from (Of(part) for item in value.items() for part in item)
        elif kind in (set, frozenset):
            yield from sorted(self._alone(item) for item in value)
        elif wrapped := [each for each in WRAPPED if issubclass(kind, each)]:
            yield from _wrapper_parts(value, kind, wrapped[0])
        elif kind is types.CellType:
            yield from _cell_parts(value)
        elif kind is contextvars.ContextVar:
            yield value.name
            yield from _variable_parts(value)
        elif isinstance(value, weakref.ref):
            yield Of(value())
        elif isinstance(value, NEUTRAL):
            yield str(getattr(value, "name", ""))
            yield Of(kind)
        elif isinstance(value, NATIVE):
            yield from _native_parts(value)
        else:
            yield from _object_parts(value, kind)

    def _alone(self, value: Any) -> str:
        """Returns the digest of an item of a set: sets have no order."""
        inner = Description()
        inner._seen, inner._values = dict(self._seen), self._values
        inner.add(value)
        self.ops |= inner.ops
        self._values = inner._values
        self._names |= inner._names
        self._passed_on |= inner._passed_on
        return inner.digest

    # -- what is torch's -----------------------------------------------------------------------------------------------

    def _torch_parts(self, value: Any, kind: type) -> list[Part] | None:
        """Returns the parts of a value of torch's own types; None for any other."""
        if isinstance(value, library.LoadedOp):
            self.ops.update(dict.fromkeys(library.defined.get(value.__entry__.key, ())))
            return [f"op {value.__entry__.key}"]
        torch = sys.modules.get("torch")
        if torch is None or not hasattr(torch, "library"):
            return None
        if kind in (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.finfo, torch.iinfo):
            return [repr(value)]
        if isinstance(value, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
            name = value._qualified_op_name if isinstance(value, torch._ops.OpOverloadPacket) else value.name()
            self.ops[name.partition(".")[0] if isinstance(value, torch._ops.OpOverload) else name] = None
            return [f"op {name}"]
        if isinstance(value, torch._library.custom_ops.CustomOpDef):
            self.ops[value._qualname] = None
            return [f"op {value._qualname}"]
        if isinstance(value, torch.library.Library):
            return [f"library {value.ns}"]
        if isinstance(value, torch.Tensor):
            return [_tensor_text(torch, value, MAX_BYTES - self._bytes), Of(vars(value))]
        return None

    # -- functions -----------------------------------------------------------------------------------------------------

    def _function_parts(self, function: types.FunctionType) -> Iterator[Part]:
        yield Of(function.__code__, function.__qualname__)
        yield Of(function.__defaults__)
        yield Of(function.__kwdefaults__)
        names, uses = _names(function.__code__), _uses(function.__code__)
        self._names |= names | _texts(function.__code__)
        used: list[tuple[str, str, Any]] = []
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if (function.__qualname__, variable) == CHECKED:
                continue
            try:
                used.append((f"closure {variable}", variable, cell.cell_contents))
            except ValueError:
                yield f"empty {variable}"
        known = function.__globals__
        used += ((f"global {name}", name, known[name]) for name in names & known.keys())
        read = {path[0] for path in uses if path} & names - known.keys()
        used += ((f"builtin {name}", name, vars(builtins)[name]) for name in read & vars(builtins).keys())
        used += ((f"attribute {name}", "", value) for name, value in vars(function).items() if name != WRAPPER_ID)
        used += _imported(function)
        for text, variable, value in sorted(used, key=lambda item: item[:2]):
            yield text
            if variable and isinstance(value, types.ModuleType):
                yield from self._used_of(value, names, {value.__name__})
                yield from map(Of, _passed_on(value, variable, uses))
            else:
                yield Of(value, f"{text.rpartition(' ')[2]} of {function.__qualname__}")
            self._note_ops(value, names)

    def _used_of(self, module: types.ModuleType, names: set[str], above: set[str]) -> Iterator[Part]:
        """Yields the parts of the module attributes that a function names."""
        if (version := _version_of(module.__name__)) is not None:
            yield f"module {module.__name__} {version}"
            return
        yield f"module {module.__name__}"
        yield from self._module_code(module)
        for name in sorted(names & vars(module).keys()):
            value = vars(module)[name]
            yield name
            if not isinstance(value, types.ModuleType):
                yield Of(value, f"{module.__name__}.{name}")
            elif value.__name__ not in above:
                yield from self._used_of(value, names, {*above, value.__name__})

    def _module_parts(self, module: types.ModuleType) -> Iterator[Part]:
        """Yields the parts of a module whose used attributes are not known: the content of its file.

        The attributes that functions name are added at the end: the file may import them from another one.
        """
        version = _version_of(module.__name__)
        yield f"{module.__name__} {version}"
        self._passed_on[module.__name__] = module
        is_folder = "__path__" in vars(module) and not vars(module).get("__file__")  # a package without a file
        if version is None and not is_folder:
            yield _library_text(module.__name__, any_file=True) or _unknown_module(module)
        if version is None:
            yield from self._module_code(module)

    def _module_code(self, module: types.ModuleType) -> Iterator[Part]:
        """Yields the code that computes a module's attributes: its `__getattr__`, or a class of its own."""
        if type(module) is not types.ModuleType:
            self._passed_on[module.__name__] = module
            yield Of(type(module))
        if "__getattr__" in vars(module):
            yield Of(vars(module)["__getattr__"], f"{module.__name__}.__getattr__")

    def _parts_of_passed_on(self) -> Iterator[Part]:
        """Yields the attributes that any function names, of modules that belong to no installed package."""
        while waiting := sorted(
            (place, name)
            for place, module in self._passed_on.items()
            for name in {"", *(self._names & vars(module).keys())}
            if (place, name) not in self._stated and not name.startswith("__")
        ):
            for place, name in waiting:
                self._stated.add((place, name))
                module = self._passed_on[place]
                self._note_ops(module, self._names)
                if name and _version_of(place) is None:
                    yield f"{place}.{name}"
                    yield Of(vars(module)[name], f"{place}.{name}")

    def _note_ops(self, value: Any, names: set[str]) -> None:
        """Notes the ops that a function with these names may reach by torch, torch.ops or a namespace of it."""
        torch = sys.modules.get("torch")
        if torch is None or not hasattr(torch, "ops"):
            return
        if isinstance(value, torch._ops._OpNamespace):
            spaces = {value.name}
        elif value is torch.ops or (value is torch and "ops" in names):
            spaces = names
        else:
            return
        known = {name.partition(".")[0] for name in torch._C._dispatch_get_all_op_names()}
        self.ops.update(dict.fromkeys(known & {f"{space}::{name}" for space in spaces for name in names}))


def _names(code: types.CodeType) -> set[str]:
    """Returns the globals and attributes that a code object names, with those of the functions in it."""
    inner = [_names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return set(code.co_names).union(*inner)


def _texts(code: types.CodeType) -> set[str]:
    """Returns the texts in a code object that may be names of attributes."""
    inner = [_texts(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return {text for text in code.co_consts if isinstance(text, str) and text.isidentifier()}.union(*inner)


def _instructions(code: types.CodeType) -> Iterator[dis.Instruction]:
    return (each for each in dis.get_instructions(code) if each.opname != "EXTENDED_ARG")


def _uses(code: types.CodeType) -> set[tuple[str, ...]]:
    """Returns each variable that a code object reads, with the chain of attributes that the code takes from it."""
    uses = set[tuple[str, ...]]()
    path: tuple[str, ...] = ()
    for instruction in _instructions(code):
        if path and instruction.opname in ATTRIBUTES:
            path = (*path, instruction.argval)
            continue
        *others, last = ((), *((name,) for name in _read(instruction, code)))
        uses |= {path, *others}
        path = last
    return uses.union([path], *(_uses(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)))


def _read(instruction: dis.Instruction, code: types.CodeType) -> tuple[str, ...]:
    """Returns the variables that an instruction reads. Putting a variable into a closure is not a read."""
    if instruction.opcode not in VARIABLES or "LOAD_" not in instruction.opname:
        return ()
    argument = instruction.argval
    names = argument if isinstance(argument, tuple) else (argument,)
    stored = instruction.opname.startswith("STORE_")  # two instructions in one
    cells = () if "DEREF" in instruction.opname else (*code.co_cellvars, *code.co_freevars)
    return tuple(name for name in names[stored:] if name not in cells)


def _passed_on(module: types.ModuleType, variable: str, uses: set[tuple[str, ...]]) -> list[types.ModuleType]:
    """Returns the modules that a function takes from a variable other than to use an attribute, such as an argument."""
    passed = dict[str, types.ModuleType]()
    for path in uses:
        found: Any = module if path[:1] == (variable,) else None
        for name in path[1:]:
            found = vars(found).get(name) if isinstance(found, types.ModuleType) else None
        if isinstance(found, types.ModuleType):
            passed[found.__name__] = found
    return [passed[name] for name in sorted(passed)]


def _code_parts(code: types.CodeType) -> Iterator[Part]:
    yield code.co_code.hex()
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    yield repr((counts, names))
    yield getattr(code, "co_exceptiontable", b"").hex()
    yield from map(Of, code.co_consts)


def _cell_parts(cell: types.CellType) -> Iterator[Part]:
    try:
        yield Of(cell.cell_contents)
    except ValueError:  # the variable has no value yet
        yield "empty"


def _wrapper_parts(value: Any, kind: type, wrapped: type) -> Iterator[Part]:
    """Yields the parts of a wrapper of a function: the function, and the attributes that only the wrapper has."""
    yield from (Of(getattr(value, name)) for name in WRAPPED[wrapped])
    if kind is not wrapped:
        yield from _attribute_parts(value, kind, _slots(kind))
    elif kind is not types.MethodType:  # this one answers with the attributes of its function
        own = {name: part for name, part in getattr(value, "__dict__", {}).items() if name not in COPIED}
        yield Of(own)


def _variable_parts(variable: contextvars.ContextVar[Any]) -> Iterator[Part]:
    try:
        yield Of(variable.get())
    except LookupError:  # it has no value here, and no default
        yield "empty"


def _imported(function: types.FunctionType) -> Iterator[tuple[str, str, Any]]:
    """Yields the imports that a function runs: a text that names the import, its variable, and its value.

    Raises UndescribedError.
    """
    package = function.__globals__.get("__package__") or function.__globals__.get("__name__", "").rpartition(".")[0]
    for name, level, attribute, variable in _imports(function.__code__):
        try:
            full = importlib.util.resolve_name("." * level + name, package) if level else name
        except ImportError:
            full = name
        module = _import(full)
        if not attribute:
            yield f"import {full}", variable, module
            top = full.partition(".")[0]
            yield f"import {top}", variable, _import(top)
        else:
            value = getattr(module, attribute, None) if module else None
            is_submodule = module is not None and not hasattr(module, attribute)
            yield f"import {full} {attribute}", variable, _import(f"{full}.{attribute}") if is_submodule else value


def _imports(code: types.CodeType) -> Iterator[tuple[str, int, str, str]]:
    """Yields for each variable that an import statement sets the module, its level, the attribute, and the variable."""
    before: list[Any] = [None, None]
    module: str | None = None
    listed: tuple[str, ...] | None = None
    level, attribute = 0, ""
    for instruction in _instructions(code):
        argument = instruction.argval
        if instruction.opname == "IMPORT_NAME":
            module, (level, listed) = argument, before
        elif instruction.opname == "IMPORT_FROM":
            attribute = argument
        elif module is not None and instruction.opname.startswith("STORE_"):
            variable = argument[0] if isinstance(argument, tuple) else argument
            yield module, level or 0, attribute if listed else "", variable
            module = module if listed else None
        elif listed and instruction.opname == "POP_TOP":
            module = None
        before = [before[1], argument]
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _imports(constant)


def _import(name: str) -> Any:
    """Returns the module that a function would import; its name and version if installed; None if missing."""
    if (module := sys.modules.get(name)) is not None:
        return module
    if (version := _version_of(name)) is not None:
        return f"{name} {version}"
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
    except Exception as error:  # whatever its code raises
        raise UndescribedError(f"the module {name} cannot be imported ({type(error).__name__}: {error})") from error


# -- classes and objects -----------------------------------------------------------------------------------------------


def _class_parts(kind: type) -> Iterator[Part]:
    yield f"{kind.__module__}.{kind.__qualname__}"
    yield _library_text(kind.__module__)
    if type(kind) is not type:
        yield Of(type(kind))
    yield from (Of(base) for base in kind.__bases__ if base is not object)
    if "_abc_impl" in vars(kind):  # what was registered as a subclass
        yield Of({reference() for reference in vars(abc)["_get_dump"](kind)[0]})
    for name, value in sorted(vars(kind).items()):
        if name not in NOT_DONE:
            yield name
            is_own = isinstance(value, NATIVE) and getattr(value, "__objclass__", None) is kind
            yield f"attribute {value.__name__}" if is_own else Of(value, f"{kind.__qualname__}.{name}")


def _object_parts(value: Any, kind: type) -> Iterator[Part]:
    """Yields the parts of an instance: its class, its attributes, and the state that its type keeps in C."""
    slots = _slots(kind)
    yield from _attribute_parts(value, kind, slots)
    if _has_more(kind, len(slots)) and not isinstance(value, threading.local):
        yield from _reduced_parts(value, kind)


def _attribute_parts(value: Any, kind: type, slots: Mapping[str, Any]) -> Iterator[Part]:
    yield Of(kind)
    own = dict(getattr(value, "__dict__", None) or {})
    for name, slot in slots.items():
        try:
            own[name] = slot.__get__(value)
        except AttributeError:
            yield f"empty {name}"
    for name in sorted(own, key=str):
        yield str(name)
        yield Of(own[name], f"{kind.__qualname__}.{name}")


def _slots(kind: type) -> dict[str, Any]:
    """Returns the descriptors made by `__slots__`, by class and attribute name."""
    return {
        f"{base.__qualname__}.{name}": value
        for base in kind.__mro__
        if "__slots__" in vars(base)
        for name, value in vars(base).items()
        if isinstance(value, types.MemberDescriptorType)
    }


def _has_more(kind: Any, slots: int) -> bool:
    """Returns whether instances have more than attributes: then a type in C has a state of its own."""
    words = (
        slots + (kind.__dictoffset__ > 0) + (kind.__weakrefoffset__ > 0)
    )  # one that Python manages is negative, and no word
    return bool(kind.__itemsize__) or kind.__basicsize__ > object.__basicsize__ + words * ctypes.sizeof(ctypes.c_void_p)


def _reduced_parts(value: Any, kind: type) -> Iterator[Part]:
    """Yields the parts of an object that pickle would use to make it again."""
    reduce = copyreg.dispatch_table.get(kind)
    for name in ("__reduce_ex__", "__reduce__"):
        method = getattr(kind, name)
        if reduce is None and isinstance(method, types.FunctionType) and _version_of(method.__module__) is None:
            raise UndescribedError(f"{_shown(value)} has a {name} of its own, which may leave something out")
    try:
        reduced = reduce(value) if reduce else value.__reduce_ex__(4)
    except Exception as error:  # of any type's code
        raise UndescribedError(f"{_shown(value)} has no description ({str(error)[:100]})") from error
    if isinstance(reduced, str):
        yield _place_of(value, reduced)
        return
    for number, part in enumerate(reduced):
        yield f"{number}"
        if number in (3, 4) and part is not None:  # the items of a list or a dict
            yield from map(Of, part)
        else:
            yield Of(part)


def _place_of(value: Any, name: str) -> str:
    """Returns a name, with a version, under which an installed package has an object. Raises UndescribedError."""
    modules = [item for item in sys.modules.items() if isinstance(item[1], types.ModuleType)]
    having = sorted(place for place, module in modules if vars(module).get(name) is value)
    for place in (getattr(value, "__module__", None), type(value).__module__, *having):
        if isinstance(place, str) and _version_of(place) is not None and _found(place, name) is value:
            return f"{place}.{name} {_version_of(place)}"
    raise UndescribedError(f"{_shown(value)} has no description (no installed package has {name})")


def _failed(error: Exception) -> str:
    return f"a value's own code failed when the value was described ({type(error).__name__}: {str(error)[:100]})"


def _shown(value: Any) -> str:
    kind = type(value)
    return f"a value of {kind.__module__}.{kind.__qualname__}".replace(" builtins.", " ")


def _native_parts(value: Any) -> Iterator[Part]:
    """Yields the parts of a function or attribute in machine code that no installed package has under its name."""
    owner = getattr(value, "__objclass__", None) or getattr(value, "__self__", None)
    yield str(getattr(value, "__qualname__", value.__name__))
    if isinstance(owner, types.ModuleType):
        yield _library_text(owner.__name__) or _unknown(value)
    elif owner is None:
        yield _library_text(value.__module__ or "") or _unknown(value)
    else:
        yield Of(owner)


def _unknown(value: Any) -> str:
    raise UndescribedError(f"the code of {value.__name__}, {_shown(value)}, is not known")


def _tensor_text(torch: Any, tensor: Any, most: int) -> str:
    """Returns the description of a tensor, including its numbers."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
        raise UndescribedError(f"{_shown(tensor)} has no description")
    facts = (tensor.dtype, tensor.device.type, tuple(tensor.shape), tensor.stride(), tensor.requires_grad)
    flags = (tensor.is_conj(), tensor.is_neg())
    if tensor.device.type == "meta" or not tensor.numel():
        return repr((facts, flags))
    if tensor.numel() * tensor.element_size() > most:
        raise UndescribedError(f"a tensor of {tensor.numel()} numbers is too large to be described")
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes(), torch.no_grad():
        here = tensor.detach().resolve_conj().resolve_neg().to("cpu").contiguous()
        data = ctypes.string_at(here.data_ptr(), here.numel() * here.element_size())
    return f"{facts} {flags} {hashlib.sha256(data).hexdigest()}"


# -- what is stated by a name ------------------------------------------------------------------------------------------


def _fixed_name(value: Any) -> str | None:
    """Returns the name, with a version, of what Python, torch or an installed package has under it; None if none has.

    A function that only says that it is torch's, as one that `functools.wraps` has dressed up, is none. An object of a
    class of the program is not asked: a `__getattr__` of its own would answer.
    """
    if not isinstance(value, (type, types.FunctionType, *NATIVE)) and _version_of(type(value).__module__) is None:
        return None
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if isinstance(value, types.BuiltinFunctionType) and isinstance(value.__self__, types.ModuleType):
        module = value.__self__.__name__
    if not isinstance(module, str) or not isinstance(name, str):
        return None
    version = _version_of(module)
    if version is None:
        return None
    if isinstance(value, NATIVE):
        owner = getattr(value, "__objclass__", None) or getattr(value, "__self__", None)
        if owner is not None and not isinstance(owner, (type, types.ModuleType)):
            return None  # bound to an object
        return f"{module}.{name} {version}"
    return f"{module}.{name} {version}" if _found(module, name) is value else None


def _found(module: str, name: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _unknown_module(module: types.ModuleType) -> str:
    raise UndescribedError(f"the module {module.__name__} has no file")


def _library_text(name: str, any_file: bool = False) -> str:
    """Returns the digest of a module's file if it is machine code, or with `any_file`; empty for any other."""
    path = getattr(sys.modules.get(name), "__file__", None) or ""
    if not path or not (any_file or path.endswith(tuple(EXTENSION_SUFFIXES))):
        return ""
    try:
        status = os.stat(path)
        return _file_digest(path, status.st_size, status.st_mtime_ns)
    except OSError as error:
        raise UndescribedError(f"{path} cannot be read ({error.strerror})") from error


@functools.lru_cache(64)
def _file_digest(path: str, _size: int, _time: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() if hasattr(hashlib, "file_digest") else _digest(file)


def _digest(file: Any) -> str:
    digest = hashlib.sha256()
    while chunk := file.read(1 << 20):
        digest.update(chunk)
    return digest.hexdigest()


@functools.lru_cache(1024)
def _version_of(name: str) -> str | None:
    """Returns the version of what a module is of, if it is Python's, torch's or an installed package's; else None.

    torch's version is in torch's keys, and Python's in the topic of a bundle.
    """
    top = name.partition(".")[0]
    if top in ("builtins", "torch", "torchgen", "functorch"):
        return ""
    if top in sys.stdlib_module_names:
        return "" if _lies_in(top, _stdlib_folders()) else None  # a module of the program may have such a name
    if top == "opforge":
        return _own_version()
    if not top:
        return None
    try:
        of = metadata.distribution(top)
        listed = of.read_text("RECORD")
        folder = os.path.realpath(str(of.locate_file("")))
    except (metadata.PackageNotFoundError, ValueError, OSError):
        return None
    if not listed or not _lies_in(top, (folder,)):  # installed in editable form
        return None
    return f"{of.version} {hashlib.sha256(listed.encode()).hexdigest()}"


@functools.lru_cache(1)
def _own_version() -> str:
    """Returns opforge's version, with a digest of its ops in Python: in a checkout these are edited."""
    try:
        version = metadata.version("opforge")
    except metadata.PackageNotFoundError:  # it is a folder on the path
        version = ""
    digest = hashlib.sha256(version.encode())
    for folder, folders, names in os.walk(os.path.realpath(os.path.join(sys.modules["opforge"].__path__[0], "ops"))):
        folders.sort()
        for name in sorted(name for name in names if name.endswith(".py")):
            with open(os.path.join(folder, name), "rb") as file:
                digest.update(file.read())
    return digest.hexdigest()


def _lies_in(top: str, folders: Iterable[str]) -> bool:
    """Returns whether a module lies in one of the folders, or in Python itself."""
    module = sys.modules.get(top)
    path = getattr(module, "__file__", None)
    if module is None:
        try:
            found = importlib.util.find_spec(top)
        except (ImportError, ValueError):
            return False
        path = found.origin if found and found.has_location else None
    if path is None:
        return top in sys.builtin_module_names or top in sys.stdlib_module_names
    folder = os.path.dirname(os.path.realpath(path))
    return any(folder == each or folder.startswith(each + os.sep) for each in folders)


@functools.lru_cache(1)
def _stdlib_folders() -> tuple[str, ...]:
    paths = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), os.path.dirname(os.__file__))
    return tuple({os.path.realpath(path) for path in paths if path})
