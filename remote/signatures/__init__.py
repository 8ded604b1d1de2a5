"""Keys, signatures, and whose signatures are accepted."""

from __future__ import annotations
