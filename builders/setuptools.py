"""`build_ops` for setuptools: puts prebuilt ops into a project's wheel, where its own builders find them.

In pyproject.toml, with opforge among the build's requirements:

    [tool.opforge]
    ops = ["my_package.ops:MyBuilder"]
    targets = ["cpu:x86-64-v2", "cpu:x86-64-v3"]

or in setup.py: `setup(cmdclass=commands(ops=[...], targets=[...]))`.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from setuptools import Command
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build
from setuptools.errors import ExecError, OptionError

from opforge.cache.layout import PACKAGE_LAYER

from .wheel_tag import Tag, binary_records, wheel_tag

__all__ = ["commands"]
LEVELS = {
    "x86_64": ("cpu:x86-64-v2", "cpu:x86-64-v3", "cpu:x86-64-v4"),
    "aarch64": ("cpu:aarch64",),
}
"""What is built where no target is named, by machine: the highest level that runs is picked when the op is loaded."""
KNOWN = frozenset({"ops", "targets", "portable"})
EXPECTED = 'expected ops = ["package.module:Class", ...], and, if you like, targets = ["cpu:x86-64-v3", ...], portable'


class OpsConfig(NamedTuple):
    """What a project ships."""

    ops: tuple[str, ...]
    """Builders as package.module:Class."""
    targets: tuple[str, ...] = ()
    portable: bool = False
    package: str = ""
    """The package that gets the layer; by default each op's own. With it, no `ops` means all that are offered."""

    def by_package(self) -> dict[str, list[str]]:
        """The top-level packages that get a layer, each with its ops."""
        if self.package:
            return {self.package: list(self.ops)}
        found: dict[str, list[str]] = {}
        for op in self.ops:
            found.setdefault(op.partition(":")[0].partition(".")[0], []).append(op)
        return found


class BuildOps(Command):  # type: ignore[misc]  # setuptools is not typed
    """Builds the project's ops into the build folder, each for every target."""

    description = "build ops ahead of time, to be shipped inside the wheel"
    user_options: ClassVar[list[tuple[str, str | None, str]]] = [
        ("targets=", None, "targets to build for, separated by commas"),
        ("jobs=", "j", "how many compilers may run at once"),
    ]
    config = OpsConfig(())
    editable_mode = False

    def initialize_options(self) -> None:
        """Nothing was asked for yet."""
        self.build_lib: str | None = None
        self.targets: str | None = None
        self.jobs: str | None = None

    def finalize_options(self) -> None:
        """Take the build folder from the command `build`."""
        self.set_undefined_options("build", ("build_lib", "build_lib"))

    def run(self) -> None:
        """Build, in a process of its own, from what the wheel will hold. Raises ExecError."""
        if self.editable_mode:
            return  # in a checkout that is being worked on, load() builds
        for package, ops in self.config.by_package().items():
            layer = self._layer(package)
            if not os.path.isdir(os.path.dirname(layer)):
                raise OptionError(f"opforge: there is no package {package!r} in this project; {EXPECTED}")
            shutil.rmtree(layer, ignore_errors=True)  # it may hold what an earlier version of the op was
            self._build(ops, layer)

    def _build(self, ops: Sequence[str], layer: str) -> None:
        targets = self.targets.split(",") if self.targets else self.config.targets or default_targets()
        command = [sys.executable, "-m", "opforge", "build-ops", *ops, "--out", layer]
        command += [word for one in targets for word in ("--target", one)]
        command += ["--jobs", self.jobs] if self.jobs else []
        command += ["--portable"] if self.config.portable else []
        # Python looks for modules in the working folder first: the builders are those that will be installed, and a
        # source that was left out of the wheel is missing now, not there.
        done = subprocess.run(command, cwd=self.build_lib, env={"OPFORGE_PREBUILT": "ignore", **os.environ})
        if done.returncode:
            raise ExecError(f"opforge: building {', '.join(ops) or 'the ops'} failed; the lines above say why")
        tag = os.path.join(layer, "CACHEDIR.TAG")
        if os.path.exists(tag):
            os.unlink(tag)  # what is installed is not to be left out of a backup

    def _layer(self, package: str) -> str:
        return os.path.abspath(os.path.join(self.build_lib or "", package, PACKAGE_LAYER))

    def layers(self) -> list[str]:
        """The folders of entries, in the build folder."""
        self.ensure_finalized()
        return [self._layer(package) for package in self.config.by_package()]

    def get_outputs(self) -> list[str]:
        """Every file of the layers that are built."""
        return [path for layer in self.layers() for path in _files(layer)]

    def get_source_files(self) -> list[str]:
        """None of its own: sources are part of the package's data."""
        return []

    def get_output_mapping(self) -> dict[str, str]:
        """No output is a copy of one source."""
        return {}


