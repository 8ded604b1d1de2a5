"""Loads a checked entry: one library for each entry, one registration for each process."""

from __future__ import annotations

import _ctypes
import ctypes
import importlib
import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from opforge.cache.records.entry import Entry
from opforge.errors import BuilderError, NamespaceClashError

from .spec.abi import PLAIN, REGISTER, STABLE

if TYPE_CHECKING:
    from types import ModuleType

_DESCRIBE = ctypes.CFUNCTYPE(ctypes.c_char_p)
_REGISTER = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p)
lock = threading.RLock()  # reentrant: a module's own initialisation may load another op
_loaded: dict[str, tuple[LoadedOp | ModuleType, Mapping[str, Any]]] = {}
"""By entry key, with the signatures that plain functions got."""
SANITIZERS = ("libasan.so", "libtsan.so", "libhwasan.so", "liblsan.so", "libclang_rt.asan", "libclang_rt.tsan")
"""Run-time libraries that must be in the process before a library that needs them is opened."""
_registered: dict[str, str] = {}
"""Public name in torch.ops -> the op that owns it. Another version of that op may be loaded too, another op may not."""
_torch_ops: set[str] = set()  # the names of the loaded ops of the `torch` ABI
_owners: dict[str, str] = {}
"""Public namespace in torch.ops -> the op of the `torch` ABI that owns it. Another version gets others."""
_namespaces: dict[str, list[str]] = {}  # entry key -> the namespaces in torch.ops that hold its ops
_defined: dict[str, dict[str, None]] = {}  # entry key -> the public names of its ops in torch.ops, or their namespaces
_fakes: dict[str, Callable[..., Any]] = {}
"""Public name in torch.ops -> the author's Python fake kernel."""


def reset() -> None:
    """Forgets which entries are loaded: the next load of one opens and registers it again."""
    _loaded.clear()


def loaded_ops() -> dict[str, str]:
    """Returns the keys of the entries that this process has loaded, each with the name of its op."""
    return {key: loaded.__name__ for key, (loaded, _) in _loaded.items()}


def _replace_lock() -> None:
    """Replaces the lock in a forked child: the thread that held it is gone, and nobody would release it."""
    global lock
    lock = threading.RLock()


os.register_at_fork(after_in_child=_replace_lock)


class LoadedOp:
    """A loaded op: its functions as attributes.

    `path` is the library, `origin` where it came from, `result` its key, unless the op has a function of that name.
    `__file__` is always the library, and `__entry__` the entry. `help(op)` shows the functions' schemas.
    """

    def __init__(self, name: str, entry: Entry, find: Callable[[str], Any], names: tuple[str, ...]) -> None:
        # No name that a function could have: a function would be hidden by it.
        self.__name__, self.__file__, self.__entry__ = name, entry.library, entry
        self.__find__, self.__names__ = find, names
        self.__extended__: dict[str, LoadedOp] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        try:
            setattr(self, name, function := self.__find__(name))  # the next access finds it without coming here
        except AttributeError as error:
            if name not in ENTRY_ATTRIBUTES:
                importlib.import_module("opforge.tracebacks").explain_missing(error, name, self.__names__)
                raise
            return getattr(self.__entry__, ENTRY_ATTRIBUTES[name])
        return function

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *ENTRY_ATTRIBUTES, *self.__names__})

    def __deepcopy__(self, _: Any) -> LoadedOp:
        return self  # as a module would be: a model that holds it can be copied

    def __reduce__(self) -> str:
        problem = f"the op {self.__name__!r} cannot be pickled, because it is a library of this process"
        raise TypeError(f"{problem}: load it in the process that needs it, and do not pickle it")

    def __repr__(self) -> str:
        return str(importlib.import_module(REPRESENTATION).op_text(self))

    __doc__ = property(lambda self: importlib.import_module(REPRESENTATION).op_help(self))


REPRESENTATION = "opforge.builders.display.representation"  # imported on use: no load needs it
ENTRY_ATTRIBUTES = {"path": "library", "origin": "origin", "result": "key"}  # of a loaded op -> those of its entry


