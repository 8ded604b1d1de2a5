"""Remotes: static trees of built ops on any store, from which other machines fetch what they would build."""

from __future__ import annotations
