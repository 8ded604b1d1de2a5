"""Runs torchrun with this process's arguments, and says in one line which rank has failed.

torchrun itself ends with a traceback of its own, and a block for each rank that ended, those that it ended included.
"""

from __future__ import annotations

import signal
import sys
from typing import Any


def main() -> int:
    """Runs torchrun with this process's arguments. Returns its exit status."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    try:
        torchrun()
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        sys.stderr.write(f"{error}\nopforge launch: {failure_text(rank, failure)}\n")
        return 1
    return 0


def failure_text(rank: int, failure: Any) -> str:
    """Returns which rank has failed and how, from torchrun's record of it."""
    status = failure.exitcode
    how = f"with exit status {status}" if status >= 0 else f"by signal {-status} ({signal.strsignal(-status)})"
    return f"rank {rank} failed first: its process {failure.pid} ended {how}"


if __name__ == "__main__":
    sys.exit(main())
