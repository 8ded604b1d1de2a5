"""The build plan: everything that is known before a compiler starts, without a path or a time in it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from opforge.cache.keys import key_of
from opforge.cache.records.inputs import RootedPath
from opforge.foundation import formats

from . import flag_paths


class PlannedGroup(NamedTuple):
    """Sources of a plan with all that their commands have instead of the plan's own."""

    sources: tuple[RootedPath, ...]
    include: tuple[RootedPath, ...]
    defines: tuple[tuple[str, str], ...]
    compile_flags: tuple[str, ...]
    device_flags: tuple[str, ...]


class BuildPlan(NamedTuple):
    """A frozen plan. Its key is the first of the cache's two addresses."""

    op: str
    version: str
    abi: str
    target: str
    toolchain: tuple[tuple[str, str], ...]
    """The identity of the compiler: versions and digests of its programs, never their paths."""
    sources: tuple[RootedPath, ...]
    include: tuple[RootedPath, ...]
    """Folders for -I, in order; system headers (torch's) are in `system_include`."""
    system_include: tuple[RootedPath, ...]
    defines: tuple[tuple[str, str], ...]
    compile_flags: tuple[str, ...]
    link_flags: tuple[str, ...]
    libraries: tuple[str, ...]
    stubs: tuple[str, ...]
    """Sonames that are linked against by name alone: the real libraries are in the process already."""
    requires: tuple[tuple[str, str], ...]
    """torch and Python, where the ABI ties the binary to them."""
    environment: tuple[tuple[str, str], ...]
    """The variables that compilers read: CPATH, LIBRARY_PATH, ..."""
    device_flags: tuple[str, ...] = ()
    """The flags for the device's own sources, where the target is a device; `compile_flags` are the host's."""
    debug_roots: tuple[tuple[str, str], ...] = ()
    """Where the roots lie, for a library that keeps source paths; empty for one that does not."""
    kernels: tuple[tuple[str, str], ...] = ()
    """Each kernel to be compiled ahead of time by name, and how: signature, constants, options."""
    groups: tuple[PlannedGroup, ...] = ()
    """The sources with their own include folders, definitions or flags."""

    def located(self, root_paths: Mapping[str, str]) -> BuildPlan:
        """Returns the plan with the paths of roots in its flags, for commands. In the plan itself flags name roots."""

        def flags(plan: BuildPlan | PlannedGroup) -> dict[str, Any]:
            names = ("compile_flags", "device_flags")
            return {name: flag_paths.located(getattr(plan, name), root_paths) for name in names}

        return self._replace(
            link_flags=flag_paths.located(self.link_flags, root_paths),
            groups=tuple(group._replace(**flags(group)) for group in self.groups),
            **flags(self),
        )

    def of(self, source: RootedPath) -> BuildPlan:
        """Returns the plan with the include folders, definitions and flags of this source, and without groups."""
        group = next((group for group in self.groups if source in group.sources), None)
        return self._of(group) if self.groups else self

    def outside(self) -> list[RootedPath]:
        """Returns the folders of sources and of headers to which `..` leads from a root: no root contains them."""
        # Called for each source: of a thousand, none may cost more than this look at its beginning.
        beyond = (source for source in self.sources if source.path.startswith(".."))
        above = [source._replace(path=os.path.dirname(source.path)) for source in beyond]
        folders = [*above, *(folder for variant in self.variants() for folder in variant.include)]
        return [folder for folder in dict.fromkeys(folders) if folder.path.partition("/")[0] == ".."]

    def variants(self) -> list[BuildPlan]:
        """Returns the plan as the sources of no group have it, and as those of each group do."""
        return [self._of(None), *map(self._of, self.groups)]

    def _of(self, group: PlannedGroup | None) -> BuildPlan:
        own = {**group._asdict(), "sources": self.sources} if group else {}
        return self._replace(**own, groups=())

    @property
    def key(self) -> str:
        """The plan key."""
        return key_of([formats.PLAN, self.components()])

    def components(self) -> dict[str, Any]:
        """Returns the key's components by name, JSON-able: what `explain` compares."""
        fields = self._asdict()
        if self.groups:
            fields["groups"] = [group._asdict() for group in self.groups]
        else:
            del fields["groups"]  # the keys of ops without groups are those of opforges that had none
        return {
            **fields,
            "toolchain": dict(self.toolchain),
            "requires": dict(self.requires),
            "environment": dict(self.environment),
            "debug_roots": dict(self.debug_roots),
            "kernels": dict(self.kernels),
        }


class Step(NamedTuple):
    """One command of a build, for ninja to run."""

    output: str
    inputs: tuple[str, ...]
    argv: tuple[str, ...]
    title: str
    depfile: str = ""
    """The compiler's list of the files that it read (`-MD -MF`). Without it only `inputs` are watched."""
    unit: RootedPath | None = None
    """The source that it compiles, if it compiles one."""
    assembled: str = ""
    """The assembler's list of the files that it read: no compiler lists files of `.incbin`."""
