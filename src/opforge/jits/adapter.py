"""Adapters: how the entries of one JIT are given to it, and taken from it. Packages add theirs by an entry point.

    [project.entry-points."opforge.jits"]
    myjit = "my_package.opforge_adapter:ADAPTER"

An adapter is admitted with a contract, `opforge.testing.JitContract`: the keys are the JIT's own, and one that forgets
a part of what it compiles would spread wrong results.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache
from importlib import metadata
from pkgutil import resolve_name
from typing import ClassVar

from opforge.accelerator.entry_points import entry_points
from opforge.fast_path.machine import python_tag
from opforge.foundation import upper_parts

from . import features as processors
from . import notices
from .entries import Entries
from .page import ADAPTER, PageTopic

log = logging.getLogger("opforge")
BUILT_IN = {
    "triton": "opforge.jits.triton:KERNELS",
    "triton-host": "opforge.jits.triton:HOST",
    "inductor": upper_parts.UPPER["adapter of compiled graphs"],
    "tvm-ffi": "opforge.jits.tvm_ffi:TVM_FFI",
    "flashinfer": "opforge.jits.flashinfer:FLASHINFER",
    "cuda-core": "opforge.jits.cuda_core:CUDA_CORE",
}
"""opforge's own, by name."""
BY_NAME_ALONE = ("inductor",)
"""Adapters that begin only if they are named: other processes wait for the end of a scope of compiled graphs."""
GROUP = "opforge.jits"
OTHER_VERSION = "%s %s: its compiled code is neither found nor kept: opforge's adapter was tried with %s"
SAME = {"host": True, "pickle": True, "gpu": False}
"""Whether what an adapter holds runs on the host, by the instructions of its processor."""


class Adapter(ABC):
    """How one JIT gets its entries. It changes the JIT while a scope of it is open, and nothing else."""

    name: ClassVar[str]
    """As it stands in jit:ADAPTER/LABEL."""
    module: ClassVar[str]
    """The module after whose import it begins: a program that does not use the JIT does not import it."""
    package: ClassVar[str]
    """The distribution that has the JIT."""
    versions: ClassVar[tuple[str, ...]]
    """The releases that it was tried with. For any other it does nothing, and says so."""
    holds: ClassVar[str]
    """`gpu` for code that no host runs, `host` for code of the host, `pickle`: the most that its pages may hold."""
    carries: ClassVar[str]
    """A pattern of the paths that an entry may have. Any other is never laid out."""
    scope: ClassVar[str] = "opforge.warm"
    """The scope that keeps its entries, for texts."""
    format: ClassVar[int] = 1
    """Of its keys and files. With another number nothing that is stored is found."""

    def __init__(self) -> None:
        """Begins without a scope."""
        self.active: list[Entries] = []
        """The entries of the open scopes: those of the last one are used."""
        self._undo: Callable[[], object] | None = None

    @property
    def entries(self) -> Entries:
        """The entries that are in use."""
        return self.active[-1]

    @abstractmethod
    def install(self) -> Callable[[], object]:
        """Makes the JIT use `entries`, from now on; returns the function that ends that."""

    def version(self) -> str:
        """Returns the version of the JIT; empty if it is not installed."""
        return version_of(self.package)

    def version_problem(self) -> str:
        """Returns why the adapter does nothing; empty if it works."""
        version = self.version()
        if not version:
            return f"{self.name}: {self.package} is not installed"
        if any(version == known or version.startswith(f"{known}.") for known in self.versions):
            return ""
        return OTHER_VERSION % (self.package, version, ", ".join(self.versions))

    def settings(self) -> dict[str, str]:
        """Returns the settings that the JIT's keys omit, besides those in `fingerprint`."""
        return {}

    def fingerprint(self) -> dict[str, str]:
        """Returns the state besides the key that decides whether an entry fits. Each value has a topic of its own."""
        here = os.uname()
        common = {self.package: self.version(), "python": python_tag(), "platform": f"{sys.platform}-{here.machine}"}
        if SAME[self.holds] and hasattr(os, "confstr") and "CS_GNU_LIBC_VERSION" in os.confstr_names:
            common["libc"] = os.confstr("CS_GNU_LIBC_VERSION") or ""
        return {**common, "format": str(self.format), **self.settings()}

    def features(self) -> tuple[str, ...]:
        """Returns the instructions that code compiled here may use: a processor without them must not run it."""
        return processors.features() if SAME[self.holds] else ()

    def open(self, label: str) -> Entries:
        """Returns the entries under a label. Raises CacheDirError."""
        topic = PageTopic(self.name, label, self.fingerprint())
        return Entries(topic, self.holds, self.features(), self.carries)

    # -- scopes --------------------------------------------------------------------------------------------------------

    def begin(self, entries: Entries) -> None:
        """Uses some entries from now on."""
        self.active.append(entries)
        if self._undo is None:
            try:
                self._undo = self.install()
            except Exception as error:  # of another project's names
                self.active.remove(entries)
                notices.warn("%s %s: its compiled code is neither found nor kept: %s", self.name, self.version(), error)

    def end(self, entries: Entries) -> None:
        """Uses them no longer."""
        if entries in self.active:
            self.active.remove(entries)
        if not self.active and self._undo is not None:
            undo, self._undo = self._undo, None
            undo()


def version_of(package: str) -> str:
    """Returns the version of a distribution; empty if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def every() -> dict[str, str]:
    """Returns where each adapter is, by name: opforge's own, and those of other packages."""
    return {**BUILT_IN, **{one.name: one.value for one in entry_points(GROUP) if one.name not in BUILT_IN}}


@cache
def at(path: str) -> Adapter:
    """Returns the adapter at MODULE:NAME. Raises what its import raises, and TypeError for what cannot be one."""
    found = resolve_name(path)
    if not isinstance(found, Adapter):
        expected = f"expected an object of a subclass of {Adapter.__module__}.Adapter"
        raise TypeError(f"{path} is {ascii(found)[:80]}: {expected}")
    if problem := _declaration_problem(found):
        raise TypeError(f"{path}: {problem}")
    return found


def _declaration_problem(one: Adapter) -> str:
    """Returns which attribute of an adapter is missing, or cannot be used; empty if none is."""
    for name in ("name", "module", "package", "holds", "carries"):
        value = getattr(one, name, None)
        if not (isinstance(value, str) and value):
            return f"its {name} is {value!r}: expected a text"
    if not re.fullmatch(ADAPTER, one.name):
        return f"its name is {one.name!r}: expected lower-case letters, digits and '-', at most 32"
    if one.holds not in SAME:
        return f"its holds is {one.holds!r}: expected one of {', '.join(SAME)}"
    versions: object = getattr(one, "versions", None)
    if isinstance(versions, tuple) and versions and all(isinstance(known, str) and known for known in versions):
        return ""
    return f"its versions are {versions!r}: expected a tuple of releases, such as ('2.1',)"
