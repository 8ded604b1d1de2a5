"""Opforge beneath code that was written for others: DeepSpeed, and torch's C++ extensions. Each has an `install()`."""

from __future__ import annotations
