"""Statements about entries of ops, as tests make them."""

from __future__ import annotations

from opforge.remote.op_statements import OP
from opforge.remote.statements import Statement


def statement(record, description, tree):
    """Returns what a publisher says of an entry."""
    return Statement(OP.name, description, (tree,), {"record": dict(record)})
