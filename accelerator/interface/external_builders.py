"""Op builders that other packages add to an accelerator, through the entry-point group `opforge.op_builders`.

An entry is named "accelerator.ClassName" and holds "module:Class". A builder has no interface version of its own: it
is data that the installed `OpBuilder` reads, so the range of opforge that the package requires says all.
"""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING

from opforge.accelerator.entry_points import EntryPoint, entry_points
from opforge.errors import BuilderError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from .builder_protocol import BuilderClass

GROUP = "opforge.op_builders"
log = logging.getLogger("opforge")


class AddedBuilders:
    """Those added to one accelerator, and to its host after that. Imports none of them.

    `own` are the accelerator's package and the host's, each with its table: names that nobody may take.
    """

    def __init__(self, accelerator: str, host: str, own: Sequence[tuple[str, Mapping[str, str]]]) -> None:
        self.found: dict[str, tuple[str, EntryPoint]] = {}
        """Class name -> whose op it is (the accelerator's or the host's), and the entry point."""
        self.refused: dict[str, str] = {}
        """The entry point's name and distribution -> why it counts for nothing."""
        points = entry_points(GROUP)
        for whose, packages in {accelerator: own, host: own[-1:]}.items():
            taken = {name: package for package, table in reversed(packages) for name in table}
            for point in points:
                to, _, name = point.name.partition(".")
                if not name.isidentifier():
                    reason = "expected a name such as 'cpu.MyOpBuilder': the accelerator's, then the class's"
                elif to != whose:
                    continue
                elif name in taken:
                    reason = f"the name {name!r} is taken by {taken[name]}, so {point.source} must choose another"
                else:
                    taken[name] = point.source
                    self.found.setdefault(name, (whose, point))
                    continue
                self.refused[f"{point.name} of {point.source}"] = reason
        for label, reason in self.refused.items():
            log.warning("the op builder %s is left out: %s", label, reason)

    def get(self, class_name: str) -> BuilderClass | None:
        """Give the builder class of that name, imported now; None: nobody adds it. BuilderError: it cannot be used."""
        if class_name not in self.found:
            return None
        _, point = self.found[class_name]
        what = f"the op builder {point.name} of {point.source}"
        module, _, attribute = point.value.partition("[")[0].strip().partition(":")
        try:
            found: Any = getattr(importlib.import_module(module), attribute)
        except (Exception, SystemExit) as problem:  # a package that ends the process when imported ends none here
            raise BuilderError(
                what,
                f"{point.value} cannot be had: {type(problem).__name__}: {problem}",
                "Mend that package, or uninstall it",
            ) from problem
        whole = isinstance(found, type) and all(hasattr(found, name) for name in ("name", "is_compatible", "load"))
        if not whole:
            raise BuilderError(
                what, f"{point.value} is {found!r}, and no builder", "Name a subclass of opforge.OpBuilder there"
            )
        kind: BuilderClass = found
        return kind
