"""Loads and launches RMS norm in a fresh process: `python -m benchmarks.gpu.child_launch HOW DEVICE TARGET`."""

from __future__ import annotations

import json
import os
import sys
import time

PREBUILT, TRITON = "prebuilt", "triton"
ROWS, COLUMNS = 16, 4096


def main() -> None:
    """Prints one JSON object: seconds to the end of the first launch and of a second, and what was used for it."""
    how, device, target = sys.argv[1:]
    import torch

    from opforge.builders.triton.norms import TritonRMSNormBuilder
    from opforge.ops.triton import norms  # noqa: F401  # the functions that the load binds

    if how == TRITON:
        import triton
        import triton.language  # noqa: F401

        from opforge.builders.triton_op_builder import triton_jit  # noqa: F401
    dtype = torch.bfloat16 if device == "cuda" else torch.float32  # Triton's interpreter has no correct bfloat16
    x, weight = torch.ones((ROWS, COLUMNS), device=device, dtype=dtype), torch.ones(COLUMNS, device=device, dtype=dtype)
    files_before = _count_files()
    _wait(device)
    began = time.perf_counter()
    op = TritonRMSNormBuilder(target).load()
    y = op.rms_norm(x, weight)
    _wait(device)
    first = time.perf_counter()
    op.rms_norm(x, weight)
    _wait(device)
    again = time.perf_counter()
    if not torch.allclose(y, torch.ones_like(y), atol=1e-2):
        raise ArithmeticError(f"RMS norm of ones is {y.flatten()[0].item()}, expected 1")
    compiled = _count_files() - files_before
    print(json.dumps({"first": first - began, "again": again - first, "origin": op.origin, "compiled": compiled}))


def _wait(device: str) -> None:
    if device == "cuda":
        import torch

        torch.cuda.synchronize()


def _count_files() -> int:
    """Returns the number of files in Triton's own cache."""
    folder = os.environ.get("TRITON_CACHE_DIR", "")
    return sum(len(names) for _path, _folders, names in os.walk(folder)) if folder else 0


if __name__ == "__main__":
    main()
