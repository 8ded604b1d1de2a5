"""What opforge does, as events: one JSON object a line, to the file or stream that OPFORGE_LOG names.

Each has `time` (seconds since the epoch), `pid` and `event`: hit, miss, wait, build, verify, quarantine, evict or load,
then what belongs to it: `op`, `seconds`, `reasons`, `path`.
"""

from __future__ import annotations

import os


def emit(event: str, **fields: object) -> None:
    """Write an event. Without OPFORGE_LOG it is one look into the environment; a log that fails is left."""
    target = os.environ.get("OPFORGE_LOG")
    if not target:
        return
    import json
    import time

    record = {"time": round(time.time(), 6), "pid": os.getpid(), "event": event, **fields}
    line = json.dumps(record, default=str).encode() + b"\n"
    try:
        if target in ("-", "stderr"):
            os.write(2, line)
            return
        handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        try:
            os.write(handle, line)  # one write, so that the lines of several processes do not mix
        finally:
            os.close(handle)
    except OSError:
        return
