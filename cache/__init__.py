"""The content-addressed store of built libraries. It takes keys, paths and bytes, and knows nothing of ops."""

from __future__ import annotations
