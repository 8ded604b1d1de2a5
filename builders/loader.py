"""Loads a checked entry: one library for each entry, one registration for each process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from opforge.errors import BuilderError, LoadError, NamespaceClashError
from opforge.fast_path import library
from opforge.fast_path.library import PLAIN, REGISTER, STABLE, Entry, LoadedOp

from . import load_advice, python_module
from .registration import fakes as registered_fakes
from .registration import kernel_types, static_registration, torch_errors

if TYPE_CHECKING:
    from types import ModuleType

_torch_ops: set[str] = set()  # the names of the loaded ops of the `torch` ABI
WITHDRAWS = 2
"""The first interface whose libraries remove their kernels for ops of other libraries, and register them again."""
_others: dict[str, tuple[int, list[str]]] = {}
"""Entry -> its library's handle (0 before WITHDRAWS), and the ops of other libraries for which it has kernels."""
_in_force: dict[tuple[str, str], list[str]] = {}
"""Op and the folder of its sources, where a version has such kernels -> the entry that was loaded last. Before it are
others whose kernels may still be there, while the change is made, or if a signal ended it."""
_behind: dict[str, LoadedOp | ModuleType] = {}
"""Entry -> what was loaded of it, while another version is in force."""
_owners: dict[str, str] = {}
"""Public namespace in torch.ops -> the op of the `torch` ABI that owns it. Another version gets others."""


def load_entry(
    op: str, entry: Entry, fakes: Mapping[str, Any], functions: Mapping[str, Any], roots: Iterable[Any] = ()
) -> Any:
    """Loads an entry and registers its ops. Returns its functions; the same entry has the same object.

    Of two versions of one op, the first has the public name, `torch.ops.<namespace>.<op>`, a later one a namespace with
    a suffix. `fakes` replace earlier ones. Other signatures give another object. `roots` are where its sources are, for
    its errors. Raises LoadError, NamespaceClashError.
    """
    folders = {name: path for name, path, _ in roots}
    lines = "".join([f"{name}={path}\n" for name, path in folders.items()])

    def opens(typed: Mapping[str, Any]) -> Any:
        _refuse_beside_fixed((op, folders.get("own", "")), entry)
        abi, loaded = entry.record["abi"], _behind.get(entry.key)
        if abi == PLAIN:
            loaded = library.plain(op, entry, open_library(op, entry), typed)
        elif loaded is None:
            loaded = _load_stable(op, entry, fakes, roots, lines) if abi == STABLE else _load_torch(op, entry, roots)
        _put_in_force((op, folders.get("own", "")), entry.key, lines)
        return loaded

    with library.lock:
        loaded = library.load(entry, functions, opens)
        if fakes:
            names = loaded.__names__ if isinstance(loaded, LoadedOp) else ()
            registered_fakes.register(op, names, library.namespaces_of.get(entry.key, []), fakes, library.python_fakes)
        return loaded


def open_library(op: str, entry: Entry) -> int:
    """Returns the handle of the library. Raises LoadError."""
    path = entry.library
    if needed := [name for name in entry.record.get("needs", ()) if name.startswith(library.SANITIZERS)]:
        load_advice.check_sanitizers(op, path, needed)
    try:
        return library.opened_file(entry)
    except OSError as error:
        raise load_advice.load_error(op, path, error, entry.watched.paths) from error


def _load_stable(op: str, entry: Entry, fakes: Mapping[str, Any], roots: Iterable[Any], folders: str) -> LoadedOp:
    import torch  # before the library, which needs its libraries

    handle = open_library(op, entry)
    schemas, shared = _schemas(op, entry, handle, roots)
    qualified = library.names_of(schemas)
    functions = dict.fromkeys(name.partition("::")[2] for name in qualified)
    for name in fakes:  # before anything is registered, so that a corrected builder can be loaded
        if name not in functions:
            raise BuilderError(op, f"fakes names {name!r}", f"The library defines: {', '.join(functions) or 'none'}")
    suffix = ""
    for name in qualified:
        if name in library.owner_of:
            if library.owner_of[name] != op:
                raise NamespaceClashError(op, name, f"the op {library.owner_of[name]!r}")
            suffix = entry.suffix
    for name in shared if suffix else ():
        if library.owner_of.get(name) != op and torch._C._jit_get_schemas_for_operator(name):
            problem = f"its kernel for {name}, an op of another library, would not be called: a second version of this"
            problem += " one has other namespaces"
            advice = "Load it in a new process, or move the kernels for ops of others to a library without ops"
            raise LoadError(op, entry.library, problem, advice)
    loaded = library.register(op, entry, handle, schemas, suffix, folders)
    if isinstance(loaded, str):
        raise load_advice.registration_error(op, entry.library, loaded, schemas, suffix)
    library.tag_compile_caches(entry.key, shared)
    return loaded


