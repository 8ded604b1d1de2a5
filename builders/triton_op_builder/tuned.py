"""Which kernels the launches of an op with configs take: those that `opforge tune` found on such a device."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from opforge.builders.declaration.description import description_key
from opforge.builders.lookup import tuned
from opforge.builders.lookup.tuned import WantedResult
from opforge.builders.toolchains.triton import compiled_archs
from opforge.errors import OpforgeError
from opforge.fast_path.library import Entry

from .kernel import Kernel
from .launching import Choice, PrebuiltKernels, TritonOp

log = logging.getLogger("opforge")
# A builder is a TritonOpBuilder, whose module imports this one.


def wanted(builder: Any, entry: Entry) -> WantedResult:
    """Returns the subject that a result for a builder's op must have: equal with the kernels of configs and without."""
    found = tuned.wanted_of_device(builder.spec(), entry)
    if builder.compiles_configs == type(builder).compiles_configs:
        return found
    usual = copy.copy(builder)
    usual.compiles_configs = type(builder).compiles_configs
    return found._replace(description=description_key(usual.spec()))


def chosen(builder: Any, entry: Entry, kernels: PrebuiltKernels) -> dict[str, list[Choice]]:
    """Returns the tuning results for an entry on this device, by kernel. Warns of a result that is not used.

    `kernels` are those of the entry's library. If it should hold the configs, one that takes another is not used.
    """
    what = wanted(builder, entry)
    outcome = tuned.look(what, tuned.searched(builder.spec().package), asks=True)
    if outcome.found is None:
        return {}
    made, problem = dict[str, list[Choice]](), outcome.found.problem
    if not problem:
        made, problem = choices(outcome.found.value["rows"], builder.kernels)
    if made and builder.compiles_configs:
        problem = absent(made, kernels.images(), what.target)
    if problem:
        tuned.warn(builder.spec(), outcome.found.path, problem)
    return {} if problem else made


def absent(made: Mapping[str, Sequence[Choice]], images: Iterable[Mapping[str, Any]], target: str) -> str:
    """Returns which chosen kernel a library lacks for a device; empty if it has all. Its launches would fail.

    A config that this compiler cannot compile is left out, for an architecture or for all.
    """
    device, _, arch = target.partition(":")
    names = compiled_archs([arch]) if device == "cuda" else (arch,)
    every = {(image["kernel"], image["arch"]) for image in images}
    exact = {kernel for kernel, of in every if of in names}
    held = exact or {kernel for kernel, _of in every}
    missing = sorted({name for rows in made.values() for _low, _high, name in rows} - held)
    return f"it takes the kernel {missing[0]!r}, which could not be compiled for {arch}" if missing else ""


def with_configs(builder: Any) -> Any:
    """Returns a builder of the same op whose library holds the kernels of configs too."""
    other = copy.copy(builder)
    other.compiles_configs, other._loaded = True, None
    return other


def load_with_configs(builder: Any) -> TritonOp | None:
    """Returns the op with the kernels of its configs; None, with a warning, where that library cannot be had."""
    try:
        op: TritonOp = with_configs(builder).load()
    except OpforgeError as error:
        text = "%s: a tuning result takes kernels that are in a library of their own, which cannot be loaded: %s. %s"
        log.warning(text, builder.name, str(error).splitlines()[0], "The defaults are used")
        return None
    return op


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
