"""Results of `opforge bench` for a package: as a release carries them, and as they are shown, each machine alone."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opforge.cli.output import heading, show_table

if TYPE_CHECKING:
    from opforge.packages.installed.releases import Installed
    from opforge.packages.registry.release import Release
    from opforge.remote.stores.protocol import ObjectStore

SHOWN = ("cpu", "device", "cores", "system", "torch")
"""The facts of a machine that are shown."""


def of_file(path: str) -> dict[str, Any]:
    """Returns the rates in a file of `opforge bench --json`, without its samples. Raises BenchFileError."""
    from opforge.bench import machine, results, texts

    run = results.read(path)
    rows = []
    for result in run.results:
        rates = {}
        for name in results.ordered_contenders([result]):
            rate = result.rate(name)
            rates[name] = f"{texts.number(rate.value)} ({texts.interval(rate)})"
        size = texts.size(result.size, result.size_unit)
        what = {"op": result.op, "case": result.case, "size": size, "dtype": result.dtype, "unit": result.unit}
        rows.append({**what, "rates": rates})
    return {"machine": {name: str(run.machine[name] or "") for name in machine.FACTS}, "results": rows}


def show(release: Release) -> None:
    """Prints the measurements in a release: a table for each machine. Nothing is compared across machines."""
    for benchmark in release.benchmarks:
        facts = ", ".join(
            f"{name} {benchmark['machine'].get(name)}" for name in SHOWN if benchmark["machine"].get(name)
        )
        heading(f"{release.name} {release.version}, measured on {facts}")
        show_table(("OP", "CASE", "SIZE", "DTYPE", "CONTENDER", "RATE", "UNIT"), list(_rows(benchmark)))


def _rows(benchmark: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for result in benchmark["results"]:
        what = tuple(result[name] for name in ("op", "case", "size", "dtype"))
        for contender, rate in result["rates"].items():
            yield *what, contender, rate, result["unit"]


def installed(releases: Sequence[Installed]) -> list[Release]:
    """Returns the signed statements of installed releases; those that came from a folder have none."""
    from opforge.packages.registry.verify_installed import signed_release

    kept = (release for release in releases if os.path.isfile(release.root.join("releases", release.digest)))
    return [signed_release(release)[1] for release in kept]


def in_store(store: ObjectStore, names: Sequence[str]) -> list[Release]:
    """Returns the releases of packages in a store. Their signatures are not verified."""
    from opforge.packages.registry import index
    from opforge.packages.registry import release as forms
    from opforge.remote import statements

    found = []
    for name in names:
        current = index.read(store, name)
        for number, listed in sorted(current.releases.items()) if current else ():
            place = statements.name_of(listed.digest)
            if (stored := store.get(place, forms.MAX_BYTES)) is not None:
                found.append(forms.parse(forms.split(stored.data, listed.digest, place).data, place, name, number))
    return found
