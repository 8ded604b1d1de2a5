"""Events: one JSON object a line for what opforge does, to the file or stream that OPFORGE_LOG names.

Each has `time` (seconds since the epoch), `pid` and `event`: hit, miss, wait, build, verify, quarantine, evict, load,
fetch or push.
The other fields depend on the event: `op`, `seconds`, `reasons`, `path`, ...
"""

from __future__ import annotations

import os

from opforge.foundation import settings


def emit(event: str, **fields: object) -> None:
    """Writes an event. Without OPFORGE_LOG it only reads that setting; a log that cannot be written is ignored."""
    target = settings.log()
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
            os.write(handle, line)  # one write: otherwise the lines of several processes could mix
        finally:
            os.close(handle)
    except OSError:
        return
