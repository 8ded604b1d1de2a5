"""Installs `opforge.compat.deepspeed` when DeepSpeed is imported, as OPFORGE_DEEPSPEED requests it."""

from __future__ import annotations

import sys
from types import ModuleType

from opforge.foundation import settings
from opforge.foundation.after_import import call_after_import

BUILDERS = "deepspeed.ops.op_builder"
"""The part of DeepSpeed after whose import it is changed: the parts that take builders from it are imported later."""


def install_after_import() -> None:
    """Arranges that DeepSpeed is put on opforge when it is imported, or does it now if it is imported already."""
    if BUILDERS in sys.modules:
        _install()
    else:
        call_after_import((BUILDERS,), _install_after)


def _install_after(_builders: ModuleType) -> None:
    _install()


def _install() -> None:
    """Calls `install` with the builders that the variable names. Raises SettingError for one that there is not."""
    requested = settings.deepspeed()
    if requested is None:
        return
    from opforge.errors import BuilderError, SettingError

    from .deepspeed import install
    from .deepspeed.builders import DROP_IN

    try:
        install(requested or DROP_IN)
    except BuilderError as error:
        raise SettingError(
            settings.deepspeed.variable, ",".join(requested), f"names of builders. {error.advice}"
        ) from error
