"""A folder as a store, also on NFS without locks."""

from __future__ import annotations
