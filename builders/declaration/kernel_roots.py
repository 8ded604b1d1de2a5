"""Kernel roots: named folders of sources and headers, opforge's own or another package's, read in place."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from opforge.cache.records.inputs import RootedPath
from opforge.errors import BuilderError, SourceNotFoundError
from opforge.fast_path import lookup

if TYPE_CHECKING:
    from typing import ClassVar, Protocol

    class Rooted(Protocol):
        """A class with kernel roots, such as an op's builder."""

        name: ClassVar[str]
        kernel_roots: ClassVar[Sequence[KernelRoot]]


RootedClass = TypeVar("RootedClass", bound="type[Rooted]")

TRUSTED_ROOTS = ("torch", "python", "system", "cuda", "rocm", "oneapi", "zig", "sysroot", "opforge_facade", "site")
"""The roots whose files may differ between where a prebuilt op was built and here: its record covers them."""
OWN = "own"
"""The root of a builder's own folder. Its name, not its path, is part of a key."""


def is_own(root: str) -> bool:
    """Returns whether a root belongs to one op alone: the builder's own folder, or an include folder of the op."""
    return root == OWN or root.startswith("include")


class KernelRoot(NamedTuple):
    """A folder of kernels. Keys hold its `name`, not its path. `include` is the folder of its headers, below it."""

    name: str
    path: str
    include: str = "include"


def package_root(
    name: str, package: str, folder: str = "csrc", include: str = "include", owner: str = ""
) -> KernelRoot:
    """Returns the kernel root `folder` inside an installed package. The package is not imported.

    Raises SourceNotFoundError if the package or the folder is missing, which names the class `owner` that has the root.
    """
    import importlib.util

    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:  # the package that it would be a part of
        spec = None
    locations = list(spec.submodule_search_locations or ()) if spec else []
    for location in locations:
        path = os.path.join(location, folder)
        if os.path.isdir(path):
            return KernelRoot(name, os.path.realpath(path), include)
    absent = f"(the package {package} is not installed: an isolated build needs it in `requires` of [build-system])"
    raise SourceNotFoundError(owner or name, f"{package}/{folder}", locations or [absent])


def kernel_root(
    prefix: str, package: str, folder: str = "", include: str = "include"
) -> Callable[[RootedClass], RootedClass]:
    """Returns a decorator that makes a folder of an installed package a kernel root of a builder class.

        @kernel_root("sycl", "my_package")
        class SYCLOpBuilder(OpBuilder): ...

    The class and its subclasses then search that folder for `sources`, `include_dirs` and quoted headers, before the
    roots that they had. `sycl_kernel_path("csrc/x.sycl")` and `sycl_kernel_include("csrc/includes")` return the path of
    a file or folder in the first root of that prefix that has it. The folder is read in place: the package is neither
    imported nor written to. Raises BuilderError for a prefix that cannot be used, SourceNotFoundError if the package or
    the folder is missing.
    """

    def add(cls: RootedClass) -> RootedClass:
        root = prefixed_root(cls.__name__, prefix, package, folder, include)
        if any(root.name == other.name for other in cls.kernel_roots):
            raise BuilderError(cls.__name__, f"it has the kernel root {root.name!r} already", "Declare it once")
        cls.kernel_roots = (root, *cls.kernel_roots)
        # Subclasses may have earlier roots: the roots of the class that the method is called on are searched.
        setattr(cls, f"{prefix}_kernel_path", classmethod(lambda kind, path: _first(kind, prefix, path)))
        setattr(cls, f"{prefix}_kernel_include", classmethod(lambda kind, path: _first(kind, prefix, path)))
        return cls

    return add


def prefixed_root(owner: str, prefix: str, package: str, folder: str = "", include: str = "include") -> KernelRoot:
    """Returns the kernel root that `kernel_root` makes of these arguments, and raises the same errors.

    `owner` is the class that has it, for messages.
    """
    for name, value in (("package", package), ("folder", folder), ("include", include)):
        if not isinstance(value, str):
            raise BuilderError(owner, f"the kernel root's {name} is {value!r}", "Expected a text")
    if not isinstance(prefix, str) or not prefix.isidentifier() or is_own(prefix):
        raise BuilderError(owner, f"the kernel root's prefix is {prefix!r}", "Expected another word, such as sycl")
    return package_root(f"{prefix}:{package}/{folder}".rstrip("/"), package, folder, include, owner)


def _first(cls: type[Rooted], prefix: str, path: str) -> str:
    """Returns the path in the first root of the prefix that has it; an absolute path as it is."""
    roots = [root.path for root in cls.kernel_roots if root.name.partition(":")[0] == prefix]
    for root in roots:
        candidate = os.path.normpath(os.path.join(root, path))
        if os.path.exists(candidate):
            return candidate
    raise SourceNotFoundError(cls.name or cls.__name__, path, roots)


