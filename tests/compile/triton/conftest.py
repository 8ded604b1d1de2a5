"""Triton decides at its first import whether its own functions are interpreted: the tests of this folder need that."""

from __future__ import annotations

from support.gpu import triton_interpreter  # noqa: F401 - before a test imports Triton
