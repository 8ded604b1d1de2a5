"""A setup script's commands on the facade: one wheel for every torch and Python, which needs no opforge.

Each extension that links with torch is compiled on the facade's headers, through opforge's store. None is built on
torch's headers instead: a wheel's tag, what it needs and how its functions are called do not depend on one compile.
"""

from __future__ import annotations

import logging
import os
from typing import Any, ClassVar

from opforge.builders.facade.flags import OLDEST_PYTHON
from opforge.builders.wheel_tag import wheel_tag
from opforge.cache.current_store import only_if_kept
from opforge.errors import BuildError, LockTimeoutError, OpforgeError
from opforge.fast_path.library import OLDEST_TORCH

from .extension_builder import error_text, extension_problem, facade_builder_for
from .setup_command import NamesOwnWays, below, copy_library, seen

log = logging.getLogger("opforge")
REQUIRED_PYTHON = f">={OLDEST_PYTHON}"
REQUIRED = f"torch>={OLDEST_TORCH}"
"""The requirement in a wheel's metadata: a facade library runs with this torch and all newer ones."""


def commands_on_facade(distribution: Any, torchs: Any) -> dict[str, Any]:
    """Returns the commands of a project whose extensions are built on the facade.

    Args:
        distribution: The project, whose `build_ext` is `torchs` or a subclass of it.
        torchs: torch's BuildExtension.
    """
    command = distribution.get_command_class("build_ext")
    if getattr(command, "on_facade", False):  # setuptools may call the hook again
        return {}
    return {
        "build_ext": below(command, torchs, _build_ext(torchs)),
        "bdist_wheel": _bdist_wheel(distribution.get_command_class("bdist_wheel")),
        "egg_info": _egg_info(distribution.get_command_class("egg_info")),
    }


def _build_ext(torchs: Any) -> Any:
    """Returns a subclass of torch's BuildExtension that compiles what links with torch on the facade."""

    class BuildExtension(NamesOwnWays, torchs):  # type: ignore[misc]  # a class that is known at run time alone
        __doc__ = torchs.__doc__
        on_opforge = on_facade = True
        records: ClassVar[dict[str, Any]] = {}
        """The name of each extension that was built on the facade, and the record of its library."""

        def build_extension(self, ext: Any) -> None:
            """Builds one extension, and copies it to the place that the command expects. Raises CompileError."""
            from setuptools import errors

            seen(self).add(ext.name)
            if not _of_torch(ext):
                log.warning("%s does not link with torch: it is built by setuptools, for this Python alone", ext.name)
                super().build_extension(ext)
                return
            if problem := extension_problem(ext):
                raise errors.CompileError(f"{ext.name} cannot be built on the facade: {problem}")
            try:
                with only_if_kept():
                    entry = facade_builder_for(ext, self).build()
            except (BuildError, LockTimeoutError, OpforgeError) as error:
                raise errors.CompileError(error_text(ext, error)) from error
            self.records[ext.name] = entry.record
            path = self.get_ext_fullpath(ext.name)
            log.info("%s: %s, %s", ext.name, entry.origin, entry.library)
            copy_library(entry.library, path)

        def get_ext_filename(self, fullname: str) -> str:
            """Returns a file name that every Python looks for, unless the project asks for a plain one."""
            name: str = super().get_ext_filename(fullname)
            ext = self.ext_map.get(fullname)
            if ext is None or not _of_torch(ext) or self.no_python_abi_suffix:
                return name
            folder, _, file = name.rpartition(os.sep)
            return os.path.join(folder, f"{file.partition('.')[0]}.abi3.so")

    return BuildExtension


def _bdist_wheel(base: Any) -> Any:
    """Returns a subclass of a project's `bdist_wheel` whose tag is that of its libraries."""

    class WheelOnFacade(base):  # type: ignore[misc]
        __doc__ = base.__doc__

        def get_tag(self) -> tuple[str, str, str]:
            """Returns the tag: for any Python if every extension was built on the facade."""
            default: tuple[str, str, str] = super().get_tag()
            command = self.distribution.get_command_obj("build_ext")
            extensions = self.distribution.ext_modules or ()
            is_built = all(ext.name in command.records for ext in extensions if not ext.optional)
            if not extensions or not is_built or not all(map(_of_torch, extensions)):
                return default
            tag = wheel_tag(list(command.records.values()))
            if tag.reason:
                log.warning("the wheel is for systems like this one only: %s", tag.reason)
            return tag.python, tag.abi, default[2] if self.plat_name_supplied else tag.platform

    return WheelOnFacade


def _egg_info(base: Any) -> Any:
    """Returns a subclass of `egg_info`, which every build's metadata comes from: it adds what is oldest."""
    from packaging.specifiers import SpecifierSet

    class InfoOnFacade(base):  # type: ignore[misc]
        __doc__ = base.__doc__

        def run(self) -> None:
            """Adds the requirements of the libraries, and writes the metadata."""
            required = list(self.distribution.install_requires or ())
            if REQUIRED not in required:
                self.distribution.install_requires = [*required, REQUIRED]
                self.distribution.metadata.install_requires = self.distribution.install_requires
            given = str(self.distribution.python_requires or "")
            if REQUIRED_PYTHON not in given.replace(" ", "").split(","):
                both = SpecifierSet(",".join(filter(None, (given, REQUIRED_PYTHON))))
                self.distribution.python_requires = self.distribution.metadata.python_requires = both
            super().run()

    return InfoOnFacade


def _of_torch(ext: Any) -> bool:
    return "torch" in ext.libraries