# In a checkout the folder `ops` is beside `builders`, in a wheel inside the same package: the same path either way.
_ABOVE_BUILDERS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
OPFORGE = KernelRoot("opforge", os.path.join(_ABOVE_BUILDERS, "ops", "csrc"))
OPFORGE_ABI = KernelRoot("opforge_abi", os.path.join(OPFORGE.path, "abi"))
"""The headers that the loader relies on. They are in no key and no entry's inputs: `abi.INTERFACE` stands for them."""

FACADE = KernelRoot("opforge_facade", os.path.join(_ABOVE_BUILDERS, "builders", "facade"))
"""The headers with the names of torch's over its stable ABI. They are inputs of a build here, and in no record: what
was built with those of another opforge needs none of them."""


def has_headers(root: KernelRoot) -> bool:
    """Returns whether a root has its folder of headers now. One that appears later is searched by the compiler too."""
    return root.include != "" and os.path.isdir(os.path.join(root.path, root.include))


def folder_of(cls: type) -> str:
    """Returns the folder of the file that defines a class; the working folder for a class from a prompt or notebook."""
    return os.path.normpath(os.path.join(lookup.current_folder(), os.path.dirname(lookup.file_of(cls))))


def listed(builder: str, roots: Any) -> Sequence[KernelRoot]:
    """Returns the declared kernel roots. Raises BuilderError unless each is a KernelRoot with texts."""
    try:
        are_roots = all(isinstance(root, KernelRoot) and all(isinstance(part, str) for part in root) for root in roots)
    except TypeError:
        are_roots = False
    if not are_roots or not isinstance(roots, (list, tuple)):
        expected = "Expected a list of KernelRoot. The decorator opforge.kernel_root adds a package's folder"
        raise BuilderError(builder, f"kernel_roots={roots!r}", expected)
    return roots


def check(builder: str, roots: Iterable[KernelRoot]) -> None:
    """Raises BuilderError if two folders have the same name, or if one is relative."""
    paths: dict[str, str] = {}
    for root in roots:
        if root.path[:1] != "/":
            what = f"folder={root.path!r}" if root.name == OWN else f"its kernel root {root.name!r} is {root.path!r}"
            line = f"os.path.join(os.path.dirname(os.path.abspath(__file__)), {root.path!r})"
            raise BuilderError(builder, what, f"Expected an absolute path, such as {line}")
        if paths.setdefault(root.name, root.path) != root.path:
            problem = f"{paths[root.name]} and {root.path} are both its kernel root {root.name!r}"
            raise BuilderError(builder, problem, "Give each root a different name: keys contain the name, not the path")


def holding(path: str, roots: Iterable[KernelRoot]) -> list[KernelRoot]:
    """Returns the roots that contain an absolute path."""
    return [root for root in roots if path == root.path or path.startswith(root.path.rstrip(os.sep) + os.sep)]


def is_own_root(folder: str, declared: Iterable[KernelRoot]) -> bool:
    """Returns whether an include folder is a root of its own: an absolute path outside of every kernel root."""
    return os.path.isabs(folder) and not holding(folder, declared)


def locate(op: str, names: Sequence[str], roots: Iterable[KernelRoot]) -> tuple[RootedPath, ...]:
    """Returns the path of each name below the first root that has it. Raises SourceNotFoundError, naming all roots."""
    return tuple(RootedPath(*pair) for pair in locate_pairs(op, names, roots))


def locate_pairs(op: str, names: Sequence[str], roots: Iterable[KernelRoot]) -> list[tuple[str, str]]:
    """Returns the result of `locate` as a plain (root, path): a look-up that remembers nothing imports no more."""
    roots = tuple(roots)
    located = []
    for name in names:
        if os.path.isabs(name):
            located.append(_below(op, os.path.normpath(name), roots))
            continue
        for root in roots:
            if os.path.exists(os.path.join(root.path, name)):
                located.append((root.name, os.path.normpath(name)))
                break
        else:
            raise SourceNotFoundError(op, name, [root.path for root in roots])
    return located


def _below(op: str, path: str, roots: tuple[KernelRoot, ...]) -> tuple[str, str]:
    if not os.path.exists(path):
        raise SourceNotFoundError(op, path, [os.path.dirname(path)])
    if above := holding(path, roots):
        nearest = max(above, key=lambda root: len(root.path))
        return nearest.name, os.path.relpath(path, nearest.path)
    for own in roots[:1]:  # named from the builder's own folder, so that the headers beside it are the op's too
        below = os.path.relpath(path, own.path)
        if os.path.realpath(os.path.join(own.path, below)) == os.path.realpath(path):  # no link is on the way back
            return own.name, below
    return "system", path.lstrip(os.sep)
