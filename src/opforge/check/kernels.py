"""Installed kernel packages: each variant that fits this machine is loaded, and compared with its cases."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from opforge.bench import machine
from opforge.packages.form import metadata, version
from opforge.packages.installed import layout, releases
from opforge.packages.installed.releases import Installed, InstalledVariant

from . import stages

Say = Callable[..., None]


class InstalledKernel(NamedTuple):
    """A variant of an installed package."""

    release: Installed
    variant: InstalledVariant

    @property
    def name(self) -> str:
        """ORG/NAME."""
        return self.release.name

    @property
    def label(self) -> str:
        """The properties of the variant, from the name of its folder."""
        return self.variant.candidate.label

    @property
    def package(self) -> str:
        """The package with its version."""
        return f"{self.release.name} {self.release.version}"

    @property
    def accelerator(self) -> str:
        """The accelerator that it is for; empty for a kernel of Python alone, which any may run."""
        from opforge.packages.pack.properties import DEVICES

        backend = str(self.variant.candidate.properties.backend)
        return DEVICES.get(backend, backend if backend == "cpu" else "")


def installed(names: Sequence[str] = ()) -> list[InstalledKernel]:
    """Returns the variants of the packages of these names, or of all. Raises KernelNotFoundError."""
    from opforge.errors import KernelNotFoundError

    roots = layout.roots()
    found = [
        InstalledKernel(release, variant)
        for root in roots
        for name in releases.names(root)
        if not names or name in names
        for release in releases.matching(root, name, version.ANY)
        for variant in release.variants
    ]
    for name in names:
        if name not in {kernel.name for kernel in found}:
            raise KernelNotFoundError(name, [root.path for root in roots], "opforge ls shows installed packages.")
    return found


def prepare(kernel: InstalledKernel, say: Say) -> None:
    """Reports why a variant cannot be used here, if it cannot. Raises KernelFormatError."""
    from opforge.packages.pack import variant_checks

    say(library=kernel.variant.folder, origin=kernel.release.root.path)
    if problem := kernel.release.refusal or variant_checks.unfit(metadata.read(kernel.variant.folder)):
        say(state="unusable", reason=problem)


def check_kernel(kernel: InstalledKernel, say: Say) -> None:
    """Loads a variant, and compares it if an entry point names cases for it. Raises what either raises."""
    import opforge
    from opforge.accelerator.select import get_accelerator

    say(stage="load")
    began = time.perf_counter()
    module = opforge.get_kernel(kernel.name, version.exactly(kernel.release.version).text, kernel.label)
    file = os.path.realpath(module.__file__ or "")
    if not file.startswith(os.path.realpath(kernel.variant.folder) + os.sep):
        say(state="unusable", reason=f"{file} is loaded in its place")  # a checkout, or a folder that comes before
        return
    say(load_ms=round(1e3 * (time.perf_counter() - began), 1))
    device = kernel.accelerator or get_accelerator().name
    say(device=machine.device_name(device))
    stages.compare(stages.cases_of_package(kernel.name), module, device, say)
