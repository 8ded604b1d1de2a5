"""The parts of a program that torch.compile reads without a guard: inlined code, classes, and modules' names.

torch checks the type of a value, takes the methods and attributes of the class as they are, and inlines functions
without a later check. Therefore classes and inlined functions are recorded here as facts, which are compared in another
process and before each call. They are compared with the objects of the process, not with files, which may have been
edited since.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import types
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from .described import (
    NATIVE,
    NOT_DONE,
    PLAIN,
    WRAPPED,
    Description,
    UndescribedError,
    _imports,
    _uses,
    _version_of,
)

CODE, CLASS, NAME = "code", "class", "name"
LOCALS = "<locals>"
TEXTS = {
    CODE: "the code of {module}.{place} has changed",
    CLASS: "the class {module}.{place} has changed",
    NAME: "{module}.{place} is another",
}


class Fact(NamedTuple):
    """A part of the program that torch has read."""

    kind: str
    module: str
    place: str
    """The qualified name in the module."""
    digest: str


def stated(codes: Iterable[types.CodeType], classes: Iterable[type]) -> list[Fact]:
    """Returns the facts of inlined code and of the classes of values. Raises UndescribedError."""
    facts, read = set[Fact](), set[tuple[str, str]]()
    for code in {id(code): code for code in codes}.values():
        module = inspect.getmodule(code)
        if module is None:
            raise UndescribedError(f"the source of {code.co_qualname} cannot be found: it is in no module")
        if code not in _codes_at(module, code.co_qualname):  # equal is enough: torch keeps some code by its value
            raise UndescribedError(f"{module.__name__}.{code.co_qualname} is not the function that was traced")
        facts.add(_fact(CODE, module.__name__, code.co_qualname))
        read |= _read_of_modules(code, module)
    facts |= {_fact(NAME, *each) for each in read}
    for kind in set(classes):
        if kind.__module__ != "builtins":
            if _at(kind.__module__, kind.__qualname__) is not kind:
                raise UndescribedError(f"the class {kind.__module__}.{kind.__qualname__} is not found by its name")
            facts.add(_fact(CLASS, kind.__module__, kind.__qualname__))
    return sorted(facts)


def problem(facts: Iterable[Sequence[str]]) -> str:
    """Returns the problem of the first fact that has changed; empty if none has. Raises UndescribedError."""
    for kind, module, place, digest in facts:
        if _fact(kind, module, place).digest != digest:
            return TEXTS[kind].format(module=module, place=place)
    return ""


def _fact(kind: str, module: str, place: str) -> Fact:
    try:
        of = importlib.import_module(module)
    except Exception as error:  # whatever its code raises
        raise UndescribedError(f"the module {module} cannot be imported ({error})") from error
    if kind == CODE:
        texts = sorted({_code_digest(code) for code in _codes_at(of, place)})
    elif kind == CLASS:
        texts = _class_texts(_at(module, place))
    else:
        texts = [_named_text(vars(of).get(place))]
    return Fact(kind, module, place, _digest(texts))


def _digest(value: Any) -> str:
    description = Description()
    description.add(value)
    return description.digest


@functools.lru_cache(20_000)
def _code_digest(code: types.CodeType) -> str:
    return _digest(code)


# -- where code is -----------------------------------------------------------------------------------------------------


def _at(module: str, place: str) -> Any:
    """Returns the object at a place of a module; None if there is none. No code of the program runs."""
    found: Any = sys.modules.get(module)
    for name in place.split("."):
        found = vars(found).get(name) if isinstance(found, (type, types.ModuleType)) else None
    return found


def _codes_at(module: types.ModuleType, place: str) -> list[types.CodeType]:
    """Returns the code of all functions that a module has at a place: a property has several."""
    outer, *inner = place.split(f".{LOCALS}.")
    found = [code for code in _codes_of(_at(module.__name__, outer)) if code.co_qualname == outer]
    if not found:  # a lambda, or a function that a decorator has hidden
        values = [value for value in vars(module).values() if getattr(value, "__module__", "") == module.__name__]
        values += [part for value in values if isinstance(value, type) for part in vars(value).values()]
        found = [code for value in values for code in _codes_of(value) if code.co_qualname == outer]
    for name in inner:
        found = [part for code in found for part in _nested(code) if part.co_qualname.endswith(f"{LOCALS}.{name}")]
    return found


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield part
            yield from (deeper for deeper in _nested(part) if LOCALS not in part.co_qualname)  # in the body of a class


def _codes_of(value: Any) -> list[types.CodeType]:
    """Returns the code of a function and of the functions that it wraps."""
    return [function.__code__ for function in _functions_of(value)]


def _functions_of(value: Any) -> list[types.FunctionType]:
    found, waiting, seen = list[types.FunctionType](), [value], set[int]()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, types.FunctionType):
            found.append(one)
            waiting += [*_contents(one), vars(one).get("__wrapped__")]
        else:
            waiting += _wrapped(one)
    return found


def _contents(function: types.FunctionType) -> list[Any]:
    """Returns the values of the variables over which a function closes."""
    values = []
    for cell in function.__closure__ or ():
        try:
            values.append(cell.cell_contents)
        except ValueError:  # it has no value yet
            values.append(None)
    return values


def _wrapped(value: Any) -> list[Any]:
    """Returns the parts of a property, a partial and the like."""
    names = next((WRAPPED[kind] for kind in WRAPPED if isinstance(value, kind)), ())
    return [getattr(value, name) for name in names]


# -- what is read of modules -------------------------------------------------------------------------------------------


def _read_of_modules(code: types.CodeType, module: types.ModuleType) -> set[tuple[str, str]]:
    """Returns the functions, classes and modules that code names, each by the module that has it and its name."""
    read = set[tuple[str, str]]()
    imported = dict[str, Any]()
    for name, level, attribute, variable in _imports(code):
        of = None if level else sys.modules.get(name if attribute else name.partition(".")[0])
        if of is not None and attribute:
            read |= _hops(of, (attribute,))
        imported[variable] = vars(of).get(attribute) if of is not None and attribute else of
    for path in _uses(code):
        if not path:
            continue
        local = imported.get(path[0])
        read |= _hops(local, path[1:]) if isinstance(local, types.ModuleType) else _hops(module, path)
    return read


def _hops(module: types.ModuleType, path: Sequence[str]) -> set[tuple[str, str]]:
    hops, of = set[tuple[str, str]](), module
    for name in path:
        value = vars(of).get(name)
        # torch.ops has a namespace only after its first use; what an op does is described with the ops.
        if sys.modules.get(of.__name__) is not of or not isinstance(value, NAMED) or of.__name__ == "torch.ops":
            break
        hops.add((of.__name__, name))
        if not isinstance(value, types.ModuleType):
            break
        of = value
    return hops


NAMED = (types.FunctionType, type, types.ModuleType, *NATIVE, functools.partial)
"""Types of values that torch uses without a guard."""


def _named_text(value: Any) -> str:
    if isinstance(value, type):
        return f"class {value.__module__}.{value.__qualname__} {_digest(_class_texts(value))}"
    return _text(value, True) if isinstance(value, NAMED) else f"a {type(value).__qualname__}"


# -- classes -----------------------------------------------------------------------------------------------------------


def _class_texts(kind: Any) -> list[str]:
    """Returns the description of a class with its bases: the code of its methods, and its attributes.

    Values that the methods read are left out: torch has guards for these values where it inlines the methods.
    """
    if not isinstance(kind, type):
        return ["it is not a class"]
    texts = list[str]()
    for base in _bases(kind):
        texts.append(f"{base.__module__}.{base.__qualname__}")
        is_fixed = _version_of(base.__module__) is not None
        for name, value in sorted(vars(base).items()):
            if name not in NOT_DONE:
                try:
                    texts.append(f"{name} {_text(value, is_fixed)}")
                except UndescribedError as error:
                    raise UndescribedError(f"{error}, in {base.__qualname__}.{name}") from error
    return texts


def _bases(kind: type) -> list[type]:
    """Returns the classes of which a class and its metaclass consist."""
    of_class: type = type(kind)
    found = [*kind.__mro__, *(of_class.__mro__ if of_class is not type else ())]
    return [each for each in found if each.__module__ != "builtins"]


def _text(value: Any, is_fixed: bool, depth: int = 0) -> str:
    """Returns the description of an attribute; of an installed package's value that is no function, its type alone."""
    deeper = functools.partial(_text, is_fixed=is_fixed, depth=depth + 1)
    if isinstance(value, types.FunctionType):
        parts = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values(), *_contents(value)]
        inner = [deeper(part) for part in parts] if depth < DEEPEST else []
        return f"function {_code_digest(value.__code__)} {inner}"
    if isinstance(value, type):
        return f"class {value.__module__}.{value.__qualname__}"
    if isinstance(value, types.ModuleType):
        return f"module {value.__name__}"
    if isinstance(value, NATIVE):
        return f"native {getattr(value, '__qualname__', '')}"
    if wrapped := _wrapped(value):
        return f"{type(value).__qualname__} {[deeper(part) for part in wrapped]}"
    if type(value) in PLAIN:
        return f"{type(value).__qualname__} {value!r}"
    return f"a {type(value).__module__}.{type(value).__qualname__}" if is_fixed else _digest(value)


