"""Stores of named bytes: a folder, an HTTP(S) server, S3 and its kin. `open_store` returns the store of a URL."""

from __future__ import annotations
