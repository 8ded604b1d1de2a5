"""The names of tuning results on the command line, `tuned:OP`, and those that are on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from .output import show_table
from .selection import normalized

if TYPE_CHECKING:
    from opforge.builders.base import OpBuilder
    from opforge.builders.declaration.op_spec import OpSpec
    from opforge.cache.records.tuned import Stored
    from opforge.warm.library import Entry

PREFIX = "tuned:"


def stored(ops: Sequence[str] | None = None) -> list[Stored]:
    """Returns the tuning results in the cache, or those of these ops; "*" is all of them.

    Raises click.UsageError for an op that has none.
    """
    from opforge.cache.current import own_store
    from opforge.cache.records import tuned

    found = list(tuned.stored(own_store().layout.root))
    if ops is None or "*" in ops:
        return found
    wanted = {normalized(_op_of(op)): op for op in ops}
    chosen = [one for one in found if not one.problem and normalized(one.value["op"]) in wanted]
    missing = wanted.keys() - {normalized(one.value["op"]) for one in chosen}
    if missing:
        there = ", ".join(sorted({one.value["op"] for one in found if not one.problem})) or "none"
        absent = ", ".join(PREFIX + wanted[name] for name in sorted(missing))
        raise click.UsageError(f"there is no {absent} here. There are results of: {there}. See opforge tune.")
    return chosen


def _op_of(name: str) -> str:
    """Returns the op's name for a class, as module:Class; another name as it is. Raises click.UsageError."""
    if ":" not in name:
        return name
    from .selection import own_class

    return str(own_class(name).name)


def to_json(result: Stored) -> dict[str, Any]:
    """Returns what --json prints of one."""
    return {"path": result.path, "problem": result.problem, "fetched": result.is_fetched, **result.value}


def show(results: Sequence[Stored]) -> None:
    """Prints a table."""
    rows = []
    for result in results:
        value = result.value
        if not value:
            rows.append((f"({result.problem})", "", "", "", "", result.path))
            continue
        taken = sum(bool(row["config"]) for row in value["rows"])
        source = "fetched" if result.is_fetched else "here"
        cores = str(value["cores"] or "")
        rows.append((value["op"], value["target"], cores, f"{taken} of {len(value['rows'])}", source, result.path))
    columns = ("TUNED", "TARGET", "CORES", "NOT THE DEFAULT", "FROM", "PATH")
    show_table(columns, rows, numbers=("CORES",), optional="PATH")


def explained(builder: OpBuilder, spec: OpSpec, entry: Entry) -> dict[str, Any]:
    """Returns, as `tuned`, which result counts for an entry here; nothing for an op that has nothing to tune."""
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
    if not problem and not spec.kernels:
        problem = tuned.table(found.value["rows"], dict(spec.tunable))[1]
    return {"tuned": {"path": found.path, "problem": problem, "rows": found.value.get("rows", [])}}


def show_choice(tuned: Mapping[str, Any]) -> None:
    """Prints which configs are taken, and why not the others."""
    if not tuned["path"]:
        click.echo(f"  its defaults: there is no {tuned['wanted']}. To make it: opforge tune")
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