def load_entry(
    op: str, entry: Entry, fakes: Mapping[str, Any], functions: Mapping[str, Any], roots: Iterable[Any] = ()
) -> Any:
    """Loads an entry and registers its ops. Returns its functions; the same entry has the same object.

    Of two versions of one op, the first has the public name, `torch.ops.<namespace>.<op>`, a later one a namespace with
    a suffix. `fakes` replace earlier ones. Other signatures give another object. `roots` are where its sources are, for
    its errors. Raises LoadError, NamespaceClashError.
    """
    with lock:
        abi = entry.record["abi"]
        typed = functions if abi == PLAIN else {}
        loaded, before = _loaded.get(entry.key, (None, typed))
        if loaded is None or typed != before:
            if abi == STABLE:
                loaded = _load_stable(op, entry, fakes, roots)
            else:
                loaded = _load_plain(op, entry, functions) if abi == PLAIN else _load_torch(op, entry, roots)
            _loaded[entry.key] = loaded, typed
        if fakes:
            from .registration.fakes import register as register_fakes

            names = loaded.__names__ if isinstance(loaded, LoadedOp) else ()
            register_fakes(op, names, _namespaces.get(entry.key, []), fakes, _fakes)
        return loaded


def python_functions(where: str, op: Any) -> Mapping[str, Any]:
    """Returns what `where`, a "module:function", returns for a loaded op: more of its functions, by name."""
    module, _, name = where.partition(":")
    functions: Mapping[str, Any] = getattr(importlib.import_module(module), name)(op) if where else {}
    return functions


def extended(library: Any, where: str) -> Any:
    """Returns a loaded library with the functions that `where` adds; see `python_functions`.

    What another builder adds to the same library is in another object. A Python module has them all.
    """
    op = library
    if where and isinstance(library, LoadedOp):
        other = LoadedOp(library.__name__, library.__entry__, library.__find__, library.__names__)
        op = library.__extended__.setdefault(where, other)
    for name, function in python_functions(where, op).items():
        vars(op).setdefault(name, function)
    return op


def tag_compile_caches(entry: str, names: Iterable[str]) -> None:
    """Puts ops, by public name or all of a `namespace::`, into the keys of torch.compile's caches, with their entry.

    The tag is composed when torch computes a key: later loads, and a tag that the user sets later, are in it.
    """
    _defined.setdefault(entry, {}).update(dict.fromkeys(names))
    config = sys.modules.get("torch.compiler.config")  # which `import torch` imports
    if config is not None and "cache_key_tag" not in vars(type(config)):
        kind: Any = type(config)

        def tag(config: Any) -> str:
            from .registration import compile_tag

            return compile_tag.behind(kind.__getattr__(config, "cache_key_tag"), {**_defined}, {**_fakes})

        object.__setattr__(config, "__class__", type(kind.__name__, (kind,), {"cache_key_tag": property(tag)}))


def open_library(op: str, entry: Entry) -> int:
    """Returns the handle of the library. Making a ctypes.CDLL would cost a hit 2 % of its time."""
    path = entry.library
    needed = [name for name in entry.record.get("needs", ()) if name.startswith(SANITIZERS)]
    if needed:
        from . import load_advice

        load_advice.check_sanitizers(op, path, needed)
    try:
        return _ctypes.dlopen(path, os.RTLD_NOW | os.RTLD_LOCAL)
    except OSError as error:
        from . import load_advice

        raise load_advice.load_error(op, path, error, entry.watched.paths) from error


def _load_stable(op: str, entry: Entry, fakes: Mapping[str, Any], roots: Iterable[Any]) -> LoadedOp:
    import torch

    library = open_library(op, entry)
    schemas = _schemas(op, entry, library, roots)
    heads = [schema.partition("(")[0] for schema in schemas]  # namespace::name, and .overload where there are several
    qualified = [head.partition(".")[0] for head in heads]
    functions = dict.fromkeys(name.partition("::")[2] for name in qualified)
    for name in fakes:  # before anything is registered, so that a corrected builder can be loaded
        if name not in functions:
            raise BuilderError(op, f"fakes names {name!r}", f"The library defines: {', '.join(functions)}")
    suffix = ""
    for name in qualified:
        if name in _registered:
            if _registered[name] != op:
                raise NamespaceClashError(op, name, f"the op {_registered[name]!r}")
            suffix = "_" + entry.key[-8:]
    folders = "".join([f"{name}={path}\n" for name, path, _ in roots])
    problem = _REGISTER(_ctypes.dlsym(library, REGISTER))(suffix.encode(), os.fsencode(folders))
    if problem is not None:  # and nothing is registered
        from .load_advice import registration_error

        raise registration_error(op, entry.library, problem.decode(errors="replace"), schemas, suffix)
    # Only the first version owns the public name.
    owners = {name.partition("::")[2]: name.partition("::")[0] + suffix for name in qualified}
    for name in qualified:
        _registered[name] = op
    _namespaces[entry.key] = [*dict.fromkeys(owners.values())]
    tag_compile_caches(entry.key, [head.replace("::", f"{suffix}::", 1) for head in heads])

    # Read from the schemas: within torch.compile, torch cannot be queried for overloads.
    overloaded = {name.partition("::")[2].partition(".")[0] for name in heads if "." in name}

    def find(name: str) -> Any:
        if name not in owners:
            raise AttributeError(f"the op {op!r} has no function {name!r}; it has: {', '.join(owners)}")
        packet = getattr(getattr(torch.ops, owners[name]), name)
        return packet if name in overloaded else packet.default

    return LoadedOp(op, entry, find, tuple(owners))


