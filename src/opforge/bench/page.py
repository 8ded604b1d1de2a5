"""The page of a run: one HTML file with its plots and tables, without scripts and without network."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

from opforge.ops.cases.case import OURS

from . import plots, texts
from .compare import SAME, compare
from .medians import METHOD
from .results import Result, Run, ordered_contenders

STYLE = """
:root { color-scheme: light dark; --back: #ffffff; --text: #1b1f24; --weak: #57606a; --grid: #d0d7de;
  --good: #1a7f37; --bad: #cf222e; --series0: #0969da; --series1: #bc4c00; --series2: #8250df; --series3: #1a7f37;
  --series4: #bf3989; --series5: #7d4e00; --series6: #0b7285; --series7: #6e7781; }
@media (prefers-color-scheme: dark) { :root { --back: #0d1117; --text: #e6edf3; --weak: #9198a1; --grid: #3d444d;
  --good: #3fb950; --bad: #f85149; --series0: #58a6ff; --series1: #f0883e; --series2: #bc8cff; --series3: #3fb950;
  --series4: #f778ba; --series5: #d29922; --series6: #56d4dd; --series7: #9198a1; } }
body { background: var(--back); color: var(--text); font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; padding: 1rem;
  max-width: 80rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; border-bottom: 1px solid var(--grid); }
h3 { font-size: 1rem; } p.facts, li { color: var(--weak); font-size: 0.9rem; overflow-wrap: anywhere; }
a { color: var(--series0); } .good { color: var(--good); } .bad { color: var(--bad); }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr)); gap: 1rem; }
.plots svg { width: 100%; height: auto; max-width: 34rem; display: block; }
.plots svg * { stroke-linejoin: round; stroke-linecap: butt; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: 0.85rem; }
th, td { padding: 0.15rem 0.6rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--grid); }
th:nth-child(-n+2), td:nth-child(-n+2) { text-align: left; }
nav ul { columns: 14rem; }
"""


CLASSES = {True: "good", False: "bad", None: ""}
"""Whether a goal is met -> the class of its line."""


def page(run: Run, old: Run | None = None) -> str:
    """Returns the page of a run; with an earlier run, both are drawn over each other and compared."""
    groups = _groups(run)
    before = _groups(old) if old else {}
    by_name = plots.colors([*run.results, *(old.results if old else ())])
    ops = list(dict.fromkeys(op for op, _, _ in groups))
    parts = [_head(run, old)]
    parts.append("<nav><ul>" + "".join(f'<li><a href="#{_id(op)}">{html.escape(op)}</a></li>' for op in ops))
    parts.append("</ul></nav>")
    if old:
        parts.append(_comparison(old, run))
    for op in ops:
        parts.append(f'<h2 id="{_id(op)}">{html.escape(op)}</h2>')
        for key, group in groups.items():
            if key[0] == op:
                parts.append(_section(group, before.get(key, []), by_name))
    parts.append("</body></html>\n")
    return "\n".join(parts)


def _groups(run: Run) -> dict[tuple[str, str, str], list[Result]]:
    groups: dict[tuple[str, str, str], list[Result]] = {}
    for result in run.results:
        groups.setdefault((result.op, result.case, result.dtype), []).append(result)
    return {key: sorted(group, key=lambda result: result.size) for key, group in groups.items()}


def _head(run: Run, old: Run | None) -> str:
    facts = {
        "Processor": f"{run.machine['cpu']}, {run.machine['cores']} cores",
        "Memory": f"{run.machine['memory'] / 2**30:.1f} GiB",
        "Device": run.machine.get("device") or run.device,
        "System": run.machine["system"],
        "Versions": f"opforge {run.machine['opforge']}, torch {run.machine['torch']}, Python {run.machine['python']},"
        f" {run.machine['compiler']}",
        "Load before and after": " / ".join(
            ", ".join(f"{value:.2f}" for value in load) for load in (run.load_before, run.load_after)
        ),
        "Values": METHOD + "; shaded in the plots",
    }
    if old:
        facts["Dotted"] = f"the earlier run: opforge {old.machine['opforge']}, torch {old.machine['torch']}"
    listed = "".join(f"<li>{html.escape(name)}: {html.escape(str(value))}</li>" for name, value in facts.items())
    missing = "".join(f"<li>{html.escape(name)}: {html.escape(text)}</li>" for name, text in _missing(run).items())
    title = f"opforge bench: {len(run.results)} measurements"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{title}</title><style>{STYLE}</style></head>\n<body><h1>{title}</h1>'
        f"<ul>{listed}</ul>" + (f"<h3>Left out</h3><ul>{missing}</ul>" if missing else "")
    )


def _missing(run: Run) -> dict[str, str]:
    ops: dict[tuple[str, str], dict[str, None]] = {}
    for result in run.results:
        for name, reason in result.missing.items():
            ops.setdefault((name, reason), {})[result.op] = None
    contenders = {f"{name} ({', '.join(names)})": reason for (name, reason), names in ops.items()}
    return {**contenders, **run.missing}


def _comparison(old: Run, run: Run) -> str:
    comparison = compare(old, run)
    changed = [change for change in comparison.changes if change.verdict != SAME]
    rows = [
        (
            f"{change.key.op}: {change.key.case}, {change.key.dtype}",
            texts.size(change.key.size, change.new.size_unit),
            texts.number(change.before.value),
            texts.number(change.now.value),
            f'<span class="{"good" if change.factor > 1 else "bad"}">{change.factor - 1:+.0%}, {change.verdict}</span>',
        )
        for change in changed
    ]
    summary = f"{len(changed)} of {len(comparison.changes)} changed beyond the spread of both runs."
    table = _table(("Case", "Size", "Of baseline before", "Now", "Speed"), rows) if rows else ""
    return f"<h2>Compared with the earlier run</h2><p>{summary}</p>{table}"


def _section(group: Sequence[Result], before: Sequence[Result], by_name: Mapping[str, int]) -> str:
    """Returns the plots, the table and the goals of a case. A case of one size has no lines over the size."""
    first, largest = group[0], group[-1]
    earlier = next((result for result in before if result.size == largest.size), None)
    drawings = [plots.spread(largest, earlier, by_name)]
    if len(group) > 1:
        drawings = [plots.rates(group, before, by_name), plots.speeds(group, before, by_name), *drawings]
    rows = []
    for result in group:
        for name in ordered_contenders([result]):
            rate, of_baseline, ours = result.rate(name), result.speed(name), result.speed(OURS, name)
            rows.append(
                (
                    html.escape(texts.size(result.size, result.size_unit)),
                    html.escape(name),
                    texts.number(rate.value),
                    texts.interval(rate),
                    f"{of_baseline.value:.2f}" if of_baseline else "",
                    f"{ours.value:.2f}" if ours and name != OURS else "",
                )
            )
    verdicts = "".join(
        f'<li class="{CLASSES[verdict.is_met]}">{html.escape(texts.size(result.size, result.size_unit))}: '
        f"{html.escape(f'{verdict.figure}: {verdict.outcome}')}</li>"
        for result in group
        for verdict in result.verdicts()
    )
    columns = ("Size", "Contender", texts.unit(first.unit), "Interval", "Of baseline", "Ours is")
    return (
        f"<h3>{html.escape(first.case)}, {html.escape(first.dtype)}</h3>"
        f'<div class="plots">{"".join(drawings)}</div>'
        f"<details><summary>Table</summary>{_table(columns, rows)}</details>"
        + (f"<ul>{verdicts}</ul>" if verdicts else "")
    )


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table. The cells are HTML, the columns are text."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def _id(op: str) -> str:
    return "op-" + "".join(letter if letter.isalnum() else "-" for letter in op)
