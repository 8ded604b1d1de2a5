"""The engine torchrun: torch.distributed's elastic agent, one on each host."""

from __future__ import annotations

import sys

from opforge.launch.hostfile import Host
from opforge.launch.plan import Plan


def engine_command(plan: Plan, host: Host) -> list[str]:
    """Returns the command that runs the ranks of one host."""
    argv = [sys.executable, "-m", "opforge.launch.engines.elastic", "--nproc-per-node", str(len(host.chosen))]
    if plan.master_port is None:
        # Without --local-addr torchrun uses this host's full name, which may not resolve.
        argv += ["--standalone", "--local-addr", "127.0.0.1"]
    else:
        argv += ["--nnodes", str(len(plan.hosts)), "--node-rank", str(plan.hosts.index(host))]
        argv += ["--master-addr", plan.master_addr, "--master-port", str(plan.master_port)]
    return [*argv, "--no-python", *plan.rank_command("torchrun", host)]
