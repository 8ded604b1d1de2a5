"""`build-ops --observe`: builds each op while it is observed, and prints what opforge would not notice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from opforge.cli.guard import FAILED, OK, USAGE, error_text
from opforge.cli.output import emit_json

if TYPE_CHECKING:
    from opforge.cli.selection import Selected

    from .run import BuildOptions

UNSEEN = USAGE
"""The exit code if an op could not be observed: nothing is known of it."""


def show_observed(selected: Sequence[Selected], options: BuildOptions, as_json: bool) -> int:
    """Prints what each build asked for and opforge did not record. Returns the exit code."""
    records = [_observed(op, options) for op in selected]
    if as_json:
        emit_json({"ops": records})
    else:
        for record in records:
            _print(record)
    states = {record["state"] for record in records}
    return UNSEEN if "not observed" in states else FAILED if states & {"failed", "found"} else OK


def _observed(op: Selected, options: BuildOptions) -> dict[str, Any]:
    from opforge.observer.build import NotObservableError, observe
    from opforge.observer.compare import compare

    record: dict[str, Any] = {"name": op.name, "target": str(op.target or "")}
    try:
        builder = op.builder(options.debug, options.sanitize, options.portable)
        record["target"] = str(builder.target)
        build = observe(builder.spec(), jobs=options.jobs)
    except NotObservableError as error:
        return record | {"state": "not observed", "gaps": [str(error)]}
    except Exception as error:  # a broken builder must not hide the other ops
        return record | {"state": "failed", "kind": type(error).__name__, "reason": error_text(error)}
    outcome = compare(build)
    state = "not observed" if outcome.gaps else "found" if outcome.findings else "complete"
    return record | {
        "state": state,
        "images": len(build.observation.images),
        "read": len(build.observation.read),
        "findings": [finding._asdict() for finding in outcome.findings],
        "lines": list(map(str, outcome.findings)),
        "gaps": list(outcome.gaps),
        "unseen": build.observation.with_shells(),
    }


def _print(record: dict[str, Any]) -> None:
    texts = {
        "failed": "failed",
        "found": "asks for what opforge would not notice",
        "not observed": "could not be observed",
        "complete": "all that the build asked for is noticed",
    }
    click.echo(f"{record['name']} for {record['target']}: {texts[record['state']]}")
    for line in (*record.get("gaps", ()), *record.get("lines", ())):
        click.echo(f"  {line}")
    if "reason" in record:
        click.echo(f"  {record['reason']}")
    for program in record.get("unseen", ()):
        click.echo(f"  note: which variables {program} read is not seen", err=True)
