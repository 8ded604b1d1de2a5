"""`get_kernel`: a package by its name and version, from a checkout or from the installed packages.

Which installed variant a call led to is remembered, so the next process need not judge variants again. The name of what
is remembered covers the arguments, the folders that are searched, torch, and everything of the machine that a variant
for the CPU is judged by. What is compared are the folders in which another release would appear, and all files of the
variant: links are compared themselves. What needs a device, other Python packages or the caller's lock file is not
remembered. That the variant's folder is nobody else's is checked at each load.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from opforge.fast_path import machine
from opforge.foundation import formats, opforge_version, remembered_values, settings
from opforge.foundation.remembered_values import FlatStamps

from . import tree

if TYPE_CHECKING:
    from typing import TypeVar

    Function = TypeVar("Function", bound=Callable[..., ModuleType])

CHECKOUT = "checkout"
HUB_VARIABLES = ("KERNELS_CACHE", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME")
"""They say where the cache of the hub's own loader is: see `packages/project/hub_cache.py`."""
VARIABLES = (settings.kernels.variable, settings.kernel_path.variable)
_answers: dict[tuple[object, ...], tuple[ModuleType, FlatStamps]] = {}
"""The modules that were returned, by the arguments, the caller's package and the variables that are read.

With each are the stamps of a checkout, which may have been packed again since; an installed release has none.
"""


def reset() -> None:
    """Forgets the returned modules: the next call searches again. Imported modules stay imported."""
    _answers.clear()


def _public(function: Function) -> Function:
    """Makes the errors of a public function end at its caller's line, also that of an unknown or wrong argument."""

    @wraps(function)
    def call(*arguments: Any, **named: Any) -> ModuleType:
        try:
            try:
                return function(*arguments, **named)
            except (TypeError, ValueError, AttributeError) as error:
                from . import hubs_arguments

                hubs_arguments.explain(error, call, arguments, named)
                raise
        except BaseException as error:
            from opforge.foundation import tracebacks

            tracebacks.shorten(error)
            raise

    return cast("Function", call)


@_public
def get_kernel(
    name: str,
    version: str | int | None = None,
    variant: str | None = None,
    *,
    install: bool | None = None,
    hub: bool = False,
) -> ModuleType:
    """Returns the Python module of a kernel package, with its ops loaded.

    Args:
        name: ORG/NAME, such as "acme/relu".
        version: The interface, such as 2; an exact version, "2.3"; or a range, ">=2.1,<3". By default the version in
            the calling package's lock file, else the newest installed version.
        variant: The label of a variant, in place of the one that fits best.
        install: Whether to download the package if it is not installed; by default OPFORGE_INSTALL. Without it the
            network is never used.
        hub: Whether to take the package from the download cache of the hub's own loader. `version` is then a number,
            a branch, a tag or a commit; by default the branch main. Packages in OPFORGE_KERNELS come first.

    The module's `__version__` is the package's, unless the package sets one itself. The same release gives the same
    module, in every thread. Two versions can be loaded side by side: each has its own module, and its own
    namespace in torch.ops. On a machine with devices of several architectures the variant is
    that of torch's current device: another device may have another module.

    Raises KernelNotFoundError, KernelIncompatibleError with the reason of each variant, KernelLoadError,
    KernelFormatError for an invalid name or version.
    """
    caller = sys._getframe(2).f_globals.get("__package__") or ""
    environment = os.environ
    key = (name, version, variant, caller, hub, *[environment.get(variable) for variable in VARIABLES])
    if (module := _answer(key)) is not None:
        return module
    if hub:
        return _in_hub_cache(key, name, version, variant)
    return _look_up(key, name, version, variant, install, caller)


def _in_hub_cache(key: tuple[object, ...], name: str, version: str | int | None, variant: str | None) -> ModuleType:
    cache = [os.path.expandvars(os.environ.get(variable, "")) for variable in HUB_VARIABLES]
    checkouts = os.environ.get(settings.kernels.variable, "")
    remembered = _name_of("hub", name, version, variant, checkouts, cache, settings.trust_file())
    if (module := _recall(remembered, key)) is not None:
        return module
    from . import search

    return search.in_hub_cache(key, _answers, remembered, name, version, variant)


