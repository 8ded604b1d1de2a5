"""Remotes: static trees of built ops on any store, from which other machines fetch ops instead of building them."""

from __future__ import annotations
