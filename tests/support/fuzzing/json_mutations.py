"""Damages JSON records: other values, other types, lost and added fields, text that is no JSON."""

from __future__ import annotations

import json

VALUES = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 2**70, 10**400, 1.5, 1e308, float("inf"), float("nan")),
    *(
        "",
        ".",
        "..",
        "/",
        "../..",
        "a/../b",
        "x\0y",
        "\ud800",
        "\udcff",
        "\x1b[2J",
        "a" * 5000,
        "/dev/zero",
        "/dev/full",
    ),
    *([], {}, [[]], [None], [1, 2, 3], ["a", "b", "c", "d", "e", "f"], {"a": 1}, {"": {}}),
)
TEXTS = (b"", b"{", b"[]", b"null", b"3", b'"text"', b"[" * 100_000, b'{"a":' * 50_000, b"\0\xff", b"9" * 5000, b"NaN")


def parts(value, steps=()):
    """Yields the path of every part of a JSON value: the keys and indices that lead to it."""
    yield steps
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in pairs:
        yield from parts(part, (*steps, key))


def mutated_value(value, chance):
    """Returns a copy of a value with one part changed."""
    copy = json.loads(json.dumps(value))
    steps = chance.choice(list(parts(copy)))
    if not steps:
        return chance.choice(VALUES)
    holder = copy
    for step in steps[:-1]:
        holder = holder[step]
    last = steps[-1]
    action = chance.randrange(6)
    if action == 0:
        del holder[last]
    elif action == 1:  # another part of the record in this one's place
        other = value
        for step in chance.choice(list(parts(value))):
            other = other[step]
        holder[last] = other
    elif action == 2 and isinstance(holder[last], str) and holder[last]:
        text, at = holder[last], chance.randrange(len(holder[last]))
        holder[last] = text[:at] + chance.choice(("", "/", "\0", "..", "0", "\ud800")) + text[at + 1 :]
    elif action == 3 and isinstance(holder, list):
        holder.insert(last, chance.choice(VALUES))
    else:
        holder[last] = chance.choice(VALUES)
    return copy


def mutated(content, chance):
    """Returns the damaged content of a file that holds a JSON value, or one on each line."""
    if chance.random() < 0.05:
        return chance.choice(TEXTS)
    lines = content.splitlines() or [b"{}"]
    number = chance.randrange(len(lines))
    try:
        value = json.loads(lines[number])
    except ValueError:
        return content[: chance.randrange(len(content) + 1)]
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        value = mutated_value(value, chance) if isinstance(value, (dict, list)) else chance.choice(VALUES)
    lines[number] = json.dumps(value).encode()
    return b"\n".join(lines) + b"\n"
