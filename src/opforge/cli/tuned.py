"""Tuning results in the output of `opforge cache explain`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from opforge.builders.base import OpBuilder
    from opforge.builders.declaration.op_spec import OpSpec
    from opforge.fast_path.library import Entry


def explained(builder: OpBuilder, spec: OpSpec, entry: Entry) -> dict[str, Any]:
    """Returns, as `tuned`, which result counts for an entry here; nothing for an op without tunable configs."""
    has_configs = any(getattr(kernel, "configs", ()) for kernel in getattr(builder, "kernels", ()))
    if not (has_configs or spec.tunable):
        return {}
    from opforge.builders.lookup import tuned

    places = tuned.searched(spec.package)
    wanted = tuned.wanted_of_device(spec, entry) if spec.kernels else tuned.wanted(spec.name, entry)
    found = tuned.look(wanted, places, asks=False).found
    if found is None:
        return {"tuned": {"path": "", "problem": "", "rows": [], "wanted": wanted.path(places[0][0])}}
    problem = found.problem
    if not problem and spec.kernels:
        from opforge.builders.triton_op_builder import tuned as kernels_tuned

        problem = kernels_tuned.choices(found.value["rows"], getattr(builder, "kernels", ()))[1]
    elif not problem:
        problem = tuned.table(found.value["rows"], dict(spec.tunable))[1]
    return {"tuned": {"path": found.path, "problem": problem, "rows": found.value.get("rows", [])}}


def show_choice(name: str, tuned: Mapping[str, Any]) -> None:
    """Prints which configs the op of this name takes, and why not the others."""
    if not tuned["path"]:
        click.echo(f"  its defaults: there is no {tuned['wanted']}. To make it: opforge tune {name}")
        return
    if tuned["problem"]:
        click.echo(f"  its defaults: {tuned['path']} is not used: {tuned['problem']}")
        return
    click.echo(f"  tuned by {tuned['path']}")
    for row in tuned["rows"]:
        what = f"{row['what']}, " if row["what"] else ""
        why = f": {row['why']}" if row["why"] else ""
        click.echo(f"    {what}{row['dtype']} of {row['size']}: {text_of(row['config'])}{_ratio(row)}{why}")
        for other in row["others"]:
            click.echo(f"      not {text_of(other['config'])}{_ratio(other)}: {other['why']}")


def text_of(config: Mapping[str, int]) -> str:
    """Returns a config in words."""
    return " ".join(f"{name}={value}" for name, value in config.items()) or "the default"


def _ratio(timed: Mapping[str, Any]) -> str:
    if timed["low"] == timed["high"] == 1:
        return ""
    return f" ({timed['ratio']:.3f}, {timed['low']:.3f} to {timed['high']:.3f} of the default's time)"
