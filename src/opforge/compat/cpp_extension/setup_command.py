"""`BuildExtension` for setup scripts: torch's command, which takes C++ and CUDA extensions from opforge's store."""

from __future__ import annotations

import logging
import os
import shutil
from typing import Any

from opforge.cache.current_store import only_if_kept
from opforge.errors import BuildError, LockTimeoutError

from .extension_builder import builder_for, error_text, extension_problem
from .jit import FALLBACK_ERRORS, log_fallback

log = logging.getLogger("opforge")


def command_on_opforge(command: Any, torchs: Any) -> Any:
    """Returns a project's `build_ext` on opforge, with torch's for what opforge cannot build.

    Args:
        command: `torchs`, or a project's subclass of it.
        torchs: torch's BuildExtension.
    """
    if getattr(command, "on_opforge", False):
        return command

    class BuildExtension(NamesOwnWays, torchs):  # type: ignore[misc]  # a class that is known at run time alone
        __doc__ = torchs.__doc__
        on_opforge = True

        def build_extension(self, ext: Any) -> None:
            """Finds or builds the extension, and copies it to the place that the command expects."""
            seen(self).add(ext.name)
            try:
                problem = extension_problem(ext)
                with only_if_kept():
                    entry = None if problem else builder_for(ext, self).build()
            except FALLBACK_ERRORS as error:
                log_fallback(ext.name, "torch's BuildExtension", error)
                super().build_extension(ext)
                return
            except (BuildError, LockTimeoutError) as error:
                from setuptools.errors import CompileError

                # setuptools prints this error without a traceback, and ignores it for an extension that is `optional`.
                raise CompileError(error_text(ext, error)) from error
            if entry is None:
                log.warning("%s is left to torch's BuildExtension: %s", ext.name, problem)
                super().build_extension(ext)
                return
            path = self.get_ext_fullpath(ext.name)
            log.info("%s: %s, %s", ext.name, entry.origin, entry.library)
            copy_library(entry.library, path)

    return below(command, torchs, BuildExtension)


def below(command: Any, torchs: Any, ours: Any) -> Any:
    """Returns a project's command whose `super()` is opforge's subclass of torch's command.

    The project's own methods are called first: many change an extension, or catch an error, and leave the rest to
    torch's. opforge builds only what comes to it in this way.
    """
    if command is torchs:
        return ours
    return type(command.__name__, (command, ours), {"__doc__": command.__doc__})


class NamesOwnWays:
    """The part of opforge's subclasses of torch's command that says what they have not built."""

    def run(self) -> None:
        """Builds all extensions. Logs a warning for each that links with torch and that did not come to opforge."""
        command: Any = self
        super().run()  # type: ignore[misc]  # torch's command is the next class
        for ext in command.extensions or ():
            if "torch" in ext.libraries and ext.name not in seen(command):
                log.warning("%s is not built by opforge: %s builds it in its own way", ext.name, type(self).__name__)


def seen(command: Any) -> set[str]:
    """Returns the names of the extensions that came to opforge."""
    names: set[str] = command.__dict__.setdefault("seen_by_opforge", set())
    return names


def copy_library(library: str, path: str) -> None:
    """Copies a library by one rename, so that a process which has loaded the old file keeps it."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = f"{path}.{os.getpid()}"
    # Mode 777 less the umask, as a linker creates it; copyfile keeps the mode of an existing file.
    os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o777))
    shutil.copyfile(library, temporary)
    os.replace(temporary, path)
