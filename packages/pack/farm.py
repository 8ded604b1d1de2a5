"""Builds the variants of a project on other machines: `opforge pack --on`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from opforge.accelerator.target import Target
from opforge.builders.base import OpBuilder
from opforge.errors import PackError
from opforge.fast_path.library import Entry
from opforge.packages.sources.project import Project
from opforge.packages.sources.reading import read
from opforge.remote.farm import api
from opforge.remote.farm.unit import unit_of

MAKE = "opforge.packages.pack.farm:builder_of"


def builder_of(project: str, target: str, portable: bool) -> OpBuilder:
    """Returns the builder of a project for a target, on a worker's machine. Raises what reading the project raises."""
    make = read(project).builder
    if make is None:
        raise PackError(project, ["it has no library to build"], "Pack it without --on.")
    return make(Target.parse(target), portable)


def build(
    project: Project,
    builders: Sequence[OpBuilder],
    on: str,
    portable: bool,
    jobs: int | None,
    report: Callable[[str], None],
) -> list[Entry]:
    """Returns the entries of builders, after workers have built them and this machine has fetched them.

    The workers read the project at the same path as here. Raises PackError, and what `farm.build_on` raises.
    """
    remote, units = api.results_remote(), []
    for builder in builders:
        options = {"project": project.reference, "target": str(builder.target), "portable": portable}
        units.append(unit_of(builder, remote, project.name, make=MAKE, options=options, jobs=jobs))
    failed = []
    for _number, outcome in api.sent(on, units, same_toolchain=False):
        report(f"{outcome.state} for {outcome.target} by {outcome.host}")
        if outcome.state == "failed":
            failed.append(f"{outcome.target}: {outcome.reason}")
    if failed:
        raise PackError(project.name, failed, "Nothing was packed. The built variants stay in the remote.")
    return [api.bring(builder, remote) for builder in builders]
