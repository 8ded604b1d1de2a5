"""Which commands are for which kinds: the table that commands, completion and the documentation read."""

from __future__ import annotations

from collections.abc import Mapping

from opforge.remote.kind_table import KINDS, scope_of

PLAIN = ("op", "package")
"""The kinds whose names need no kind before them. Commands list and remove them in their own ways."""
FILES = ("program",)
"""The kinds that are files of their own: they lie in no store."""
OTHERS = tuple(kind for kind in KINDS if kind not in (*PLAIN, *FILES))
"""The kinds that lie in stores, and are named by KIND:NAME alone."""
FORMS = "|".join(map(scope_of, OTHERS))
"""The names of these, for the help of commands."""
_OF_A_FILE = {"program": "it is a file of its own"}
_PINNED = {"op": "", **_OF_A_FILE, "": "only entries of ops are pinned"}
WITHOUT_MEANING: Mapping[str, Mapping[str, str]] = {
    "ls": _OF_A_FILE,
    "rm": _OF_A_FILE,
    "verify": _OF_A_FILE,
    "gc": {"package": "opforge rm removes it", "tuned": "it is too small to count", **_OF_A_FILE},
    "publish": {**_OF_A_FILE, "program": "opforge.save_program signs it"},
    "fetch": {"op": "", "package": "opforge install brings it", **_OF_A_FILE, "": "its first use brings it"},
    "cache pin": _PINNED,
    "cache unpin": _PINNED,
    "cache explain": {
        "op": "",
        "jit": "",
        "tuned": "of an op with tunable values, opforge cache explain OP shows which are used",
        "package": "opforge install says why a release does not fit",
        **_OF_A_FILE,
        "": "it has no inputs to compare",
    },
    "ls URL": _OF_A_FILE,
    "verify URL": _OF_A_FILE,
    "gc URL": _OF_A_FILE,
    "mirror": _OF_A_FILE,
    "withdraw": {"program": "its key can be revoked: opforge key revoke"},
    "key trust --for": {},
}
"""Verb -> kind -> why the verb has no meaning for it; "" stands for all others. A kind that is not there has one."""
WITHOUT_NAMES: Mapping[str, str] = {
    "gc": "its limits are for the whole cache, and opforge rm removes what is named",
    "verify URL": "a store is checked as a whole",
    "gc URL": "it removes what nothing in the store names",
}
"""Verb -> why it takes no names. All others take them."""


def without_meaning(verb: str, kind: str) -> str:
    """Returns why a verb has no meaning for a kind; empty if it has one."""
    of_verb = WITHOUT_MEANING[verb]
    return of_verb.get(kind, of_verb.get("", ""))
