"""`BuildExtension` for setup scripts: torch's command, which takes C++ and CUDA extensions from opforge's store."""

from __future__ import annotations

import logging
import os
import shutil
from typing import Any

from opforge.cache.current import only_if_kept
from opforge.errors import BuildError, LockTimeoutError

from .extension_builder import builder_for, extension_problem
from .jit import FALLBACK_ERRORS, log_fallback

log = logging.getLogger("opforge")


def command_on_opforge(command: Any) -> Any:
    """Returns a subclass of torch's BuildExtension that uses opforge, and torch for what opforge cannot build."""
    if getattr(command, "on_opforge", False):
        return command

    def build_extension(self: Any, ext: Any) -> None:
        """Finds or builds the extension, and copies it to the place that the command expects."""
        try:
            problem = extension_problem(ext)
            with only_if_kept():
                entry = None if problem else builder_for(ext, self).build()
        except FALLBACK_ERRORS as error:
            log_fallback(ext.name, "torch's BuildExtension", error)
            command.build_extension(self, ext)
            return
        except (BuildError, LockTimeoutError) as error:
            from setuptools.errors import CompileError

            # setuptools prints this error without a traceback, and ignores it for an extension that is `optional`.
            raise CompileError(str(error)) from error
        if entry is None:
            log.warning("%s is left to torch's BuildExtension: %s", ext.name, problem)
            command.build_extension(self, ext)
            return
        path = self.get_ext_fullpath(ext.name)
        log.info("%s: %s, %s", ext.name, entry.origin, entry.library)
        copy_library(entry.library, path)

    members = {"build_extension": build_extension, "on_opforge": True, "__doc__": command.__doc__}
    return type("BuildExtension", (command,), members)


def copy_library(library: str, path: str) -> None:
    """Copies a library by one rename, so that a process which has loaded the old file keeps it."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = f"{path}.{os.getpid()}"
    # Mode 777 less the umask, as a linker creates it; copyfile keeps the mode of an existing file.
    os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o777))
    shutil.copyfile(library, temporary)
    os.replace(temporary, path)
