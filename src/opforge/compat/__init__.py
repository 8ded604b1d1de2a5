"""Runs code that was written for DeepSpeed or for torch's C++ extensions on opforge. Each part has an `install()`."""

from __future__ import annotations