def commands(
    ops: Sequence[str],
    targets: Sequence[str] = (),
    portable: bool = False,
    package: str = "",
    bases: Mapping[str, type[Any]] | None = None,
) -> dict[str, type[Command]]:
    """The commands for `setup(cmdclass=...)` of a project that ships these ops, built for these targets.

    Without targets, the levels of this machine's processor that ops are commonly built for. `bases` are the project's
    own commands of the same names, where it has any. Raises OptionError.
    """
    problem = _problem(ops, targets, portable, package)
    if problem:
        raise OptionError(f"opforge: {problem}; {EXPECTED}")
    base_build, base_wheel = (bases or {}).get("build", build), (bases or {}).get("bdist_wheel", bdist_wheel)

    class BuildOpsHere(BuildOps):
        config = OpsConfig(tuple(ops), tuple(targets), portable, package)

    class BuildWithOps(base_build):  # type: ignore[misc, valid-type]
        sub_commands: ClassVar[list[Any]] = [*base_build.sub_commands, ("build_ops", None)]

        def finalize_options(self) -> None:
            _holds_binaries(self.distribution)
            super().finalize_options()

    class WheelWithOps(base_wheel):  # type: ignore[misc, valid-type]
        def finalize_options(self) -> None:
            _holds_binaries(self.distribution)
            super().finalize_options()

        def get_tag(self) -> tuple[str, str, str]:
            told = _measured(self.get_finalized_command("build_ops"))
            if told is None or self.plat_name_supplied:
                answer: tuple[str, str, str] = super().get_tag()
                return answer
            if told.reason:
                self.warn(f"opforge: the wheel is for systems like this one only: {told.reason}")
            return told.python, told.abi, told.platform

    return {"build_ops": BuildOpsHere, "build": BuildWithOps, "bdist_wheel": WheelWithOps}


def _problem(ops: object, targets: object, portable: object, package: str) -> str:
    """What is wrong with the configuration, or nothing."""
    for name, value in (("ops", ops), ("targets", targets)):
        if not isinstance(value, (list, tuple)) or not all(isinstance(one, str) for one in value):
            return f"{name}={value!r} is no list of names"
    assert isinstance(ops, (list, tuple))
    wrong = None if package else next((one for one in ops if not all(one.partition(":")[::2])), None)
    if wrong is not None:
        return f"{wrong!r} names no builder"
    if not isinstance(portable, bool):
        return f"portable={portable!r} is neither true nor false"
    return "" if ops or package else "no op is named"


def _measured(built: Any) -> Tag | None:
    """The tag of what was built; None where nothing was."""
    found = [binary for layer in built.layers() for binary in binary_records(layer)]
    try:
        return wheel_tag(found) if found else None
    except ValueError as error:
        raise OptionError(f"opforge: {error}") from error


def from_table(table: object, distribution: Any) -> dict[str, type[Command]]:
    """The commands for a project whose pyproject.toml holds this as [tool.opforge]. Raises OptionError."""
    unknown = sorted(set(table) - KNOWN) if isinstance(table, dict) else ["no table"]
    if unknown:
        raise OptionError(f"opforge: [tool.opforge] has {', '.join(unknown)}, which is not known; {EXPECTED}")
    assert isinstance(table, dict)
    bases = {name: distribution.get_command_class(name) for name in ("build", "bdist_wheel")}
    return commands(**{"ops": (), **table}, bases=bases)


def default_targets() -> tuple[str, ...]:
    """What is built where nobody names a target. Raises OptionError on a machine without a default."""
    machine = platform.machine()
    if machine not in LEVELS:
        raise OptionError(f"opforge: there are no default targets for {machine}: name them in `targets`")
    return LEVELS[machine]


def _holds_binaries(distribution: Any) -> None:
    """Have the package installed where libraries belong, and the wheel marked as one that is not pure."""
    distribution.has_ext_modules = lambda: True


def _files(folder: str) -> Iterator[str]:
    for place, _folders, names in os.walk(folder):
        yield from (os.path.join(place, name) for name in sorted(names))
