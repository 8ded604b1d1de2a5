"""How many more processes this user may start: by the cgroups' pids.max and by RLIMIT_NPROC. Threads count."""

from __future__ import annotations

import os

from .cgroup import processes_left as cgroup_processes_left
from .files import read_fields, read_text

EXEMPT = 1 << 21 | 1 << 24
"""CAP_SYS_ADMIN and CAP_SYS_RESOURCE: RLIMIT_NPROC does not limit a process with one of them, nor one of root."""


def processes_left(root: str = "/") -> int | None:
    """Returns how many processes and threads may still be started. None if there is no limit."""
    left = [cgroup_processes_left(root), _user_processes_left(root)]
    return min((count for count in left if count is not None), default=None)


def _user_processes_left(root: str) -> int | None:
    import resource

    limit, _hard = resource.getrlimit(resource.RLIMIT_NPROC)
    if limit == resource.RLIM_INFINITY or os.getuid() == 0 or _capabilities(root) & EXEMPT:
        return None
    return max(0, limit - _threads_of(os.getuid(), root))


def _capabilities(root: str) -> int:
    """Returns the effective capabilities of this process, as a set of bits."""
    for line in (read_text(root, "proc/self/status") or "").splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


def _threads_of(user: int, root: str) -> int:
    """Returns the number of threads of all processes that a user has, as far as /proc shows them."""
    count = 0
    try:
        names = os.listdir(os.path.join(root, "proc"))
    except OSError:
        return 0
    for name in names:
        if name.isdecimal():
            fields = read_fields(root, f"proc/{name}/status")
            count += fields.get("Threads", 0) if fields.get("Uid") == user else 0
    return count
