"""Runs a unit on a worker: looks it up in the remote, builds it, publishes it, and reports the outcome."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from typing import Any

from opforge.builders import load_op
from opforge.builders.declaration.build_plan import BuildPlan
from opforge.builders.declaration.machine import torch_folder, torch_version
from opforge.builders.lookup import remotes as lookups
from opforge.builders.planner import make_plan
from opforge.builders.run import parallelism
from opforge.builders.toolchains import find_toolchain
from opforge.cache.current_store import current_store, writable_store
from opforge.cache.keys import key_of
from opforge.errors import (
    BuilderError,
    BuildResourceError,
    CacheDirError,
    ExtraNotInstalledError,
    LockTimeoutError,
    OpforgeError,
    OpIncompatibleError,
    PublishError,
    RemoteError,
    SettingError,
    SourceNotFoundError,
    ToolchainError,
    ToolchainNotFoundError,
)
from opforge.fast_path.machine import libc
from opforge.foundation import settings
from opforge.remote import publish, remotes
from opforge.remote.entry_source import RemoteEntries
from opforge.remote.op_statements import FLAGS_HINT, OP
from opforge.remote.signatures import keys
from opforge.remote.stores import open_store

from . import session
from .unit import Outcome, Refused, Unit, from_json

OF_THE_MACHINE = (
    Refused,
    BuilderError,
    SourceNotFoundError,
    ToolchainError,
    ToolchainNotFoundError,
    OpIncompatibleError,
    BuildResourceError,
    CacheDirError,
    LockTimeoutError,
    SettingError,
    RemoteError,
    ExtraNotInstalledError,
    MemoryError,
)
"""Errors that another machine may not have. A compile error is none of them."""


def run(text: str) -> str:
    """Does a unit and returns its outcome, both as JSON. What goes wrong is in the outcome."""
    return json.dumps(_outcome(text, build)._asdict())


def identify(text: str) -> str:
    """Returns the outcome of a unit that is not built: its `reason` is the toolchain that would build it, as JSON."""
    return json.dumps(_outcome(text, _identity_of)._asdict())


def _outcome(text: str, action: Any) -> Outcome:
    began, (worker, threads) = time.monotonic(), _place()
    outcome = Outcome("", "", "failed", host=socket.gethostname(), worker=worker)
    try:
        unit = from_json(text)
        outcome = outcome._replace(name=unit.name, target=unit.target)
        outcome = action(unit, outcome, threads)
    except OF_THE_MACHINE as error:
        outcome = outcome._replace(state="refused", kind=type(error).__name__, reason=str(error))
    except KeyboardInterrupt:  # the session has ended
        outcome = outcome._replace(state="interrupted", reason="the run was interrupted")
    except (Exception, SystemExit) as error:  # a builder's own code may raise anything
        reason = str(error) if isinstance(error, OpforgeError) else f"{type(error).__name__}: {error}"
        outcome = outcome._replace(kind=type(error).__name__, reason=reason)
    return outcome._replace(seconds=round(time.monotonic() - began, 3))


def _place() -> tuple[str, int | None]:
    """Returns the worker's address and its threads, if an engine says them; else the host and None."""
    if "distributed" in sys.modules:
        try:
            worker = sys.modules["distributed"].get_worker()
            return str(worker.address), int(worker.state.nthreads)
        except ValueError:
            pass  # in no worker of Dask
    return socket.gethostname(), None


def build(unit: Unit, outcome: Outcome, threads: int | None) -> Outcome:
    """Builds a unit, unless the remote has it, and publishes it. Raises what stops it."""
    spec = unit.make().spec()
    remote = remotes.parse(unit.remote)
    store, layout = open_store(remote.url, settings.offline()), writable_store(current_store())
    outcome = outcome._replace(remote=str(remote))
    if not unit.force:
        request = lookups.request_for(spec, layout, exact=True)
        if offer := RemoteEntries([remote], is_fresh=True).offered(request)[0]:
            return outcome._replace(state="prebuilt", reason=offer)
    signer = None if remote.is_unsigned else keys.signer()
    if settings.user_flags() and not remote.takes_flags:
        flags = " and ".join(settings.user_flags())
        raise PublishError(unit.name, str(remote), f"{flags} is set on this machine", FLAGS_HINT)
    plan = make_plan(spec, find_toolchain(spec, layout))
    check_toolchain(unit, toolchain_of(plan, outcome))
    slots = unit.jobs or threads or parallelism.compiler_jobs(None, plan, layout.layout)
    with session.of(store, unit.run, slots):
        # Who asks hands out each unit once. The claim of a worker that was lost would delay the next one by 30 s.
        entry = load_op.build(spec, force=unit.force, jobs=unit.jobs, announce=False)
        pushed = publish.push(store, remote, OP, OP.at(entry.folder, unit.description), signer)
    state = "built" if entry.origin == "built" or unit.force else "cached"
    outcome = outcome._replace(state=state, path=entry.library, result=pushed.label).measured()
    return outcome._replace(path="")  # a path of this machine means nothing to who asked


def _identity_of(unit: Unit, outcome: Outcome, _threads: int | None) -> Outcome:
    spec = unit.make().spec()
    plan = make_plan(spec, find_toolchain(spec, writable_store(current_store())))
    return outcome._replace(state="cached", reason=json.dumps(toolchain_of(plan, outcome)))


def toolchain_of(plan: BuildPlan, outcome: Outcome) -> dict[str, str]:
    """Returns the identities of the compilers, of torch and of the system's libraries on this machine."""
    programs = dict(plan.toolchain)
    versions = [text for name, text in programs.items() if name == "version" or name.endswith(" version")]
    folder = torch_folder()
    return {
        "compiler": f"{', '.join(versions) or 'a compiler'} ({key_of(sorted(programs.items()))[:12]})",
        "torch": f"torch {torch_version(folder)}" if folder else "no torch",
        "sysroot": f"{libc() or 'an unknown C library'} on {os.uname().machine}",
        "worker": outcome.host if outcome.worker == outcome.host else f"{outcome.host} ({outcome.worker})",
    }


def check_toolchain(unit: Unit, here: dict[str, str]) -> None:
    """Raises Refused if the unit is for another toolchain than this machine's."""
    if problem := difference(unit.toolchain, here) if unit.toolchain else "":
        raise Refused(f"--same-toolchain: {problem}")


def difference(first: Any, second: Any) -> str:
    """Returns the first difference between two toolchains, with both values; empty if there is none."""
    for part in ("compiler", "torch", "sysroot"):
        if first[part] != second[part]:
            return f"{first['worker']} has {first[part]}, and {second['worker']} has {second[part]}"
    return ""
