"""The way from an accelerator to its op builders: the name of a package whose table is read on first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from opforge.errors import BuilderError, OpNotFoundError

from .device import Devices

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from opforge.accelerator.target import Target

    from .builder_protocol import Builder, BuilderClass
    from .external_builders import AddedBuilders

HOST = "cpu"
HOST_BUILDERS = "opforge.builders.cpu"
"""Every accelerator has a host, and offers its ops too: what is moved off a device is updated there."""


class BuilderLink(Devices):
    """The op-builder part of the interface.

    A builder package has one attribute, `BUILDERS`: class name to "module:Class". A name is looked up in the
    accelerator's own package, in the host's, and then among those that other packages add. Everything found is kept
    with this accelerator, so that another one never sees it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._builders: dict[str, Builder] = {}
        self._tables: dict[str, Mapping[str, str]] = {}
        self._added: AddedBuilders | None = None

    def op_builder_dir(self) -> str:
        """Give the dotted name of the builder package; where no such package exists, it has no op of its own."""
        return f"opforge.builders.{self.name}"

    def create_op_builder(self, class_name: str) -> Builder | None:
        """Give the builder of that class, always the same one; None: no such op here.

        It is made for this accelerator's target; one that is for the host and not for this device, for the host.
        """
        try:
            return self._builders[class_name]
        except KeyError:
            made = self.get_op_builder(class_name)
            if made is None:
                return None
            return self._builders.setdefault(class_name, made(target=target_for(made, self.target())))

    def get_op_builder(self, class_name: str) -> BuilderClass | None:
        """Give the builder class of that name; None: no such op here. Errors in importing it are not hidden.

        BuilderError where another package added the name, and what it names cannot be used.
        """
        for package in (self.op_builder_dir(), HOST_BUILDERS):
            place = self._table(package).get(class_name)
            if place is not None:
                return _class_at(place, f"{package}.BUILDERS[{class_name!r}]")
        return self._added_builders().get(class_name)

    def op_builders(self) -> dict[str, str]:
        """Give the class names that `create_op_builder` knows, each with whose op it is: this accelerator's or `cpu`'s.

        Nothing but the tables is imported.
        """
        added = {name: whose for name, (whose, _) in self._added_builders().found.items()}
        host = dict.fromkeys(self._table(HOST_BUILDERS), HOST)
        return {**added, **host, **dict.fromkeys(self._table(self.op_builder_dir()), self.name)}

    def op_builder_problems(self) -> dict[str, str]:
        """Give what other packages add wrongly, by entry point and distribution, each with the reason."""
        return dict(self._added_builders().refused)

    def load_op(self, class_name: str, verbose: bool = False) -> Any:
        """Give the op's functions, found or built; `verbose` shows a build's steps.

        Raises what the builder's `load` does, and OpNotFoundError where the accelerator offers no such op: it lists
        those offered, each with whether it is ready to build or why not, and the names that are near.
        """
        builder = self.create_op_builder(class_name)
        if builder is None:
            reasons = {known: self._readiness(known) for known in sorted(self.op_builders())}
            raise OpNotFoundError(class_name, self.name, reasons, self.op_builder_problems())
        return builder.load(verbose=verbose)

    def build_extension(self) -> type[Any]:
        """Give the `build_ext` command class for a setup script that compiles against torch."""
        from torch.utils.cpp_extension import BuildExtension

        command: type[Any] = BuildExtension
        return command

    def _table(self, package: str) -> Mapping[str, str]:
        try:
            return self._tables[package]
        except KeyError:
            return self._tables.setdefault(package, _read_table(package))

    def _added_builders(self) -> AddedBuilders:
        if self._added is None:
            from .external_builders import AddedBuilders

            own = [(package, self._table(package)) for package in (self.op_builder_dir(), HOST_BUILDERS)]
            self._added = AddedBuilders(self.name, HOST, own)
        return self._added

    def _readiness(self, class_name: str) -> str:
        # One broken builder must not hide the others, nor the error that is about to be raised.
        try:
            builder = self.create_op_builder(class_name)
            answer = builder.is_compatible() if builder is not None else None
        except Exception as problem:
            return f"broken: {type(problem).__name__}: {problem}"
        return "ready to build" if answer else "; ".join(answer.reasons) if answer is not None else "gone"


def target_for(made: BuilderClass, target: Target) -> Target | None:
    """Give the target that a builder of this class is made for under an accelerator with `target`; None: the host's.

    A class that states its `devices`, with the host among them and not this device, is an op for the host.
    """
    devices = getattr(made, "devices", (target.device,))
    return None if target.device not in devices and HOST in devices else target


def _class_at(place: str, named_by: str) -> BuilderClass:
    module, colon, attribute = place.partition(":")
    if not colon:
        raise BuilderError(named_by, f"{place!r} names no class", "Write it as 'module:Class'.")
    found: BuilderClass = getattr(importlib.import_module(module), attribute)
    return found


def _read_table(package: str) -> Mapping[str, str]:
    try:
        module = importlib.import_module(package)
    except ModuleNotFoundError as problem:
        # Only the package's own absence means "no ops": an import that fails within it is a fault to be seen.
        if problem.name is None or not f"{package}.".startswith(f"{problem.name}."):
            raise
        return {}
    try:
        table: Mapping[str, str] = module.BUILDERS
    except AttributeError:
        raise BuilderError(
            f"the builder package {package}",
            "it has no table of builders",
            "Give it BUILDERS, a dict from class name to 'module:Class'.",
        ) from None
    return table
