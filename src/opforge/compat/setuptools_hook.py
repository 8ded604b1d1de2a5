"""The hook that setuptools calls for every project built in an environment with opforge, so it must be fast."""

from __future__ import annotations

import sys
from typing import Any

from opforge.foundation import settings

FACADE = "torch-facade"
"""The value of OPFORGE_CPP_EXTENSION that builds on the facade."""


def finalize(distribution: Any) -> None:
    """Makes a project's BuildExtension use opforge if OPFORGE_CPP_EXTENSION asks for it, in any process that builds.

    A project's own subclass of it stays, with its methods: what they pass to `super()` comes to opforge.
    """
    torch_extension = sys.modules.get("torch.utils.cpp_extension")
    chosen = settings.cpp_extension() if torch_extension is not None else ""
    if torch_extension is None or not chosen:
        return
    command: Any = distribution.cmdclass.get("build_ext")
    torchs: Any = torch_extension.BuildExtension
    if not (isinstance(command, type) and issubclass(command, torchs)):
        return
    if chosen == FACADE:
        from .cpp_extension.facade_commands import commands_on_facade

        distribution.cmdclass |= commands_on_facade(distribution, torchs)
        return
    from .cpp_extension.setup_command import command_on_opforge

    distribution.cmdclass["build_ext"] = command_on_opforge(command, torchs)
