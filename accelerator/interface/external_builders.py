"""Op builders that other packages add to an accelerator, through the entry-point group `opforge.op_builders`.

An entry point's name is "accelerator.ClassName", its value "module:Class". A builder has no interface version: the
package that adds it requires a range of opforge versions.
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


class ExternalBuilders:
    """The builders that other packages add to one accelerator and to its host. Imports none of them.

    `tables` are the accelerator's builder package and the host's, each with its table; their names cannot be added.
    """

    def __init__(self, accelerator: str, host: str, tables: Sequence[tuple[str, Mapping[str, str]]]) -> None:
        self.entries: dict[str, tuple[str, EntryPoint]] = {}
        """Class name -> the op's owner (the accelerator or the host), and the entry point."""
        self.rejected: dict[str, str] = {}
        """Entry point's name and distribution -> why it is ignored."""
        self._owners = (accelerator, host)
        points = entry_points(GROUP)
        for owner, packages in {accelerator: tables, host: tables[-1:]}.items():
            owners = {name: package for package, table in reversed(packages) for name in table}
            for point in points:
                accelerator_name, _, class_name = point.name.partition(".")
                if not class_name.isidentifier():
                    problem = "expected a name such as 'cpu.MyOpBuilder': the accelerator's, then the class's"
                elif accelerator_name != owner:
                    continue
                elif class_name in owners:
                    problem = (
                        f"the name {class_name!r} belongs to {owners[class_name]}: {point.source} must choose another"
                    )
                else:
                    owners[class_name] = point.source
                    self.entries.setdefault(class_name, (owner, point))
                    continue
                self.rejected[f"{point.name} of {point.source}"] = problem
        for label, problem in self.rejected.items():
            log.warning("the op builder %s is ignored: %s", label, problem)

    def of_others(self, class_name: str) -> dict[str, str]:
        """Returns why the builders of this name are not offered that packages add to other accelerators."""
        return {
            f"{point.name} of {point.source}": f"it is for the accelerator {owner!r}"
            for point in entry_points(GROUP)
            for owner, _, name in [point.name.partition(".")]
            if name == class_name and owner not in self._owners
        }

    def get(self, class_name: str) -> BuilderClass | None:
        """Imports and returns the builder class of that name. None if no package adds it.

        Raises BuilderError if the class cannot be imported, or is not a builder.
        """
        if class_name not in self.entries:
            return None
        _, point = self.entries[class_name]
        label = f"the op builder {point.name} of {point.source}"
        module, _, attribute = point.value.partition("[")[0].strip().partition(":")
        try:
            value: Any = getattr(importlib.import_module(module), attribute)
        except (Exception, SystemExit) as error:  # a package may call sys.exit() when it is imported
            raise BuilderError(
                label,
                f"{point.value} cannot be imported: {type(error).__name__}: {error}",
                "Fix that package, or uninstall it.",
            ) from error
        is_builder = isinstance(value, type) and all(hasattr(value, name) for name in ("name", "is_compatible", "load"))
        if not is_builder:
            raise BuilderError(
                label, f"{point.value} is {value!r}, not a builder", "Name a subclass of opforge.OpBuilder there."
            )
        builder_class: BuilderClass = value
        return builder_class
