"""The content-addressed store of built libraries. It takes keys, paths and bytes, and does not depend on ops."""

from __future__ import annotations
