"""What setuptools calls for every project that is built where opforge is installed: it has to be quick and sure."""

from __future__ import annotations

import logging
import sys
from typing import Any

from opforge import settings


def finalize(distribution: Any) -> None:
    """Under OPFORGE_CPP_EXTENSION=1, put opforge beneath a project's BuildExtension, in whatever process it is built.

    A project that has its own way to build an extension keeps it, which is logged.
    """
    torch = sys.modules.get("torch.utils.cpp_extension")
    if torch is None or not settings.cpp_extension():
        return
    given = distribution.cmdclass.get("build_ext")
    if not (isinstance(given, type) and issubclass(given, torch.BuildExtension)):
        return
    command: Any = given
    from .cpp_extension.setup_command import command_on_opforge

    wrapped = command_on_opforge(command)
    if wrapped is not command and command.build_extension is not torch.BuildExtension.build_extension:
        logging.getLogger("opforge").warning("%s builds its extensions in its own way", command.__qualname__)
        return
    distribution.cmdclass["build_ext"] = wrapped
