"""`opforge fetch`: brings the ops of a job into the cache before its processes start."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import click

from opforge.accelerator.target import Target
from opforge.cli import kinds
from opforge.cli.completion import names as completed_names
from opforge.cli.guard import FAILED, OK, Guarded, error_text, json_option
from opforge.cli.output import emit_json
from opforge.cli.selection import Selected, all_targets, mode_options, select, target_option
from opforge.errors import CacheDirError, LayerError, OpIncompatibleError, ToolchainError

from .stores import parsed

if TYPE_CHECKING:
    from opforge.builders.declaration.op_spec import OpSpec
    from opforge.fast_path.library import Entry
    from opforge.remote.entry_source import RemoteEntries


class Outcome(NamedTuple):
    """The result for one op. `state` is fetched, present, missing, skipped or failed."""

    name: str
    target: str
    state: str
    seconds: float = 0.0
    path: str = ""
    origin: str = ""
    reasons: tuple[str, ...] = ()


@click.command("fetch", cls=Guarded)
@click.argument("ops", nargs=-1, metavar="[OP]...", shell_complete=completed_names.ops)
@target_option
@mode_options
@click.option("--remote", "urls", multiple=True, metavar="URL", help="Ask this remote. Default: OPFORGE_REMOTES.")
@json_option
def command(
    ops: Sequence[str],
    targets: Sequence[Target],
    levels: Sequence[str],
    debug: bool,
    sanitize: str,
    urls: Sequence[str],
    as_json: bool,
) -> None:
    """Fetch the ops that are not built here yet.

    OP is as for build-ops; without OP, all ops that opforge and installed packages declare for this machine, whatever
    else a remote has. Nothing is compiled, and remembered misses and failures of a remote are ignored. The exit code is
    1 if an op is missing. With --target or --cpu-level it fetches for other machines too, for instance to ship with
    `build-ops --out`.

    \b
    Examples:
      opforge fetch CPUAdam FusedAdam
      opforge fetch CPUAdam --cpu-level x86-64-v4
      opforge fetch --remote https://cache.example/ops my_package.ops:ReluBuilder
    """
    from opforge.cache.current_store import current_store
    from opforge.remote import remotes
    from opforge.remote.entry_source import RemoteEntries

    named = [parsed(url, "--remote") for url in urls] or remotes.configured()
    if not named:
        raise click.UsageError("no remote is named: expected --remote URL, or OPFORGE_REMOTES.")
    source, outcomes, requested = RemoteEntries(named, is_fresh=True), list[Outcome](), all_targets(targets, levels)
    with suppress(CacheDirError, LayerError):  # each op says so
        source.drop_withdrawn(current_store().layout)
    for selected in select(kinds.by_kind(ops, "fetch")["op"], requested):
        outcomes.append(fetched(selected, source, debug, sanitize, is_requested=bool(requested)))
        if not as_json:
            _print(outcomes[-1])
    if as_json:
        emit_json({"ops": [outcome._asdict() for outcome in outcomes]})
    sys.exit(FAILED if any(outcome.state in ("missing", "failed") for outcome in outcomes) else OK)


def fetched(op: Selected, source: RemoteEntries, debug: bool, sanitize: str, is_requested: bool = False) -> Outcome:
    """Returns the outcome for one op: its entry is here already, or was fetched, or why not.

    With `is_requested` a CPU level was requested: an entry for a lower one is not enough.
    """
    from opforge.builders import load_op
    from opforge.builders.lookup import finder, remotes
    from opforge.cache.current_store import current_store, writable_store

    began, outcome, reasons = time.perf_counter(), Outcome(op.name, str(op.target or ""), "failed"), list[str]()
    try:
        spec = op.builder(debug, sanitize).spec()
        outcome = outcome._replace(target=str(spec.target))
        exact = is_requested and spec.target.device == "cpu"
        entry, state = _present(spec, exact), "present"
        if entry is None:
            request = remotes.request_for(spec, writable_store(current_store()), exact)
            is_new, rejected = source.fetch(request)
            reasons += map(str, rejected)
            if is_new:
                look_up = finder.Finder(spec, request.store, exact)
                entry, state = load_op.search(look_up), "fetched"
                reasons += map(str, look_up.rejected)
    except OpIncompatibleError as error:
        state = "failed" if op.named else "skipped"
        return outcome._replace(state=state, reasons=tuple(error.reasons))
    except Exception as error:  # a broken builder must not stop the other ops
        return outcome._replace(reasons=(error_text(error),))
    if entry is None:
        return outcome._replace(state="missing", reasons=tuple(dict.fromkeys(reasons)))
    seconds = round(time.perf_counter() - began, 3)
    return outcome._replace(state=state, seconds=seconds, path=entry.library, origin=entry.origin)


def _present(spec: OpSpec, exact: bool) -> Entry | None:
    """Returns the entry that is here already; None also if there is no compiler that could say which it would be."""
    from opforge.builders import load_op

    try:
        return load_op.find(spec, exact=exact).entry
    except (ToolchainError, OpIncompatibleError):
        return None


def _print(outcome: Outcome) -> None:
    if outcome.state in ("fetched", "present"):
        where = f" from {outcome.origin}" if outcome.state == "fetched" else ""
        return click.echo(f"{outcome.state} {outcome.name} for {outcome.target}{where}: {outcome.path}")
    click.echo(f"{outcome.state} {outcome.name} for {outcome.target}", err=outcome.state != "skipped")
    for reason in outcome.reasons:
        click.echo(f"  {reason}", err=True)
    return None
