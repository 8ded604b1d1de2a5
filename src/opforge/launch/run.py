"""Runs a plan: all hosts respond before anything starts. If one fails, or the launcher ends, everything is ended."""

from __future__ import annotations

import selectors
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from opforge.errors import LauncherNotFoundError, LaunchError

from .channel import GRACE_SECONDS, Channel, forward_output, wait_for_responses
from .engines import mpi, slurm, torchrun
from .hostfile import Host
from .plan import Plan
from .protocol import KILL

POLL_SECONDS = 0.5
THIS_HOST = Host.whole("localhost", 1)


class EngineStart(NamedTuple):
    """An engine to start."""

    host: Host
    """Where its agent runs."""
    argv: list[str]
    """Its command. Empty if only the places of the ranks are requested."""
    share: Host | None
    """The host whose slots the agent places before the start. None if that is left to the ranks."""
    assumed: str = ""
    """Why the engine's program is assumed to be another machine's; empty if it is this one's."""


def engine_starts(plan: Plan, dry_run: bool = False, offline: bool = False) -> list[EngineStart]:
    """Returns the engines of a plan: torchrun on each host, one mpirun, or one srun.

    With `offline` a program that is not here is assumed to be where the job will start. Raises LauncherNotFoundError,
    SettingError.
    """
    if plan.launcher == "torchrun":
        return [EngineStart(host, torchrun.engine_command(plan, host), host) for host in plan.hosts]
    assumed = ""
    try:
        program = mpi.find(plan.requested) if plan.launcher == "mpi" else (slurm.find(), "")
    except LauncherNotFoundError as error:
        if not offline:
            raise
        program = mpi.assumed(plan.requested) if plan.launcher == "mpi" else ("srun", "")
        assumed = f"{error.problem}: this is the command of {mpi.NAMES.get(program[1], 'Slurm')}"
    if plan.launcher == "mpi":
        argv = mpi.engine_command(plan, *program, dry_run)
    else:
        argv = slurm.engine_command(plan, program[0], dry_run)
    return [EngineStart(THIS_HOST, argv, next((host for host in plan.hosts if host.is_local), None), assumed)]


def run(plan: Plan, grace: float = GRACE_SECONDS) -> None:
    """Runs the job to its end.

    Raises LaunchError if it could not start or a process failed; then none of its processes is left.
    """
    starts = engine_starts(plan)
    with connected(plan, starts, grace) as channels:
        wait_for_responses(channels)
        for channel in channels:
            channel.start_engine()
        _wait_until_ended(channels)


def query_ranks(plan: Plan) -> list[dict[str, Any]]:
    """Returns where each rank of the plan's hosts would run, in their order, from agents there. Raises LaunchError."""
    starts = [EngineStart(host, [], host) for host in plan.hosts]
    with connected(plan, starts, 0.0) as channels:
        responses = wait_for_responses(channels)
    return [
        {"host": host.name, "local_rank": number, **rank}
        for host, response in zip(plan.hosts, responses, strict=True)
        for number, rank in enumerate(response["ranks"])
    ]


@contextmanager
def connected(plan: Plan, starts: Sequence[EngineStart], grace: float) -> Iterator[list[Channel]]:
    """Yields agents that have their requests. On leaving, by whatever way, every agent has ended."""
    channels: list[Channel] = []
    try:
        for start in starts:
            channels.append(Channel(start.host, plan))
            channels[-1].send_request(plan, start.argv, start.share, grace)
        yield channels
    finally:
        end_all(channels, grace)


def end_all(channels: Sequence[Channel], grace: float) -> None:
    """Ends every agent: by request, and by force if that is interrupted or takes longer than `grace` allows."""
    for channel in channels:
        channel.end()
    try:
        _drain(channels, grace + 5.0)
    except (KeyboardInterrupt, SystemExit):  # a second one: do not wait any longer
        pass
    for channel in channels:
        channel.send(KILL)
    _drain(channels, 5.0)
    for channel in channels:
        channel.process.kill()
        channel.process.communicate()
        channel.stream.close()


def _drain(channels: Sequence[Channel], seconds: float) -> None:
    """Forwards the last output until every agent has ended, for at most `seconds`."""
    deadline = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        for channel in channels:
            selector.register(channel.stream, selectors.EVENT_READ, channel)
        while selector.get_map() and (ready := selector.select(max(0.0, deadline - time.monotonic()))):
            for key, _ in ready:
                part = key.data.stream.read(1 << 16)
                if not part:
                    selector.unregister(key.fileobj)
                with suppress(OSError):  # nobody reads our output any more
                    forward_output(key.data.feed(part))


def _wait_until_ended(channels: Sequence[Channel]) -> None:
    """Forwards output until every agent has ended. Raises LaunchError for the first one with an error status."""
    with selectors.DefaultSelector() as selector:
        for channel in channels:
            selector.register(channel.stream, selectors.EVENT_READ, channel)
        while selector.get_map():
            # The end of a stream is seen at once. But a stray process may have inherited it, so each agent's process
            # is checked too.
            ended = [channel for channel in channels if channel.process.poll() is not None]
            ready = {key.fileobj for key, _ in selector.select(POLL_SECONDS)}
            for key in list(selector.get_map().values()):
                channel = key.data
                part = channel.stream.read(1 << 16) if key.fileobj in ready else b""
                forward_output(part)
                if part or (key.fileobj not in ready and channel not in ended):
                    continue
                selector.unregister(channel.stream)
                _check_status(channel)


def _check_status(channel: Channel) -> None:
    if status := channel.process.wait():
        name = channel.host.name
        what = f"the ranks on {name}" if channel.host.is_local else f"the ranks on {name}, or the connection to it,"
        how = f"with status {status}" if status > 0 else f"by signal {-status}"
        raise LaunchError(f"{what} ended {how}", "The output above shows the reason; all other processes were ended")
