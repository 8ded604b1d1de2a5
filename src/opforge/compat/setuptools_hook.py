"""The hook that setuptools calls for every project built in an environment with opforge, so it must be fast."""

from __future__ import annotations

import logging
import sys
from typing import Any

from opforge.foundation import settings

FACADE = "torch-facade"
"""The value of OPFORGE_CPP_EXTENSION that builds on the facade."""


def finalize(distribution: Any) -> None:
    """Makes a project's BuildExtension use opforge if OPFORGE_CPP_EXTENSION asks for it, in any process that builds.

    A project whose command builds extensions in its own way keeps that command, and a warning is logged.
    """
    torch_extension = sys.modules.get("torch.utils.cpp_extension")
    chosen = settings.cpp_extension() if torch_extension is not None else ""
    if torch_extension is None or not chosen:
        return
    command: Any = distribution.cmdclass.get("build_ext")
    is_torchs = isinstance(command, type) and issubclass(command, torch_extension.BuildExtension)
    if not is_torchs:
        return
    from .cpp_extension.setup_command import command_on_opforge

    wrapped = command_on_opforge(command)
    if wrapped is not command and command.build_extension is not torch_extension.BuildExtension.build_extension:
        logging.getLogger("opforge").warning("%s builds its extensions in its own way", command.__qualname__)
        return
    distribution.cmdclass["build_ext"] = wrapped
    if chosen == FACADE:
        from .cpp_extension.facade_commands import commands_on_facade

        distribution.cmdclass |= commands_on_facade(distribution)
