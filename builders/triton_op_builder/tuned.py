"""Which kernels the launches of an op with configs take: those that `opforge tune` found on such a device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opforge.builders.lookup import tuned

from .kernel import Kernel
from .launching import Choice, PrebuiltKernels

if TYPE_CHECKING:
    from opforge.builders.declaration.op_spec import OpSpec
    from opforge.fast_path.library import Entry


def choose(prebuilt: PrebuiltKernels, kernels: Iterable[Kernel], spec: OpSpec, entry: Entry) -> None:
    """Makes launches take what was found for an entry on this device. Warns of a result that is not used."""
    outcome = tuned.look(tuned.wanted_of_device(spec, entry), tuned.searched(spec.package), asks=True)
    if outcome.found is None:
        return
    problem = outcome.found.problem
    if not problem:
        prebuilt.choices, problem = choices(outcome.found.value["rows"], kernels)
    if problem:
        tuned.warn(spec.name, outcome.found.path, problem)


def choices(rows: Sequence[Mapping[str, Any]], kernels: Iterable[Kernel]) -> tuple[dict[str, list[Choice]], str]:
    """Returns the choices by kernel, and why they must not be used; empty if they may."""
    declared = {kernel.name: kernel for kernel in kernels}
    made = dict[str, list[Choice]]()
    for row in rows:
        name, config = row["what"], row["config"]
        if name not in declared or (config and config not in [dict(known) for known in declared[name].configs]):
            return {}, f"it has the config {config} of the kernel {name!r}, which the op does not have"
        if config:
            others = [other["size"] for other in rows if other["what"] == name]
            made.setdefault(name, []).append(
                (*tuned.interval(row["size"], others), declared[name].variant(config).name)
            )
    return made, ""
