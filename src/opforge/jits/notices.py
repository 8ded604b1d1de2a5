"""Warnings that all ranks of a job on a machine share: only one rank prints them."""

from __future__ import annotations

import logging
import os

log = logging.getLogger("opforge")
LOCAL_RANK = "LOCAL_RANK"
"""The variable by which launchers tell the processes of a job on a machine apart, from 0 on."""


def warn(text: str, *values: object) -> None:
    """Logs a warning; in a process that is not the first of its job on this machine, as information."""
    level = logging.WARNING if os.environ.get(LOCAL_RANK, "") in ("", "0") else logging.INFO
    log.log(level, text, *values)
