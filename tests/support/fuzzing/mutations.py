"""Damages the bytes of a file in the ways that disks, transfers and attackers do, reproducibly."""

from __future__ import annotations

NUMBERS = (0, 1, 2, 3, 0x7F, 0xFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
"""Lengths, offsets and counts at which parsers fail."""


def truncated(content, chance):
    return content[: chance.randrange(len(content))]


def with_changed_bytes(content, chance):
    changed = bytearray(content)
    for _ in range(chance.randrange(1, 9)):
        changed[chance.randrange(len(changed))] = chance.randrange(256)
    return bytes(changed)


def with_flipped_bits(content, chance):
    changed = bytearray(content)
    for _ in range(chance.randrange(1, 4)):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def with_a_number(content, chance):
    """Returns an aligned field of 2, 4 or 8 bytes that holds an extreme number, or a position in the file (a loop)."""
    size = chance.choice((2, 4, 8))
    at = chance.randrange(len(content)) // size * size
    number = chance.choice((*NUMBERS, at, chance.randrange(len(content)), len(content), len(content) - 1))
    return content[:at] + (number % 256**size).to_bytes(size, "little") + content[at + size :]


def with_zeros(content, chance):
    at, size = chance.randrange(len(content)), chance.choice((4, 64, 512, 4096))
    return content[:at] + b"\0" * len(content[at : at + size]) + content[at + size :]


def with_a_copied_range(content, chance):
    """Returns a range that was written over another one, as a field or a header that refers to something else."""
    source, at, size = chance.randrange(len(content)), chance.randrange(len(content)), chance.choice((8, 24, 64))
    return content[:at] + content[source : source + size] + content[at + size :]


def with_a_hole(content, chance):
    at = chance.randrange(len(content))
    return content[:at] + content[at + chance.choice((1, 8, 512)) :]


def at_the_head(content, chance):
    """Returns damage in the first bytes, which say where everything else is."""
    return with_a_number(content[:128], chance) + content[128:]


KINDS = (
    truncated,
    with_changed_bytes,
    with_flipped_bits,
    with_a_number,
    with_zeros,
    with_a_copied_range,
    with_a_hole,
    at_the_head,
)


def mutants(content, chance, count):
    """Yields damaged contents: each kind of damage in turn, now and then two of them."""
    for number in range(count):
        mutant = KINDS[number % len(KINDS)](content, chance)
        if mutant and chance.random() < 0.25:
            mutant = chance.choice(KINDS)(mutant, chance)
        yield mutant
