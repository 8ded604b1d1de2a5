"""Kernel roots: named folders that hold sources and headers, ours or another package's, read where they lie."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol, TypeVar

from opforge.errors import BuilderError, SourceNotFoundError

if TYPE_CHECKING:
    from opforge.cache.records.inputs import RootedPath


class Rooted(Protocol):
    """A class with kernel roots: of an op's builder, nothing else is needed here."""

    name: ClassVar[str]
    kernel_roots: ClassVar[Sequence[KernelRoot]]


RootedClass = TypeVar("RootedClass", bound="type[Rooted]")

OWN = "own"
"""The root of a builder's own folder. Its name, not its path, is part of a key."""


def is_own(root: str) -> bool:
    """Whether this is the name of a root that belongs to one op alone: its own folder, or an include folder of it."""
    return root == OWN or root.startswith("include")


class KernelRoot(NamedTuple):
    """A folder of kernels. `name` stands for it in keys; `include` is where its headers lie, below it."""

    name: str
    path: str
    include: str = "include"


def package_root(name: str, package: str, folder: str = "csrc", include: str = "include") -> KernelRoot:
    """The kernel root `folder` inside an installed package, which is located but not imported.

    Raises SourceNotFoundError where the package or the folder is missing.
    """
    import importlib.util

    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:  # the package that it would be a part of
        spec = None
    places = list(spec.submodule_search_locations or ()) if spec else []
    for place in places:
        path = os.path.join(place, folder)
        if os.path.isdir(path):
            return KernelRoot(name, os.path.realpath(path), include)
    raise SourceNotFoundError(name, f"{package}/{folder}", places or [f"(the package {package} is not installed)"])


def kernel_root(
    prefix: str, package: str, folder: str = "", include: str = "include"
) -> Callable[[RootedClass], RootedClass]:
    """Make a folder of an installed package a kernel root of a builder class, under a prefix of its own.

        @kernel_root("sycl", "my_package")
        class SYCLOpBuilder(OpBuilder): ...

    The class and its subclasses then look for `sources`, `include_dirs` and quoted headers there too, before the roots
    that they had; and `sycl_kernel_path("csrc/x.sycl")`, `sycl_kernel_include("csrc/includes")` give the path of such
    a file or folder in the first root of that prefix which has it. It is read in place; the package is located, not
    imported, and never written to. Raises BuilderError for a prefix that cannot be used, SourceNotFoundError where the
    package or the folder is missing.
    """

    def add(cls: RootedClass) -> RootedClass:
        if not prefix.isidentifier() or is_own(prefix):
            raise BuilderError(
                cls.__name__, f"the kernel root's prefix is {prefix!r}", "Expected another word, such as sycl"
            )
        root = package_root(f"{prefix}:{package}/{folder}".rstrip("/"), package, folder, include)
        if any(one.name == root.name for one in cls.kernel_roots):
            raise BuilderError(cls.__name__, f"it has the kernel root {root.name!r} already", "Declare it once")
        cls.kernel_roots = (root, *cls.kernel_roots)
        # As its subclasses may have roots before these, the class that is asked is the one whose roots are searched.
        setattr(cls, f"{prefix}_kernel_path", classmethod(lambda asked, path: _first(asked, prefix, path)))
        setattr(cls, f"{prefix}_kernel_include", classmethod(lambda asked, path: _first(asked, prefix, path)))
        return cls

    return add


def _first(cls: type[Rooted], prefix: str, path: str) -> str:
    """The path in the first root of the prefix that has it; an absolute path as it is."""
    roots = [root.path for root in cls.kernel_roots if root.name.partition(":")[0] == prefix]
    for root in roots:
        found = os.path.normpath(os.path.join(root, path))
        if os.path.exists(found):
            return found
    raise SourceNotFoundError(cls.name or cls.__name__, path, roots)


# In a checkout the folder `ops` lies beside `builders`, in a wheel inside the same package: the same path either way.
_ABOVE_BUILDERS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
OPFORGE = KernelRoot("opforge", os.path.join(_ABOVE_BUILDERS, "ops", "csrc"))


def folder_of(cls: type) -> str:
    """The folder of the file that defines a builder class; the working folder for one from a prompt or a notebook."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    try:
        return os.path.abspath(os.path.dirname(file)) if file else os.getcwd()
    except FileNotFoundError:  # the working folder has been removed: whatever lies in it is missing
        return os.sep


def check(builder: str, roots: Iterable[KernelRoot]) -> None:
    """See that each name stands for one folder. Raises BuilderError."""
    paths: dict[str, str] = {}
    for root in roots:
        if paths.setdefault(root.name, root.path) != root.path:
            problem = f"{paths[root.name]} and {root.path} are both its kernel root {root.name!r}"
            raise BuilderError(builder, problem, "Give each a name of its own: it stands for the path in the key")


def holding(path: str, roots: Iterable[KernelRoot]) -> list[KernelRoot]:
    """Those of the roots that the absolute path lies in."""
    return [root for root in roots if path == root.path or path.startswith(root.path.rstrip(os.sep) + os.sep)]


def locate(op: str, names: Sequence[str], roots: Iterable[KernelRoot]) -> tuple[RootedPath, ...]:
    """Each name as the first root that has it, in the roots' order. Raises SourceNotFoundError, naming all of them."""
    from opforge.cache.records.inputs import RootedPath  # not on the path of a hit

    roots = tuple(roots)
    found = []
    for name in names:
        if os.path.isabs(name):
            found.append(_below(op, os.path.normpath(name), roots))
            continue
        for root in roots:
            if os.path.exists(os.path.join(root.path, name)):
                found.append(RootedPath(root.name, os.path.normpath(name)))
                break
        else:
            raise SourceNotFoundError(op, name, [root.path for root in roots])
    return tuple(found)


def _below(op: str, path: str, roots: tuple[KernelRoot, ...]) -> RootedPath:
    from opforge.cache.records.inputs import RootedPath

    if not os.path.exists(path):
        raise SourceNotFoundError(op, path, [os.path.dirname(path)])
    found = holding(path, roots)
    if not found:
        return RootedPath("system", path.lstrip(os.sep))
    nearest = max(found, key=lambda root: len(root.path))
    return RootedPath(nearest.name, os.path.relpath(path, nearest.path))
