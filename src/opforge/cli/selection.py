"""Which ops a command works on: the names and targets that were typed, resolved to builders."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Container, Iterable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from opforge.accelerator.target import CPU_ARCHS, Target
from opforge.cli.completion import names as completed_names
from opforge.cli.messages import show
from opforge.errors import BuilderError, OpIncompatibleError, SettingError, UnknownAcceleratorError
from opforge.foundation import working_folder

if TYPE_CHECKING:
    from opforge.builders.base import OpBuilder
    from opforge.report.ops import OfferedOp

KIND = "op:"
OWN_CLASS = "A class of your own is named by package.module:Class."
SANITIZERS = frozenset({"address", "leak", "thread", "undefined"})


class Selected(NamedTuple):
    """One op for one target."""

    name: str
    """The builder's class name, or package.module:Class."""
    target: Target | None
    """None: this machine's target."""
    builder_class: Callable[[], Any]
    """Imports and returns the class."""
    named: bool
    """Whether the op was requested by name or by target: then it is an error if it cannot be built."""
    is_typed: bool = True
    """Whether `target` was typed. Otherwise it is the accelerator's, and an op for the host alone is built for that."""

    @property
    def label(self) -> str:
        """The name and the target."""
        return self.name if self.target is None else f"{self.name} for {self.target}"

    def builder(self, debug: bool = False, sanitize: str = "", portable: bool = False) -> OpBuilder:
        """Returns the builder. Raises OpIncompatibleError, BuilderError, and whatever importing its class raises."""
        from opforge.accelerator.interface.accelerator import target_for
        from opforge.accelerator.interface.builder_protocol import create
        from opforge.builders.base import OpBuilder

        builder_class = imported(self.name, self.builder_class)
        if not (isinstance(builder_class, type) and issubclass(builder_class, OpBuilder)):
            problem, advice = "it is not a subclass of opforge.OpBuilder", "Only those can be built ahead of time"
            raise BuilderError(self.name, problem, advice)
        options: dict[str, Any] = {"portable": True} if portable else {}
        target = self.target if self.is_typed or not self.target else target_for(builder_class, self.target)
        builder: OpBuilder = create(builder_class, target, debug=debug, sanitize=sanitize, **options)
        if builder.target.device not in builder.devices:
            reason = f"it is an op for {', '.join(builder.devices)}, not for {builder.target.device}"
            raise OpIncompatibleError(self.name, str(builder.target), [reason])
        return builder


def target(value: str) -> Target:
    """Returns a target such as cpu:x86-64-v3 or cuda:sm_80+sm_90. Raises click.BadParameter."""
    try:
        return Target.parse(value)
    except SettingError as error:
        raise click.BadParameter(str(error)) from error


def _check_sanitizers(ctx: click.Context, param: click.Parameter, value: str) -> str:
    if unknown := sorted({name for name in value.split(",") if name} - SANITIZERS):
        raise click.BadParameter(f"{unknown[0]!r} is not one of {', '.join(sorted(SANITIZERS))}", ctx, param)
    return value


F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def target_option(command: F) -> F:
    """Adds --target and --cpu-level."""
    command = click.option(
        "--cpu-level",
        "levels",
        multiple=True,
        type=click.Choice(CPU_ARCHS),
        help="Short for --target cpu:LEVEL. Repeatable.",
    )(command)
    return click.option(
        "--target",
        "targets",
        multiple=True,
        type=target,
        shell_complete=completed_names.targets,
        help="A device and its architectures, such as cpu:x86-64-v3 or cuda:sm_90. This machine need not have"
        " the device. Repeatable.",
    )(command)


def mode_options(command: F) -> F:
    """Adds --debug and --sanitize."""
    command = click.option(
        "--sanitize",
        default="",
        metavar="LIST",
        callback=_check_sanitizers,
        help="Instrument the code: address, undefined, thread, leak, joined by commas.",
    )(command)
    return click.option("--debug", is_flag=True, help="Include symbols and source paths, for gdb.")(command)


def all_targets(targets: Sequence[Target], levels: Sequence[str]) -> tuple[Target, ...]:
    """Returns the targets of --target and --cpu-level together, each once."""
    return tuple(dict.fromkeys((*targets, *(Target("cpu", (level,)) for level in levels))))


def select(names: Sequence[str], targets: Sequence[Target] = ()) -> list[Selected]:
    """Returns the ops of these names for these targets.

    Without names these are all ops that are offered; without targets, those for this machine. `op:NAME` is NAME, as in
    other commands. Raises click.UsageError for a name that no package offers, with the names nearest to it.
    """
    own = [name for name in names if ":" in name and not name.startswith(KIND)]
    own_devices = {device for name in own for device in getattr(own_class(name), "devices", ())}
    offers = offered(targets, own_devices) if not names or len(own) < len(names) else []
    if not names:
        return [op for offer in offers for op in _from_offer(offer, targets, named=bool(targets))]
    selected: dict[tuple[str, str], Selected] = {}
    for name in names:
        for op in _by_name(name, targets, offers):
            selected.setdefault((op.name, str(op.target)), op)
    return list(selected.values())


def offered(targets: Sequence[Target], own_devices: Container[str] = ()) -> list[OfferedOp]:
    """Returns the ops that the targets' accelerators offer; without targets, those of the one in use and the CPU.

    Raises click.UsageError for a target whose device has no accelerator, unless `own_devices` has it: these are the
    devices of the user's own classes.
    """
    from opforge.report.ops import offers

    try:
        return offers(dict.fromkeys(target.device for target in targets))
    except UnknownAcceleratorError as error:
        if not targets:
            raise  # the environment names it, not this command
        if error.name in own_devices:
            others = [target for target in targets if target.device != error.name]
            return offered(others, own_devices) if others else []
        raise click.UsageError(str(error)) from error


