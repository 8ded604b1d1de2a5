"""`build_ops` for setuptools: builds ops into a project's wheel, where the project's own builders find them.

In pyproject.toml, with opforge among the build's requirements:

    [tool.opforge]
    ops = ["my_package.ops:MyBuilder"]
    targets = ["cpu:x86-64-v2", "cpu:x86-64-v3"]

or in setup.py: `setup(cmdclass=commands(ops=[...], targets=[...]))`.
"""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from setuptools import Command
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build
from setuptools.errors import ExecError, OptionError

from opforge.cache.layout import PACKAGE_LAYER, VERSION

from . import project_ops
from .project_ops import BACKEND, EXPECTED, OpsConfig, build_layer, config_problem, unknown_keys
from .wheel_tag import Tag, combined, records_of, wheel_tag

__all__ = ["commands"]
SOURCE_SUFFIXES = (".c", ".cc", ".cpp", ".cxx", ".cu", ".cuh", ".h", ".hpp", ".hip", ".sycl", ".cl")


class BuildOps(Command):  # type: ignore[misc]  # setuptools is not typed
    """Builds the project's ops for every target, into the build folder."""

    description = "build ops ahead of time, for the wheel"
    user_options: ClassVar[list[tuple[str, str | None, str]]] = [
        ("targets=", None, "targets to build for, separated by commas"),
        ("jobs=", "j", "how many compilers may run at once"),
    ]
    config = OpsConfig(())
    editable_mode = False

    def initialize_options(self) -> None:
        """Sets every option to None."""
        self.build_lib: str | None = None
        self.targets: str | None = None
        self.jobs: str | None = None

    def finalize_options(self) -> None:
        """Takes the build folder from the command `build`."""
        self.set_undefined_options("build", ("build_lib", "build_lib"))

    def run(self) -> None:
        """Builds in another process, from the files that the wheel will hold. Raises ExecError, OptionError."""
        if self.editable_mode:
            return  # in an editable install, load() builds
        self.run_command("build_py")  # done already within `build`; as a command of its own, nothing else copies files
        # The build folder may hold the ops of earlier wheels, also in a package that has none any more. What else lies
        # in the layers is the author's.
        for built in glob.glob(os.path.join("*", PACKAGE_LAYER, VERSION), root_dir=self.build_lib):
            shutil.rmtree(os.path.join(self.build_lib or "", built), ignore_errors=True)
        for package, ops in self.config.by_package().items():
            layer = self._layer(package)
            if not os.path.isdir(os.path.dirname(layer)):
                raise OptionError(
                    f"opforge: there is no package {package!r} in this project, whose folder gets the ops; {EXPECTED}"
                )
            self._build(ops, layer)

    def _build(self, ops: Sequence[str], layer: str) -> None:
        targets = self.targets.split(",") if self.targets else self.config.targets or default_targets()
        problem = build_layer(ops, layer, self.build_lib or "", targets, self.config.portable, self.jobs or "")
        if problem:
            hint = self._package_data_hint(os.path.basename(os.path.dirname(layer)))
            raise ExecError(f"opforge: {problem}{hint}")

    def _package_data_hint(self, package: str) -> str:
        """Returns which sources of a package the wheel lacks, and the table that adds them; empty if it has them."""
        source, built = self.get_finalized_command("build_py").get_package_dir(package), self.build_lib or ""
        paths = [os.path.relpath(path, source) for path in _files(source) if path.endswith(SOURCE_SUFFIXES)]
        missing = [path for path in paths if not os.path.exists(os.path.join(built, package, path))]
        if not missing:
            return ""
        suffixes = {os.path.join(os.path.dirname(path), f"*{os.path.splitext(path)[1]}") for path in missing}
        names = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        patterns = ", ".join(f'"{pattern}"' for pattern in sorted(suffixes))
        table = f"[tool.setuptools.package-data]\n  {package} = [{patterns}]"
        return f"\nhint: the wheel does not hold {names} of {package}. Add to pyproject.toml:\n  {table}"

    def _layer(self, package: str) -> str:
        return os.path.abspath(os.path.join(self.build_lib or "", package, PACKAGE_LAYER))

    def layers(self) -> list[str]:
        """Returns the folders of the built ops, in the build folder."""
        self.ensure_finalized()
        return [self._layer(package) for package in self.config.by_package()]

    def get_outputs(self) -> list[str]:
        """Returns every built file."""
        return [path for layer in self.layers() for path in _files(layer)]

    def get_source_files(self) -> list[str]:
        """Returns none: the sources of ops are part of the package's data."""
        return []

    def get_output_mapping(self) -> dict[str, str]:
        """Returns nothing: no output is a copy of a source."""
        return {}


