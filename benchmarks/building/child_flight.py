"""One of several processes that load the same cold op: prints that it is ready, waits for a line, loads."""

from __future__ import annotations

import json
import sys
import time


def main() -> None:
    """Prints "ready", and after the line one JSON object. Its times are of a clock that all processes share."""
    import torch  # noqa: F401

    import opforge

    builder = opforge.get_accelerator().create_op_builder("CPUAdamBuilder")
    if builder is None:
        raise RuntimeError("the CPU has no CPUAdamBuilder")
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.monotonic()
    module = builder.load()
    print(json.dumps({"began": began, "ended": time.monotonic(), "origin": module.origin}))


if __name__ == "__main__":
    main()
