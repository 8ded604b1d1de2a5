"""Runs code that was written for DeepSpeed, torch's C++ extensions or the hub's loader. Each has an `install()`."""

from __future__ import annotations