def _schemas(op: str, entry: Entry, library: int, roots: Iterable[Any]) -> list[str]:
    """Returns `namespace::schema` for each op; for a TORCH_LIBRARY block, its namespace. Raises KernelSchemaError."""
    text: bytes = _DESCRIBE(_ctypes.dlsym(library, "opforge_describe"))()
    schemas, _, kernels = text.decode().partition("\f")
    if kernels:  # that are not known to fit their schemas
        from .registration import kernel_types

        kernel_types.check(op, entry.library, schemas.splitlines(), kernels.splitlines(), roots)
    return schemas.splitlines()


def _load_plain(op: str, entry: Entry, functions: Mapping[str, Any]) -> LoadedOp:
    library = ctypes.CDLL(entry.library, handle=open_library(op, entry))
    names = tuple(entry.record["exports"])

    def find(name: str) -> Any:
        try:
            function = library[name]
        except AttributeError as error:
            raise AttributeError(f"the op {op!r} has no function {name!r}; it has: {', '.join(names)}") from error
        if name in functions:
            function.restype, function.argtypes = functions[name]
        return function

    return LoadedOp(op, entry, find, names)


def _load_torch(op: str, entry: Entry, roots: Iterable[Any]) -> LoadedOp | ModuleType:
    import torch

    from . import python_module

    owned = _register_blocks(op, entry, roots)
    namespaces = _namespaces[entry.key] = owned or [op]
    tag_compile_caches(entry.key, [f"{namespace}::" for namespace in namespaces])
    module = python_module.load(op, entry.library) if entry.record["python_module"] else None
    # An empty module is there for `import` to open the library: the blocks' ops are meant.
    if module is not None and not (owned and python_module.is_empty(module)):
        return module
    torch.ops.load_library(entry.library)  # type: ignore[no-untyped-call]

    def find(name: str) -> Any:
        for namespace in namespaces:
            if hasattr(getattr(torch.ops, namespace), name):
                return getattr(getattr(torch.ops, namespace), name)
        raise AttributeError(f"the op {op!r} has no function {name!r} in torch.ops.{', '.join(namespaces)}")

    return LoadedOp(op, entry, find, ())


def _register_blocks(op: str, entry: Entry, roots: Iterable[Any]) -> list[str]:
    """Registers what the library's TORCH_LIBRARY blocks define. Returns the namespaces.

    A second version of an op gets namespaces of its own. It is refused if it registers ops when it is opened.
    """
    if op in _torch_ops:
        from .registration.without_block import refuse

        refuse(op, entry.library)
    library, owned = open_library(op, entry), []
    if REGISTER in entry.record["exports"]:
        schemas = _schemas(op, entry, library, roots)
        declared = [*dict.fromkeys(line.partition("::")[0] for line in schemas)]
        suffix = "_" + entry.key[-8:] if any(_owners.get(name) == op for name in declared) else ""
        problem = _REGISTER(_ctypes.dlsym(library, REGISTER))(suffix.encode(), b"")
        if problem is not None:
            from .registration import torch_errors

            raise torch_errors.error(op, entry.library, problem.decode(errors="replace"), roots)
        owned = [name + suffix for name in declared]
        _owners.update(dict.fromkeys(declared, op))
    _torch_ops.add(op)
    return owned
