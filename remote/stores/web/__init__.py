"""An HTTP(S) server as a store, by the standard library alone."""

from __future__ import annotations
