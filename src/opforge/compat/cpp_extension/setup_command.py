"""`BuildExtension` for setup scripts: torch's command, whose C++ extensions come out of opforge's store."""

from __future__ import annotations

import logging
import os
import shutil
from typing import Any

from opforge.errors import BuildError, LockTimeoutError

from .extension_builder import builder_of, refusal
from .jit import REFUSALS

log = logging.getLogger("opforge")


def command_on_opforge(theirs: Any) -> Any:
    """Give the subclass of torch's BuildExtension that asks opforge first; what opforge refuses is built as before."""
    if getattr(theirs, "on_opforge", False):
        return theirs

    def build_extension(self: Any, ext: Any) -> None:
        """Find or build the extension, and put it where the command wants it."""
        try:
            reason = refusal(ext)
            entry = None if reason else builder_of(ext, self).build()
        except REFUSALS as error:
            entry, reason = None, str(error)
        except (BuildError, LockTimeoutError) as error:
            from setuptools.errors import CompileError

            # What setuptools expects of a build that failed: the message without a traceback, and `optional` heeded.
            raise CompileError(str(error)) from error
        if entry is None:
            log.warning("%s is left to torch's BuildExtension: %s", ext.name, reason)
            theirs.build_extension(self, ext)
            return
        path = self.get_ext_fullpath(ext.name)
        log.info("%s: %s, %s", ext.name, entry.origin, entry.library)
        _put(entry.library, path)

    members = {"build_extension": build_extension, "on_opforge": True, "__doc__": theirs.__doc__}
    return type("BuildExtension", (theirs,), members)


def _put(library: str, path: str) -> None:
    """Copy a library by one rename: a process that has the old file loaded keeps it."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    staged = f"{path}.{os.getpid()}"
    os.close(os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o777))  # less the umask, as a linker's output
    shutil.copyfile(library, staged)
    os.replace(staged, path)
