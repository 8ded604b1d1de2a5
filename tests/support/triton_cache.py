"""What Triton would leave in a store, without Triton: a kernel, and timings of its autotuner."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any

from opforge.cache.layout import Layout
from opforge.cache.records import triton

KEY, TIMED_KEY = "A" * 52, "B" * 52
FACTS = {"triton": "3.7.1", "target": "cuda:90"}
TARGET = {"backend": "cuda", "arch": 90, "warp_size": 32}


def kernel(root: Any, name: str = "copy", key: str = KEY, cubin: bytes = b"code") -> str:
    """Writes a finished kernel into a store; returns its folder."""
    metadata = json.dumps({"target": TARGET, "triton_version": FACTS["triton"]}).encode()
    return put(root, key, name, {f"{name}.cubin": cubin, f"{name}.json": metadata})


def timings(root: Any, name: str = "copy", key: str = TIMED_KEY) -> str:
    """Writes finished timings into a store; returns their folder."""
    return put(root, key, name, {f"{name}.autotune.json": json.dumps({"configs_timings": []}).encode()})


def put(root: Any, key: str, name: str, files: dict[str, bytes]) -> str:
    """Writes any files with their record into a store; returns their folder."""
    folder = triton.folder_of(Layout(str(root)), key)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    for path, content in files.items():
        with open(os.path.join(folder, path), "wb") as file:
            file.write(content)
    hashes = {path: hashlib.sha256(content).hexdigest() for path, content in files.items()}
    triton.write(folder, {"name": name, **FACTS}, hashes)
    return folder