@_public
def get_local_kernel(
    path: str | os.PathLike[str], variant: str | None = None, *, package_name: str | None = None
) -> ModuleType:
    """Returns the Python module of a kernel package in a folder, with its ops loaded.

    Args:
        path: A variant, a folder of variants, or a folder whose build/ has them, as `opforge pack` and the hub's own
            builder write them. The variant that fits best is taken.
        variant: The label of a variant, in place of that; or the package's name, which the hub's loader takes here.
        package_name: The expected name of the package or of its module: another name is an error.

    Every file is compared with the digests that the variant states, before anything is opened. The same files give the
    same module. Raises KernelIncompatibleError with the reason of each variant, KernelLoadError, KernelFormatError for
    a folder that has one variant twice.
    """
    folder = os.path.abspath(os.fspath(path))
    key = ("", folder, variant, package_name)
    if (module := _answer(key)) is not None:
        return module
    remembered = _name_of("local", folder, variant, package_name)
    if (module := _recall(remembered, key)) is not None:
        return module
    from . import search

    return search.local(key, _answers, remembered, folder, variant, package=package_name)


def _look_up(
    key: tuple[object, ...],
    name: str,
    version: str | int | None,
    variant: str | None,
    install: bool | None,
    caller: str,
) -> ModuleType:
    if isinstance(name, str) and name.isascii():
        name = name.lower()  # as the search does: under any other name neither checkouts nor new releases are noticed
    checkout = settings.kernels().get(name, "")
    is_open = version is None and caller and not checkout  # the caller's lock file decides
    place = (name, version, variant, checkout, settings.kernel_folders())
    remembered = "" if is_open else _name_of("kernel", *place)
    if (module := _recall(remembered, key)) is not None:
        return module
    from . import search

    return search.find(key, _answers, remembered, name, version, variant, install, caller)


def _name_of(*question: object) -> str:
    """Returns the name under which a call's outcome is remembered, from its arguments and what else decides it.

    Empty if torch is not imported: then it must not be.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return ""
    is_locked = getattr(sys, "_is_gil_enabled", lambda: True)()
    value: list[object] = [formats.KERNEL_LOOKUP, opforge_version.VERSION, *question]
    value += [getattr(torch.version, name, None) for name in ("cuda", "hip", "xpu")]
    value += [is_locked, torch.__version__, torch.__file__, sys.platform, machine.libstdcxx(), *machine.name_parts()]
    return remembered_values.name_of(value)


def _answer(key: tuple[object, ...]) -> ModuleType | None:
    """Returns the module that a call has returned in this process; None if what it was read from has changed."""
    module, stamps = _answers.get(key, (None, None))
    if stamps and stamps.paths and remembered_values.stamps_of(stamps.paths, len(stamps.paths)) != stamps.numbers:
        return None
    return module


def _recall(name: str, key: tuple[object, ...]) -> ModuleType | None:
    """Returns the module that a call led to before; None if anything that led there has changed, or it cannot be had.

    Then the search is made in full, and says why. Keeps it in the process's answers under `key`. An empty name has
    nothing.
    """
    found = remembered_values.recall(name) if name else None
    if found is None:
        return None
    try:
        names = ("folder", "scope", "module", "files", "content", "version")
        folder, scope, module, files, content, version = (found[0][part] for part in names)
        is_checked = scope not in ("environment", CHECKOUT)
        if (is_checked and tree.root_problem(folder)) or tree.id_problem(module, content):
            return None
        bytecode = scope != CHECKOUT and tree.has_bytecode(files, files)
        imported = tree.import_tree(folder, module, bytecode, content=content, version=version)
        _answers[key] = imported, found[1] if scope == CHECKOUT else FlatStamps()
        return imported
    except Exception:  # of a damaged file, or of the package's own Python: the search says what is wrong
        return None
