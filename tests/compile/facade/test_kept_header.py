"""The facade's precompiled header in an edit loop: made once, kept in the store, compared before it is used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from support import sample_ops

import opforge
from opforge.builders.run import object_reuse, precompiled_header
from opforge.errors import CompileError

SOURCE = """\
#include <torch/extension.h>
torch::Tensor scaled(torch::Tensor x) { return x * FACTOR; }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("scaled", &scaled); }
"""


def _load(name: str, folder: Path, factor: str, text: str = SOURCE) -> float:
    """Builds a source. Returns what its function gives for one."""
    folder.mkdir(exist_ok=True)
    source = folder / "op.cpp"
    source.write_text(text.replace("FACTOR", factor))
    op = opforge.load(name, [source], abi="torch-facade", extra_cflags=["-O0"])
    return op.scaled(torch.ones(1)).item()


def _kept(store: Path) -> list[Path]:
    return [path for path in (store / "v2" / "objects").glob("*/*.o") if path.stat().st_size > 20 << 20]


@pytest.mark.long("makes a precompiled header twice, and compiles six times")
def test_an_edit_makes_a_header_that_the_next_edits_and_other_ops_use(tmp_path, monkeypatch):
    store, made, taken = tmp_path / "store", [], []
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(store))
    take, keep, using = object_reuse.take_header, object_reuse.keep, precompiled_header._using

    def strictly_using(*arguments):  # gcc would compile without a header that it cannot use, and say nothing
        step = using(*arguments)
        return step._replace(argv=(step.argv[0], "-Winvalid-pch", "-Werror=invalid-pch", *step.argv[1:]))

    def recording_take(*arguments):
        taken.append(take(*arguments) is not None)
        return take(*arguments) if taken[-1] else None

    def recording_keep(job, work, steps, reused, reads, inputs, header):
        made.append(bool(header) and header[0].output not in reused)
        keep(job, work, steps, reused, reads, inputs, header)

    monkeypatch.setattr(precompiled_header, "_using", strictly_using)
    monkeypatch.setattr(object_reuse, "take_header", recording_take)
    monkeypatch.setattr(object_reuse, "keep", recording_keep)
    name = sample_ops.unique_name("facade")  # its folder holds the source alone, not the store and the caches
    assert _load(name, tmp_path / "one", "2") == 2 and (taken, made) == ([False], [False])
    assert _load(name, tmp_path / "one", "3") == 3 and (taken, made) == ([False, False], [False, True])
    (header,) = _kept(store)
    assert _load(name, tmp_path / "one", "4") == 4 and (taken[2:], made[2:]) == ([True], [False])
    with pytest.raises(CompileError, match='poisoned "TORCH_VERSION"'):
        _load(name, tmp_path / "one", "5", f"{SOURCE}\n#ifdef TORCH_VERSION\n#endif\n")
    other = sample_ops.unique_name("facade")
    assert _load(other, tmp_path / "other", "6") == 6 and (taken[4:], made[3:]) == ([True], [False])
    os.chmod(header, 0o600)
    with header.open("r+b") as file:  # of a damaged one nothing is used
        file.write(b"damaged")
    assert _load(name, tmp_path / "one", "7") == 7 and (taken[5:], made[4:]) == ([False], [True])
    assert len(_kept(store)) == 1
