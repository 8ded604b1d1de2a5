"""What a shipped entry adds to its library: a small record, which grows by little with each header of the op."""

from __future__ import annotations

import os

import pytest
from support import sample_ops, text_files

from opforge.accelerator.registry import make_accelerator
from opforge.builders.cpu import BUILDERS
from opforge.builders.declaration.description import description_key
from opforge.cache import layer

pytestmark = pytest.mark.compile
MAX_BYTES = 16 << 10
"""A third of it are names of precompiled headers that a compiler would take in place of the op's own headers."""
BYTES_PER_HEADER = 180
OPS = sorted(set(BUILDERS) - {"CCLCommBuilder"})  # it needs oneCCL


def shipped_bytes(builder, folder):
    """Returns the bytes that a layer's entry takes besides its library."""
    added = layer.add(str(folder), builder.build(), description_key(builder.spec()), {os.geteuid()})
    return sum(entry.stat().st_size for entry in os.scandir(added.folder) if entry.path != added.library)


@pytest.mark.parametrize("name", OPS)
def test_our_own_ops_ship_a_small_record(name, tmp_path, builds_are_shared):
    builder = make_accelerator("cpu", "test").create_op_builder(name)
    assert shipped_bytes(builder, tmp_path / "layer") <= MAX_BYTES


def test_each_further_header_of_the_op_adds_little(tmp_path):
    sizes = []
    for count in (1, 21):
        folder = tmp_path / f"op{count}"
        names = [f"header{number:02}.h" for number in range(count)]
        source = "".join(f'#include "{name}"\n' for name in names)
        cls = sample_ops.plain_op(folder, source=f"{source}{sample_ops.EXPORT} int value() {{ return 1; }}\n")
        for name in names:
            text_files.write(folder, name, "#include <cstddef>\n")
        sizes.append(shipped_bytes(cls(), tmp_path / f"layer{count}"))
    assert (sizes[1] - sizes[0]) / 20 <= BYTES_PER_HEADER