def commands(
    ops: Sequence[str],
    targets: Sequence[str] = (),
    portable: bool = False,
    package: str = "",
    bases: Mapping[str, type[Any]] | None = None,
) -> dict[str, type[Command]]:
    """Returns the commands for `setup(cmdclass=...)` of a project whose wheel holds ops.

    Args:
        ops: The builders, each as package.module:Class.
        targets: The targets to build for; by default the usual levels of this machine's processor.
        portable: Whether to build libraries that older systems load too.
        package: The package that gets the ops; by default each op's own.
        bases: The project's own commands of the same names, if it has any.

    Raises:
        OptionError: An argument is wrong.
    """
    if problem := config_problem(ops, targets, portable, package):
        raise OptionError(f"opforge: {problem}; {EXPECTED}")
    base_build, base_wheel = (bases or {}).get("build", build), (bases or {}).get("bdist_wheel", bdist_wheel)

    class BuildOpsHere(BuildOps):
        config = OpsConfig(tuple(ops), tuple(targets), portable, package)

    class BuildWithOps(_OfLibraries, base_build):  # type: ignore[misc, valid-type]
        sub_commands: ClassVar[list[Any]] = [*base_build.sub_commands, ("build_ops", None)]

    class WheelWithOps(_OfLibraries, base_wheel):  # type: ignore[misc, valid-type]
        def get_tag(self) -> tuple[str, str, str]:
            return _tag_with_ops(self, Tag(*super().get_tag()))[:3]

    return {"build_ops": BuildOpsHere, "build": BuildWithOps, "bdist_wheel": WheelWithOps}


class _OfLibraries:
    """Comes before the base of a command, and makes it one of a project with libraries."""

    distribution: Any

    def finalize_options(self) -> None:
        _mark_as_binary(self.distribution)
        super().finalize_options()  # type: ignore[misc]


def _tag_with_ops(command: Any, default: Tag) -> Tag:
    """Returns the tag of a wheel with ops. `default` is that of `command` without them. Raises OptionError."""
    # An editable install has no ops: what the build folder has is an earlier wheel's.
    is_editable = "editable_wheel" in command.distribution.command_obj
    ops = None if is_editable else _built_tag(command.get_finalized_command("build_ops"))
    if ops is None:
        return default
    if command.plat_name_supplied:
        ops = ops._replace(platform=default.platform, reason="")
    if ops.reason:
        advice = "opforge repair-wheel WHEEL copies such a library into it"
        command.warn(f"opforge: the wheel is for systems like this one only: {ops.reason}; {advice}")
    try:
        return combined(default, ops) if command.distribution.has_ext_modules.own else ops
    except ValueError as error:
        raise OptionError(f"opforge: the project's own libraries: {error}") from error


def _built_tag(build_ops: Any) -> Tag | None:
    """Returns the tag for the ops that were built, or None if there are none. Raises OptionError."""
    binaries = [binary for layer in build_ops.layers() for binary in records_of(layer)]
    try:
        return wheel_tag(binaries) if binaries else None
    except ValueError as error:
        raise OptionError(f"opforge: {error}") from error


def from_table(table: object, distribution: Any) -> dict[str, type[Command]]:
    """Returns the commands for a project with this table [tool.opforge] in pyproject.toml. Raises OptionError."""
    if problem := unknown_keys(table):
        raise OptionError(f"opforge: {problem}; {EXPECTED}")
    assert isinstance(table, dict)
    if table.get("variants"):
        advice = f'build-backend = "opforge.backend" and {BACKEND} = "setuptools.build_meta"'
        raise OptionError(f"opforge: setuptools returns one wheel, and variants are several: {advice}")
    bases = {name: distribution.get_command_class(name) for name in ("build", "bdist_wheel")}
    named = {name: value for name, value in table.items() if name != "variants"}
    return commands(**{"ops": (), **named}, bases=bases)


def default_targets() -> tuple[str, ...]:
    """Returns the targets that are built for if none is named. Raises OptionError on a machine without a default."""
    try:
        return project_ops.default_targets()
    except ValueError as error:
        raise OptionError(f"opforge: {error}") from error


class _HasLibraries:
    """Says that a project has libraries: its ops, and if `own` is true extension modules too."""

    def __init__(self, own: bool) -> None:
        self.own = own

    def __call__(self) -> bool:
        return True


def _mark_as_binary(distribution: Any) -> None:
    """Makes setuptools install the package where libraries belong, and mark the wheel as not pure."""
    if not isinstance(distribution.has_ext_modules, _HasLibraries):
        distribution.has_ext_modules = _HasLibraries(bool(distribution.has_ext_modules()))


def _files(folder: str) -> Iterator[str]:
    for parent, _folders, names in os.walk(folder):
        yield from (os.path.join(parent, name) for name in sorted(names))
