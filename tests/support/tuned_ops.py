"""Small ops with something to tune, and tuning results for them."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import pytest
from support import sample_ops
from support.store.fake_store import ME
from support.text_files import write

from opforge.builders.declaration.description import description_key
from opforge.builders.lookup import tuned
from opforge.builders.lookup import tuning_results as records
from opforge.cache import current_store, layer
from opforge.foundation.remembered_values import RACY_NS

SOURCE = f"""\
#include <opforge/tunable.h>
static opforge::Tunables<2> tunables({{{{"block", 256}}, {{"threads", 0}}}});
OPFORGE_TUNABLES(tunables)
{sample_ops.EXPORT} long block(long dtype, long size) {{ return tunables.of(dtype, size)[0]; }}
{sample_ops.EXPORT} long threads(long dtype, long size) {{ return tunables.of(dtype, size)[1]; }}
"""
TUNABLE = {"block": (128, 256, 512), "threads": (0, 1)}
FLOAT32, FLOAT16 = 6, 5


def tuned_op(folder: Any, name: str = "", source: str = SOURCE, **attributes: Any) -> Any:
    """Writes a plain C op that returns what it was set, and returns its builder class."""
    name = name or sample_ops.unique_name("tuned")
    os.makedirs(folder, exist_ok=True)
    write(folder, f"{name}.cpp", source)
    return sample_ops.builder_class(folder, name, **{"abi": "c", "tunable": TUNABLE, **attributes})


def layer_with_op(folder: Any, name: str = "") -> tuple[str, Any]:
    """Returns a layer with such an op, and its builder class. No machine that has the layer builds it."""
    path, op_class = os.path.join(folder, "layer"), tuned_op(os.path.join(folder, "op"), name)
    if not os.path.isdir(path):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OPFORGE_CACHE_DIR", os.path.join(folder, "store"))
            patch.delenv("OPFORGE_REMOTES", raising=False)
            current_store.reset()
            layer.add(path, op_class().build(), description_key(op_class().spec()), ME)
            current_store.reset()
    return path, op_class


def row(config: dict[str, int], size: int = 1000, dtype: str = "float32", **fields: Any) -> dict[str, Any]:
    """Returns a row of a result: a config that is faster, or the default."""
    faster = {"ratio": 0.8, "low": 0.75, "high": 0.85} if config else {"ratio": 1.0, "low": 1.0, "high": 1.0}
    others = {"rounds": 15, "why": "", "others": []}
    return {"what": "", "dtype": dtype, "size": size, "config": config, **faster, **others, **fields}


def result(entry: Any, *rows: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Returns a result for an entry on this machine."""
    what = tuned.wanted(entry.record["op"], entry)
    value = {"format": 1, "op": what.op, "kernel": what.description, "target": what.target, "cores": what.cores}
    return {**value, "rows": list(rows), **fields}


def store(root: Any, value: dict[str, Any]) -> str:
    """Writes a result into a store, as `opforge tune` does."""
    return records.write(str(root), value)


def write_raw(root: Any, entry: Any, data: bytes) -> str:
    """Writes any bytes in the place of a result, and returns the path."""
    path = tuned.wanted(entry.record["op"], entry).path(str(root))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)
    return path


def text(value: dict[str, Any]) -> bytes:
    """Returns a result's file without its checks."""
    return json.dumps(value).encode()


def wait_until_remembered() -> None:
    """Waits until a file that was just written may be remembered."""
    time.sleep(RACY_NS / 1e9 + 0.1)
