"""The content-addressed store: keyed, locked, verified, bounded. It takes names and bytes, and knows no op."""

from __future__ import annotations