def _schemas(op: str, entry: Entry, handle: int, roots: Iterable[Any]) -> tuple[list[str], list[str]]:
    """Returns `namespace::schema` for each op, for a TORCH_LIBRARY block its namespace; and ops of others in those.

    Keeps for which ops of other namespaces it has kernels. Raises KernelSchemaError.
    """
    schemas, kernels = library.described(handle)
    lines = kernels.splitlines()
    if lines:
        kernel_types.check(op, entry.library, schemas, lines, roots)
    own, spaces = [{schema.partition(end)[0] for schema in schemas} for end in ("(", "::")]
    served = [*dict.fromkeys(line.partition("\t")[0] for line in lines)]
    if others := [name for name in served if name.partition("::")[0] not in spaces]:
        _others[entry.key] = handle if entry.record["interface"] >= WITHDRAWS else 0, others
    return schemas, [name for name in served if name not in own and name not in others]


def _is_fixed(entry: str) -> bool:
    """Returns whether an entry has kernels for ops of other libraries that cannot be removed."""
    return entry in _others and not _others[entry][0]


def _refuse_beside_fixed(version_of: tuple[str, str], entry: Entry) -> None:
    """Raises LoadError if the version in force has kernels for ops of other libraries that cannot be removed."""
    for names in [_others[key][1] for key in _in_force.get(version_of, ()) if key != entry.key and _is_fixed(key)]:
        problem = f"the version that is loaded has kernels for {', '.join(names)}, and an earlier opforge"
        problem += " has built it so that they cannot be removed"
        raise LoadError(version_of[0], entry.library, problem, "Load it in a new process")


def _put_in_force(version_of: tuple[str, str], entry: str, folders: str) -> None:
    """Has torch call the kernels for ops of other libraries that a new process would have: those of this entry alone.

    The next load of another version puts that one in force.
    """
    in_force = _in_force.get(version_of, [])
    before = [key for key in in_force if key != entry]
    if in_force == [entry] or not (entry in _others or before):
        return
    _in_force[version_of] = [*before, entry]
    for key in [key for key, (loaded, _typed) in library.by_entry.items() if loaded.__name__ == version_of[0]]:
        _behind[key] = library.by_entry.pop(key)[0]
    handle, names = _others.get(entry, (0, ()))
    if entry in _behind and handle and (problem := library.call_register(handle, None, folders)):
        raise LoadError(version_of[0], str(_behind[entry].__file__), problem, "Load it in a new process")
    for key in filter(_others.__contains__, before):
        library.call_register(_others[key][0], None, None)
        for name in _others[key][1]:
            library.defined[key].pop(name, None)
    library.tag_compile_caches(entry, names)
    library.with_others.add(version_of[0])
    library.registrations += 1
    _in_force[version_of] = [entry]
    _behind.pop(entry, None)


def _load_torch(op: str, entry: Entry, roots: Iterable[Any]) -> LoadedOp | ModuleType:
    import torch

    owned = _register_blocks(op, entry, roots)
    namespaces = library.namespaces_of[entry.key] = owned or [op]
    library.tag_compile_caches(entry.key, [f"{each}::" for each in namespaces])
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
        static_registration.refuse(op, entry.library)
    handle, owned = open_library(op, entry), []
    if REGISTER in entry.record["exports"]:
        schemas, _shared = _schemas(op, entry, handle, roots)
        declared = [*dict.fromkeys(line.partition("::")[0] for line in schemas)]
        suffix = entry.suffix if any(_owners.get(name) == op for name in declared) else ""
        if problem := library.call_register(handle, suffix, ""):
            raise torch_errors.error(op, entry.library, problem, roots)
        owned = [name + suffix for name in declared]
        _owners.update(dict.fromkeys(declared, op))
    _torch_ops.add(op)
    return owned
