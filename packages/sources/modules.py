"""The modules of a project, imported from its folder under names that no other module has."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import shlex
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

from opforge.errors import BuilderError
from opforge.foundation.fork_lock import ForkLock

_importing = ForkLock()


def file_of(name: str, folder: str) -> str:
    """Returns the file of a module in a project's folder; empty if the folder has none of this name."""
    path = os.path.join(folder, *name.split(".")) + ".py"
    return path if folder and os.path.isfile(path) else ""


def imported(name: str, folder: str) -> ModuleType:
    """Imports and returns a module of a project anew, with the modules that it imports by relative names.

    No `__init__.py` above it is run: that of the package may load the op, or import files which packing generates.
    Raises what the module raises.
    """
    package, parents = _package(folder), name.split(".")[:-1]
    with _importing:
        for other in _names(package):  # the files may have changed since
            del sys.modules[other]
        for depth in range(len(parents) + 1):
            spec = ModuleSpec(".".join((package, *parents[:depth])), None, is_package=True)
            spec.submodule_search_locations = [os.path.join(folder, *parents[:depth])]
            sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        importlib.invalidate_caches()
        return importlib.import_module(f"{package}.{name}")


def files_of(folder: str) -> list[str]:
    """Returns the files of the project's modules that have been imported, by their paths in its folder."""
    paths = [getattr(sys.modules[name], "__file__", None) for name in _names(_package(folder))]
    return sorted({os.path.relpath(path, folder) for path in paths if path})


def import_error(reference: str, folder: str, error: BaseException) -> BuilderError:
    """Returns the error about a builder whose module, in a project's folder, cannot be imported."""
    name, package = reference.partition(":")[0], _package(folder)
    missing = (isinstance(error, ImportError) and error.name) or ""
    own = f"{missing}.".removeprefix(f"{package}.").rstrip(".")
    if own != missing and not isinstance(error, ModuleNotFoundError):
        text = str(error).replace(f"{package}.", "").replace(package, folder).removesuffix(" (unknown location)")
        problem = f"importing its module failed: {text}"
        advice = "Import it from the module that defines it: no __init__.py above the builder is run"
    elif own != missing:
        problem, advice = f"its module imports {own!r}, which is not in {folder}", "Correct the import"
    elif missing and _is_own(missing, name, folder):
        problem = f"its module imports {missing!r} of the project by an absolute name, which finds no module"
        advice = "Import it by a relative one, such as `from . import names`"
    else:
        call = (
            f"from opforge.packages.sources import modules; modules.imported({json.dumps(name)}, {json.dumps(folder)})"
        )
        return BuilderError.of_import(reference, error, f"python -c {shlex.quote(call)}")
    return BuilderError(reference, problem, advice)


def _is_own(missing: str, name: str, folder: str) -> bool:
    """Returns whether a module that was not found is the project's: beside the builder's, or named from the folder."""
    beside = f"{name.rpartition('.')[0]}.{missing}".lstrip(".")
    candidates = (missing, f"{missing}.__init__", beside)
    return name.startswith(f"{missing}.") or any(file_of(candidate, folder) for candidate in candidates)


def _package(folder: str) -> str:
    """Returns the name of the package that stands for a folder: two projects may both have an `ops.py`."""
    return f"opforge_project_{abs(hash(folder)):x}"


def _names(package: str) -> list[str]:
    return [name for name in [*sys.modules] if name == package or name.startswith(f"{package}.")]