def _by_name(name: str, targets: Sequence[Target], offers: Sequence[OfferedOp]) -> list[Selected]:
    plain = name.removeprefix(KIND)
    if ":" in plain:
        return _own(plain, targets)
    matching = [offer for offer in offers if normalized(offer.name) == normalized(plain)]
    if not matching:
        if plain != name:
            with contextlib.suppress(click.UsageError):
                return _own(name, targets)  # of a module with the name `op`
        raise click.UsageError(unknown_name(plain, [offer.name for offer in offers], targets))
    if not targets:
        matching = matching[:1]  # the accelerator in use comes before the CPU
    return [op for offer in matching for op in _from_offer(offer, targets, named=True)]


def _own(import_path: str, targets: Sequence[Target]) -> list[Selected]:
    own = own_class(import_path)
    return [Selected(import_path, target, lambda: own, True) for target in _matching_targets(own, targets) or (None,)]


def _matching_targets(own: Any, targets: Sequence[Target]) -> Sequence[Target]:
    """Returns the targets whose device the class declares. All of them if there is none, so that each is refused."""
    devices = getattr(own, "devices", ())
    return [target for target in targets if target.device in devices] or targets


def _from_offer(offer: OfferedOp, targets: Sequence[Target], named: bool) -> list[Selected]:
    if not targets:
        return [Selected(offer.name, offer.accelerator.target(), offer.builder_class, named, is_typed=False)]
    from opforge.accelerator.registry import accelerator_name

    # Letter case is ignored here. The builder then refuses a device whose name is not spelled exactly.
    accelerator = offer.accelerator.name.lower()
    matching = [target for target in targets if accelerator_name(target.device).lower() == accelerator]
    return [Selected(offer.name, target, offer.builder_class, named) for target in matching]


def normalized(name: str) -> str:
    """Returns a name in the form in which names are compared: CPUAdamBuilder, CPUAdam and cpu_adam are equal."""
    return name.lower().replace("_", "").replace("-", "").removesuffix("builder")


def near_names(name: str, ops: Iterable[str]) -> list[str]:
    """Returns the names of ops that are similar to a name, the nearest first."""
    from difflib import get_close_matches

    by_form = {normalized(op): op for op in ops}
    return [by_form[form] for form in get_close_matches(normalized(name), list(by_form), n=3, cutoff=0.5)]


def unknown_name(name: str, offered: Sequence[str], targets: Sequence[Target] = ()) -> str:
    """Returns the message about a name that no package offers: the nearest names, all, and how to name a class."""
    near = near_names(name, offered)
    where = f" for {', '.join(sorted({target.device for target in targets}))}" if targets else " here"
    suggestion = f" Did you mean {' or '.join(near)}?" if near else ""
    offers = f"Offered: {', '.join(dict.fromkeys(offered))}." if offered else "None is offered."
    return f"{name!r} is not an op that is offered{where}.{suggestion} {offers} {OWN_CLASS}"


def own_class(import_path: str) -> Any:
    """Returns the class at `module:Class`, searching the working folder too. Raises click.UsageError, BuilderError."""
    module_name, _, attribute = import_path.partition(":")
    module = own_module(import_path)
    found = getattr(module, attribute, None)
    if not (isinstance(found, type) and hasattr(found, "load")):
        declared = sorted(name for name, value in vars(module).items() if _is_declared(value))
        listed = f" It has: {', '.join(declared)}." if declared else ""
        what = "no" if not hasattr(module, attribute) else "no class of a builder that is named"
        raise click.UsageError(f"{import_path}: the module {module_name!r} has {what} {attribute!r}.{listed}")
    return found


def own_module(import_path: str) -> ModuleType:
    """Returns the module of `module:Class`, searching the working folder too. Raises what `own_class` raises."""
    module_name, _, attribute = import_path.partition(":")
    if not module_name.strip(".") or "/" in module_name or module_name[0] == "." or module_name.endswith(".py"):
        parts = [part.strip(".") for part in module_name.removesuffix(".py").split("/") if part.strip(".")]
        example = f"{'.'.join(parts) or 'package.module'}:{attribute or 'Class'}"
        raise click.UsageError(
            f"{import_path!r} does not name a module: expected package.module:Class, such as {example}"
        )
    try:
        return imported(module_name, lambda: working_folder.import_module(module_name))
    except (Exception, SystemExit) as error:  # a script may call sys.exit() when it is imported
        if isinstance(error, FileNotFoundError) and error.filename is None:
            raise  # the working folder was removed
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{module_name}.".startswith(f"{missing}."):
            problem = f"there is no module {missing!r} in this folder or on PYTHONPATH."
            raise click.UsageError(f"{import_path}: {problem}") from error
        raise BuilderError.of_import(import_path, error, f"python -c 'import {module_name}'") from error


def imported(name: str, load: Callable[[], T]) -> T:
    """Returns the result of `load`, which imports it. Warns if ops are loaded: the command reports their later state.

    What the module prints goes to standard error: standard output may be one JSON document.
    """
    from opforge.fast_path.library import loaded_ops

    before = loaded_ops()
    with contextlib.redirect_stdout(sys.stderr):
        result = load()
    if names := sorted({op for key, op in loaded_ops().items() if key not in before}):
        effect = f"Importing {name} loads {', '.join(names)}, and builds what is not stored, before this command looks"
        show("warning", f"{effect}. Call load() in a function, at the first use of the op.")
    return result


def _is_declared(value: object) -> bool:
    from opforge.builders.base import OpBuilder

    return isinstance(value, type) and issubclass(value, OpBuilder) and value is not OpBuilder
