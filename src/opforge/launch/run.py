"""Runs a plan: all hosts answer before anything starts, and when one fails, or the launcher ends, all is ended."""

from __future__ import annotations

import selectors
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from opforge.errors import LaunchError

from .channel import GRACE_SECONDS, Channel, answers, pass_on
from .engines import mpi, slurm, torchrun
from .hostfile import Host
from .plan import Plan, is_here

POLL_SECONDS = 0.5
HERE = Host.whole("localhost", 1)


def engines(plan: Plan, tell: bool = False) -> list[tuple[Host, list[str], Host | None]]:
    """For each agent its host, the engine's command, and the share of cores that it can vouch for.

    Raises LauncherNotFoundError, SettingError.
    """
    if plan.launcher == "torchrun":
        return [(host, torchrun.engine_command(plan, host), host) for host in plan.hosts]
    if plan.launcher == "mpi":
        command = mpi.engine_command(plan, *mpi.find(), tell)
    else:
        command = slurm.engine_command(plan, slurm.find(), tell)
    return [(HERE, command, next((host for host in plan.hosts if is_here(host)), None))]


def run(plan: Plan, grace: float = GRACE_SECONDS) -> None:
    """Run the job to its end. Raises LaunchError where it could not start or a process failed; then nothing runs."""
    jobs = engines(plan)
    with connected(plan, jobs, grace) as channels:
        answers(channels)
        for channel in channels:
            channel.go()
        _until_ended(channels)


def ask(plan: Plan) -> list[dict[str, Any]]:
    """Where each rank of the plan's hosts would run, in their order, from agents on them. Raises LaunchError."""
    jobs: list[tuple[Host, list[str], Host | None]] = [(host, [], host) for host in plan.hosts]
    with connected(plan, jobs, 0.0) as channels:
        told = answers(channels)
    return [
        {"host": host.name, "local_rank": number, **rank}
        for host, answer in zip(plan.hosts, told, strict=True)
        for number, rank in enumerate(answer["ranks"])
    ]


@contextmanager
def connected(plan: Plan, jobs: Sequence[tuple[Host, list[str], Host | None]], grace: float) -> Iterator[list[Channel]]:
    """Agents with their orders; on leaving, whichever way, every one of them has ended."""
    channels: list[Channel] = []
    try:
        for host, engine, share in jobs:
            channels.append(Channel(host, plan))
            channels[-1].order(plan, engine, share, grace)
        yield channels
    finally:
        end_all(channels, grace)


def end_all(channels: Sequence[Channel], grace: float) -> None:
    """End every agent: in good order first; at once when that is interrupted or takes longer than `grace` allows."""
    for channel in channels:
        channel.end()
    try:
        _drain(channels, grace + 5.0)
    except (KeyboardInterrupt, SystemExit):  # a second one: at once
        pass
    for channel in channels:
        channel.say("kill")
    _drain(channels, 5.0)
    for channel in channels:
        channel.process.kill()
        channel.process.communicate()
        channel.stream.close()


def _drain(channels: Sequence[Channel], seconds: float) -> None:
    """Pass on the last output until every agent has ended, `seconds` long at most."""
    deadline = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        for one in channels:
            selector.register(one.stream, selectors.EVENT_READ, one)
        while selector.get_map() and (ready := selector.select(max(0.0, deadline - time.monotonic()))):
            for key, _ in ready:
                part = key.data.stream.read(1 << 16)
                if not part:
                    selector.unregister(key.fileobj)
                with suppress(OSError):  # nobody reads our output any more
                    pass_on(key.data.take(part))


def _until_ended(channels: Sequence[Channel]) -> None:
    """Pass on output until every agent has ended well. Raises LaunchError on the first that has not."""
    with selectors.DefaultSelector() as selector:
        for one in channels:
            selector.register(one.stream, selectors.EVENT_READ, one)
        while selector.get_map():
            # A stream's end tells at once; a stray process that inherited it must not hide that an agent is gone.
            gone = [channel for channel in channels if channel.process.poll() is not None]
            ready = {key.fileobj for key, _ in selector.select(POLL_SECONDS)}
            for key in list(selector.get_map().values()):
                channel: Channel = key.data
                part = channel.stream.read(1 << 16) if key.fileobj in ready else b""
                pass_on(part)
                if part or (key.fileobj not in ready and channel not in gone):
                    continue
                selector.unregister(channel.stream)
                status = channel.process.wait()
                if status:
                    name = channel.host.name
                    what = f"the ranks on {name}" if channel.here else f"the ranks on {name}, or the connection to it,"
                    raise LaunchError(
                        f"{what} ended {f'with status {status}' if status > 0 else f'by signal {-status}'}",
                        "The output above says why; all other processes were ended",
                    )
