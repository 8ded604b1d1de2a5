"""`opforge bench`: measures ops beside their rivals and a baseline, and compares runs."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from opforge.errors import ExtraNotInstalledError

from . import messages
from .completion import names as completed_names
from .guard import FAILED, INTERRUPTED, OK, Guarded
from .output import coloured, counted, heading, show_table

if TYPE_CHECKING:
    from opforge.bench.compare import Comparison
    from opforge.bench.results import Result, Run
    from opforge.bench.selection import Selected

BECAME_WORSE = 3
DEVICES = ("cpu", "cuda")
EXIT_CODES = (
    "Exit codes: 0 success; 1 something failed, or a named op could not be measured; 2 wrong usage; 3 with --compare:"
    " something became worse; 130 interrupted."
)
COLORS = {True: "green", False: "red", None: "yellow"}
"""Whether a goal is met -> the colour of that."""
CLEAR_LINE = "\r\x1b[K"


@click.command("bench", cls=Guarded, epilog=EXIT_CODES)
@click.argument("ops", nargs=-1, metavar="[OP]...", shell_complete=completed_names.ops)
@click.option("--list", "as_list", is_flag=True, help="Measure nothing: list the cases.")
@click.option(
    "--quick", is_flag=True, help="Few sizes, few samples: all ops in less than a minute, once they are built."
)
@click.option("--device", default="cpu", show_default=True, help="cpu or cuda.")
@click.option(
    "--json", "json_path", metavar="FILE", default="", help="Also write all samples to FILE ('-': to the output)."
)
@click.option("--from", "source", metavar="FILE", default="", help="Measure nothing: show what --json has written.")
@click.option("--compare", metavar="OLD", default="", help="Compare with the file of an earlier run on this machine.")
@click.option(
    "--html", "html_path", metavar="FILE", default="", help="Also write plots to FILE: one page, without network."
)
def command(
    ops: Sequence[str],
    as_list: bool,
    quick: bool,
    device: str,
    json_path: str,
    source: str,
    compare: str,
    html_path: str,
) -> None:
    """Measure ops beside their rivals and a baseline: the machine's own speed for as many bytes.

    OP is a name that `opforge bench --list` shows; without one, all ops are measured. Contenders take turns in one
    process. Compare ratios rather than times: a machine's speed changes from hour to hour.

    \b
    Examples:
      opforge bench --quick
      opforge bench CPUAdam --json new.json
      opforge bench --from new.json --compare old.json --html page.html
    """
    from opforge.bench import files, machine, results
    from opforge.bench.selection import UnknownOpError, select

    try:
        selected = select(ops)
    except UnknownOpError as error:
        raise click.UsageError(str(error)) from error
    if as_list:
        _list(selected)
        return
    _check_files(json_path, html_path)
    old = results.read(compare) if compare else None
    earlier = _chosen(results.read(source), selected if ops else (), source) if source else None
    if earlier is None:
        _check_device(device, ops, selected)
    if old:
        facts = earlier.machine if earlier else machine.describe(device)
        results.check_machine(compare, old.machine, facts, source or "this machine")
    to_output = json_path == "-"
    run = earlier or _measure(selected, device, quick, to_output)
    for group in _groups(run.results) if earlier and not to_output else ():
        _show(group)
    _write_results(run, json_path)
    if html_path:
        from opforge.bench.page import page

        files.write(html_path, page(run, old))
    became_worse = old is not None and _is_worse(old, run, compare, to_output)
    status = BECAME_WORSE if became_worse else FAILED if ops and run.missing and not run.results else OK
    sys.exit(INTERRUPTED if run.interrupted and not source else status)


def _is_worse(old: Run, run: Run, old_path: str, to_output: bool) -> bool:
    """Prints the comparison with an earlier run, and returns whether anything became worse."""
    from opforge.bench import compare

    comparison = compare.compare(old, run)
    _show_comparison(comparison, old_path, to_output)
    return bool(comparison.with_verdict(compare.WORSE))


def _check_files(json_path: str, html_path: str) -> None:
    """Reports all that can be wrong with files, before minutes of measuring."""
    from opforge.bench import files

    if html_path and importlib.util.find_spec("matplotlib") is None:
        raise ExtraNotInstalledError("opforge bench --html", "matplotlib", "bench")
    for path in (json_path if json_path != "-" else "", html_path):
        if path:
            files.check_writable(path)


def _write_results(run: Run, path: str) -> None:
    """Prints the results as JSON for the path "-"; otherwise prints the summary, and writes the file, if any."""
    from opforge.bench import files

    if path == "-":
        click.echo(json.dumps(run.to_json()))
        return
    _show_summary(run)
    if path:
        files.write(path, json.dumps(run.to_json(), indent=1) + "\n")


def _check_device(device: str, ops: Sequence[str], selected: Sequence[Selected]) -> None:
    """Raises click.UsageError if there is no such device here, or if no case of these ops is for it."""
    from opforge.accelerator import candidates

    offered = {candidate.name: candidate for candidate in candidates() if candidate.name in ("cpu", "cuda")}
    if device not in ("cpu", "cuda"):
        raise click.BadParameter(
            f"{device!r} is not a device that has cases. Expected cpu or cuda.", param_hint="--device"
        )
    candidate = offered.get(device)
    if candidate is None or not candidate.available:
        reason = candidate.reason if candidate else "torch has no such device"
        raise click.BadParameter(f"{device!r} cannot be used here: {reason}", param_hint="--device")
    if not any(device in item.case.devices for item in selected):
        raise click.UsageError(f"{', '.join(ops)}: its cases are not for the device {device!r}.")


def _chosen(run: Run, selected: Sequence[Selected], path: str) -> Run:
    """Keeps the results of the selected ops; all of them if none is selected. An op without any is missing."""
    if selected:
        names = {item.op for item in selected}
        run.results = [result for result in run.results if result.op in names]
        for name in sorted(names - {result.op for result in run.results}):
            run.missing.setdefault(name, f"{path} has no result of it")
    return run


def _measure(selected: Sequence[Selected], device: str, quick: bool, silent: bool) -> Run:
    """Measures, and prints each case when it is complete."""
    from opforge.bench import runs

    pending: list[Result] = []
    shows_progress, width = messages.shows_progress(), shutil.get_terminal_size().columns - 1

    def begins(number: int, total: int, name: str) -> None:
        if shows_progress:
            click.echo(CLEAR_LINE + f"{number} of {total}: {name}"[:width], nl=False, err=True)

    def ends(result: Result) -> None:
        if pending and _group_key(pending[0]) != _group_key(result):
            flush()
        pending.append(result)

    def flush() -> None:
        if shows_progress:
            click.echo(CLEAR_LINE, nl=False, err=True)
        if pending and not silent:
            _show(pending)
        pending.clear()

    run = runs.run(selected, device, quick, begins, ends)
    flush()
    return run


def _group_key(result: Result) -> tuple[str, str, str]:
    return result.op, result.case, result.dtype


def _groups(results: Sequence[Result]) -> list[list[Result]]:
    groups: dict[tuple[str, str, str], list[Result]] = {}
    for result in results:
        groups.setdefault(_group_key(result), []).append(result)
    return list(groups.values())


def _show(group: Sequence[Result]) -> None:
    """Prints one case of one dtype: a row for each size and contender."""
    from opforge.bench import texts
    from opforge.bench.results import PROCESSOR, ordered_contenders
    from opforge.ops.cases import OURS

    first = group[0]
    heading(f"{first.op}: {first.case}, {first.dtype}; baseline: {' or '.join(first.baseline)}")
    rows = []
    for result in group:
        for name in ordered_contenders([result]):
            rate, of_baseline, ours = result.rate(name), result.speed(name), result.speed(OURS, name)
            rows.append(
                (
                    texts.size(result.size, result.size_unit),
                    name,
                    texts.number(rate.value),
                    texts.interval(rate),
                    f"{of_baseline.value:.2f}" if of_baseline else "",
                    f"{ours.value:.2f}" if ours and name != OURS else "",
                )
            )
    columns = ("SIZE", "CONTENDER", texts.unit(first.unit), "INTERVAL", "OF BASELINE", "OURS IS")
    show_table(columns, rows, numbers=columns[2:])
    for result in group:
        size = texts.size(result.size, result.size_unit)
        if result.clock == PROCESSOR:
            click.echo(f"{size}: the machine was busy: timed by the processor time of one thread")
        elif result.is_too_busy:
            click.echo(f"{size}: do not trust these figures: threads waited {result.busy:.0%} of the time")
        for judged in result.verdicts():
            click.echo(f"{size}: {judged.figure}: " + coloured(judged.outcome, COLORS[judged.is_met]))


def _show_summary(run: Run) -> None:
    """Prints the contenders that were not measured with their reasons, the method, the machine and its load."""
    from opforge.bench.medians import METHOD

    reasons: dict[tuple[str, str], list[str]] = {}
    for result in run.results:
        for name, reason in result.missing.items():
            ops = reasons.setdefault((name, reason), [])
            if result.op not in ops:
                ops.append(result.op)
    if run.interrupted:
        heading("Interrupted: the rest was not measured")
    heading("Left out" if reasons or run.missing else "Nothing was left out")
    for (name, reason), ops in reasons.items():
        click.echo(f"{name} ({', '.join(ops)}): {reason}")
    for name, reason in run.missing.items():
        click.echo(f"{name}: {reason}")
    goals = [judged.is_met for result in run.results for judged in result.verdicts()]
    too_busy = any(result.is_too_busy for result in run.results)
    own = max((result.own_work for result in run.results), default=0.0)
    facts = run.machine
    open_goals = f", {goals.count(None)} not judged" if None in goals else ""
    measurements = counted(len(run.results), "measurement", "measurements")
    heading(f"{measurements}, {goals.count(True)} of {len(goals)} goals met{open_goals}")
    if too_busy:
        click.echo(
            "The machine was too busy with other work to time calls of several threads. Run it again when it is idle,"
            " or with OMP_NUM_THREADS=1: calls of one thread are then timed by their processor time."
        )
    click.echo(f"Intervals: {METHOD}.")
    click.echo("OURS IS: how many times as fast as the contender opforge is, the median of each round's ratio.")
    click.echo(f"The harness took at most {own:.2%} of a sample. The run took {run.seconds:.0f} s.")
    before, after = (" ".join(f"{value:.2f}" for value in load) for load in (run.load_before, run.load_after))
    click.echo(
        f"{facts['cpu']}, {facts['cores']} cores, {facts['memory'] / 2**30:.1f} GiB, {facts['system']}"
        + (f", {facts['device']}" if facts.get("device") else "")
        + f"; Python {facts['python']}, torch {facts['torch']}, {facts['threads']} threads, opforge {facts['opforge']},"
        f" {facts['compiler']}; load {before} before, {after} after"
    )


def _show_comparison(comparison: Comparison, path: str, to_error: bool) -> None:
    """Prints the results that became worse and better, and the number of unchanged ones."""
    from opforge.bench import texts
    from opforge.bench.compare import BETTER, LEAST, SAME, WORSE
    from opforge.ops.cases import OURS

    worse, better, same = (comparison.with_verdict(verdict) for verdict in (WORSE, BETTER, SAME))
    title = f"{len(worse)} worse, {len(better)} better, {len(same)} within the spread of both runs or {LEAST:.0%}"
    if to_error:
        click.echo(f"compared with {path}: {title}", err=True)
        return
    heading(f"Compared with {path}: {title}")
    rows = [
        (
            change.verdict,
            f"{change.key.op}: {change.key.case}",
            texts.size(change.key.size, change.new.size_unit),
            change.key.dtype,
            f"{texts.number(change.before.value)} ({texts.interval(change.before)})",
            f"{texts.number(change.now.value)} ({texts.interval(change.now)})",
            f"{change.factor - 1:+.0%}",
            f"{texts.number(change.old.time(OURS).value * 1e6)} -> {texts.number(change.new.time(OURS).value * 1e6)}",
        )
        for change in [*worse, *better]
    ]
    if rows:
        columns = ("CHANGE", "CASE", "SIZE", "DTYPE", "OF BASELINE BEFORE", "NOW", "SPEED", "TIME IN us")
        show_table(columns, rows, numbers=("SPEED",))
    for key, reason in comparison.left_out:
        click.echo(f"not compared: {key.op}, {key.case}, {key.size}, {key.dtype}: {reason}")


def _list(selected: Sequence[Selected]) -> None:
    from opforge.bench import texts

    rows = [
        (
            item.op,
            item.case.name,
            f"{texts.size(item.case.sizes[0], '')}to {texts.size(item.case.sizes[-1], item.case.size_unit)}",
            " ".join(item.case.measured_dtypes),
            " ".join(item.case.devices),
            ", ".join(item.case.contenders),
            " or ".join(item.case.baseline),
        )
        for item in selected
    ]
    show_table(("OP", "CASE", "SIZES", "DTYPES", "DEVICES", "CONTENDERS", "BASELINE"), rows)
