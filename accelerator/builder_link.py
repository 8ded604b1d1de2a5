"""The way from an accelerator to its op builders: the name of a package whose table is read on first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from opforge.errors import BuilderError, OpNotFoundError

from .device import Devices

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from .builder_protocol import Builder, BuilderClass


class BuilderLink(Devices):
    """The op-builder part of the interface.

    A builder package has one attribute, `BUILDERS`: class name to "module:Class". Everything found is kept with this
    accelerator, so that another one never sees it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._builders: dict[str, Builder] = {}
        self._table: Mapping[str, str] | None = None

    def op_builder_dir(self) -> str:
        """Give the dotted name of the builder package; where no such package exists, no op is offered."""
        return f"opforge.builders.{self.name}"

    def create_op_builder(self, class_name: str) -> Builder | None:
        """Give the builder of that class for this accelerator's target, always the same one; None: no such op here."""
        try:
            return self._builders[class_name]
        except KeyError:
            made = self.get_op_builder(class_name)
            return None if made is None else self._builders.setdefault(class_name, made(target=self.target()))

    def get_op_builder(self, class_name: str) -> BuilderClass | None:
        """Give the builder class of that name; None: no such op here. Errors in importing it are not hidden."""
        place = self._known_builders().get(class_name)
        if place is None:
            return None
        module, colon, attribute = place.partition(":")
        if not colon:
            raise BuilderError(
                f"{self.op_builder_dir()}.BUILDERS[{class_name!r}]",
                f"{place!r} names no class",
                "Write it as 'module:Class'.",
            )
        found: BuilderClass = getattr(importlib.import_module(module), attribute)
        return found

    def load_op(self, class_name: str, **options: Any) -> Any:
        """Give the op's functions, found or built; `options` go to the builder's `load`.

        OpNotFoundError where the accelerator offers no such op: it lists those offered, each with whether it is
        ready to build or why not, and the names that are near.
        """
        builder = self.create_op_builder(class_name)
        if builder is None:
            reasons = {known: self._readiness(known) for known in sorted(self._known_builders())}
            raise OpNotFoundError(class_name, self.name, reasons)
        return builder.load(**options)

    def build_extension(self) -> type[Any]:
        """Give the `build_ext` command class for a setup script that compiles against torch."""
        from torch.utils.cpp_extension import BuildExtension

        command: type[Any] = BuildExtension
        return command

    def _known_builders(self) -> Mapping[str, str]:
        if self._table is None:
            package = self.op_builder_dir()
            try:
                module = importlib.import_module(package)
            except ModuleNotFoundError as problem:
                # Only the package's own absence means "no ops": an import that fails within it is a fault to be seen.
                if problem.name is None or not f"{package}.".startswith(f"{problem.name}."):
                    raise
                self._table = {}
            else:
                try:
                    self._table = module.BUILDERS
                except AttributeError:
                    raise BuilderError(
                        f"the builder package {package}",
                        "it has no table of builders",
                        "Give it BUILDERS, a dict from class name to 'module:Class'.",
                    ) from None
        return self._table

    def _readiness(self, class_name: str) -> str:
        # One broken builder must not hide the others, nor the error that is about to be raised.
        try:
            builder = self.create_op_builder(class_name)
            answer = builder.is_compatible() if builder is not None else None
        except Exception as problem:
            return f"broken: {type(problem).__name__}: {problem}"
        return "ready to build" if answer else "; ".join(answer.reasons) if answer is not None else "gone"