DEEPEST = 4
"""How many functions may be wrapped around each other."""


# -- in this process ---------------------------------------------------------------------------------------------------


class _Now:
    """The objects that a process has for facts, at one moment."""

    def __init__(self, facts: Collection[Sequence[str]]) -> None:
        held, functions, classes = dict[tuple[str, str], Any](), dict[int, Any](), dict[int, type]()
        for kind, module, place, _digest_then in facts:
            names = place.partition(f".{LOCALS}.")[0].split(".")
            held[module, names[0]] = value = vars(sys.modules[module]).get(names[0])
            of = _at(module, ".".join(names)) if kind == CODE else value
            for function in _functions_of(of) if kind == CODE or isinstance(of, types.FunctionType) else ():
                functions[id(function)] = function
            found = _at(module, place) if kind == CLASS else value
            for each in _bases(found) if isinstance(found, type) else ():
                classes[id(each)] = each
        self._held = [(vars(sys.modules[module]), name, value) for (module, name), value in held.items()]
        self._codes = [(function, function.__code__, function.__defaults__) for function in functions.values()]
        self._classes = [(vars(each), dict(vars(each))) for each in classes.values()]

    def is_so(self) -> bool:
        """Returns whether all are still the same."""
        for space, name, value in self._held:
            if space.get(name) is not value:
                return False
        for function, code, defaults in self._codes:
            if function.__code__ is not code or function.__defaults__ is not defaults:
                return False
        return all(_is_same(now, then) for now, then in self._classes)


def _is_same(now: Mapping[str, Any], then: Mapping[str, Any]) -> bool:
    try:
        return bool(now == then)  # which takes a value that is the same object as equal
    except Exception:  # of an attribute's own code
        return False


class Pinned:
    """The state of this process. Objects are compared by identity, and described again only if one was replaced."""

    def __init__(self, facts: Collection[Sequence[str]]) -> None:
        """Takes facts that hold now."""
        self._facts = facts
        self._good = _Now(facts)
        self._bad: _Now | None = None

    def holds(self) -> bool:
        """Returns whether the facts hold."""
        if self._good.is_so():
            return True
        if self._bad is not None and self._bad.is_so():
            return False
        now = _Now(self._facts)
        try:
            is_good = not problem(self._facts)
        except UndescribedError:
            is_good = False
        if is_good:
            self._good = now
        else:
            self._bad = now
        return is_good
