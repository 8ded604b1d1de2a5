"""How an accelerator finds its op builders: by the name of a package, whose table is read on first use."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

from opforge.errors import BuilderError, OpNotFoundError

from .device import Devices

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from opforge.accelerator.target import Target

    from .builder_protocol import Builder, BuilderClass
    from .external_builders import ExternalBuilders

HOST = "cpu"
HOST_BUILDERS = "opforge.builders.cpu"
"""The host's builder package. Every accelerator offers its ops: state that is moved off a device is updated there."""

NOT_MADE = {
    "DeepCompileBuilder": "it is tied to NCCL and to torch's c10d, inside DeepSpeed's engine",
    "FlashAttentionBuilder": "it wraps a closed library of the vendor",
    "InferenceCutlassBuilder": "it links a library without sources",
}
"""DeepSpeed's builders that opforge has no op for, and will not have -> why."""


class BuilderLink(Devices):
    """The op-builder part of the interface.

    A builder package has one attribute, `BUILDERS`: a dict from class name to "module:Class". A class name is looked up
    in the accelerator's own package, then in the host's, then among the builders that other packages add. Builders and
    tables are kept in this object, so that two accelerators never share one.
    """

    def __init__(self) -> None:
        super().__init__()
        self._builders: dict[str, Builder] = {}
        self._tables: dict[str, Mapping[str, str]] = {}
        self._external: ExternalBuilders | None = None

    def op_builder_dir(self) -> str:
        """Returns the dotted name of the accelerator's builder package. If it does not exist, there are no own ops."""
        return f"opforge.builders.{self.name}"

    def create_op_builder(self, class_name: str) -> Builder | None:
        """Returns the builder of that class, the same object at each call. None if there is no such op.

        Its target is this accelerator's; for an op that supports the host and not this device, it is the host.
        """
        try:
            return self._builders[class_name]
        except KeyError:
            builder_class = self.get_op_builder(class_name)
            if builder_class is None:
                return None
            builder = builder_class(target=target_for(builder_class, self.target()))
            return self._builders.setdefault(class_name, builder)

    def get_op_builder(self, class_name: str) -> BuilderClass | None:
        """Returns the builder class of that name. None if there is no such op.

        An error in importing it is raised. BuilderError is raised if another package adds the name, and what its entry
        point names cannot be used.
        """
        for package in (self.op_builder_dir(), HOST_BUILDERS):
            import_path = self._table(package).get(class_name)
            if import_path is not None:
                return _import_class(import_path, f"{package}.BUILDERS[{class_name!r}]")
        return self._external_builders().get(class_name)

    def op_builders(self) -> dict[str, str]:
        """Returns the class names of the ops that are offered, each with its owner.

        The owner is this accelerator's name or `cpu`. Only the tables are imported. `create_op_builder` also knows the
        names that a package has in UNLISTED: ops whose libraries are not here. Their builders say what is missing.
        """
        external = {name: owner for name, (owner, _) in self._external_builders().entries.items()}
        host = dict.fromkeys(self._listed(HOST_BUILDERS), HOST)
        return {**external, **host, **dict.fromkeys(self._listed(self.op_builder_dir()), self.name)}

    def op_builder_problems(self) -> dict[str, str]:
        """Returns why builders of other packages are ignored, by entry point and distribution."""
        return dict(self._external_builders().rejected)

    def load_op(self, class_name: str, verbose: bool = False) -> Any:
        """Finds or builds the op, and returns its functions; `verbose` shows the build's steps.

        Raises what the builder's `load` raises, and OpNotFoundError if the accelerator offers no such op. That error
        lists the offered ops, each with whether it can be built, and similar names.
        """
        try:
            builder = self.create_op_builder(class_name)
            if builder is None:
                readiness = {name: self._readiness(name) for name in sorted(self.op_builders())}
                refused = self.op_builder_problems() | self._external_builders().of_others(class_name)
                raise OpNotFoundError(class_name, self.name, readiness, refused, NOT_MADE.get(class_name, ""))
            return builder.load(verbose=verbose)
        except BaseException as error:
            from opforge import tracebacks

            tracebacks.shorten(error)
            raise

    def build_extension(self) -> type[Any]:
        """Returns the `build_ext` command class for a setup script that compiles against torch."""
        from torch.utils.cpp_extension import BuildExtension

        command: type[Any] = BuildExtension
        return command

    def _table(self, package: str) -> Mapping[str, str]:
        try:
            return self._tables[package]
        except KeyError:
            return self._tables.setdefault(package, _read_table(package))

    def _listed(self, package: str) -> list[str]:
        unlisted = getattr(sys.modules.get(package), "UNLISTED", ())
        return [name for name in self._table(package) if name not in unlisted]

    def _external_builders(self) -> ExternalBuilders:
        if self._external is None:
            from .external_builders import ExternalBuilders

            tables = [(package, self._table(package)) for package in (self.op_builder_dir(), HOST_BUILDERS)]
            self._external = ExternalBuilders(self.name, HOST, tables)
        return self._external

    def _readiness(self, class_name: str) -> str:
        # A broken builder must hide neither the others nor the OpNotFoundError that lists it.
        try:
            builder = self.create_op_builder(class_name)
            compatibility = builder.is_compatible() if builder is not None else None
        except Exception as error:
            return f"broken: {type(error).__name__}: {error}"
        if compatibility is None:
            return "not found"
        return "ready to build" if compatibility else "; ".join(compatibility.reasons)


def target_for(builder_class: BuilderClass, target: Target) -> Target | None:
    """Returns the target of a builder of this class under an accelerator with `target`. None means the host's.

    The host's is used if the class has `devices`, and these include the host and not the accelerator's device.
    """
    devices = getattr(builder_class, "devices", (target.device,))
    return None if target.device not in devices and HOST in devices else target


def _import_class(import_path: str, source: str) -> BuilderClass:
    module, colon, attribute = import_path.partition(":")
    if not colon:
        raise BuilderError(source, f"{import_path!r} names no class", "Write it as 'module:Class'.")
    builder_class: BuilderClass = getattr(importlib.import_module(module), attribute)
    return builder_class


def _read_table(package: str) -> Mapping[str, str]:
    try:
        module = importlib.import_module(package)
    except ModuleNotFoundError as error:
        # A missing package means "no ops". An import that fails inside it is an error, and must not look the same.
        if error.name is None or not f"{package}.".startswith(f"{error.name}."):
            raise
        return {}
    try:
        table: Mapping[str, str] = module.BUILDERS
    except AttributeError:
        raise BuilderError(
            f"the builder package {package}",
            "it has no table of builders",
            "Add BUILDERS, a dict from class name to 'module:Class'.",
        ) from None
    return table
