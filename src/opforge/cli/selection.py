"""Which ops a command is about: the names and targets that were typed, resolved to builders."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Container, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from opforge.accelerator.target import CPU_ARCHS, Target
from opforge.errors import BuilderError, OpIncompatibleError, SettingError, UnknownAcceleratorError

if TYPE_CHECKING:
    from opforge.builders.base import OpBuilder
    from opforge.report.facts import Offer

OWN = "One of your own: package.module:Class."
SANITIZERS = frozenset({"address", "leak", "thread", "undefined"})


class Selected(NamedTuple):
    """One op for one target."""

    name: str
    """The builder's class name, or package.module:Class."""
    target: Target | None
    """None: this machine's."""
    builder_class: Callable[[], Any]
    named: bool
    """Whether it was asked for by name or by target, so that "it cannot be" is a failure."""

    @property
    def label(self) -> str:
        """The name and the target, as one line of a report names them."""
        return self.name if self.target is None else f"{self.name} for {self.target}"

    def builder(self, debug: bool = False, sanitize: str = "", portable: bool = False) -> OpBuilder:
        """The builder. Raises OpIncompatibleError, BuilderError, and whatever importing its class raises."""
        from opforge.builders.base import OpBuilder

        found = self.builder_class()
        if not (isinstance(found, type) and issubclass(found, OpBuilder)):
            raise BuilderError(
                self.name, "it is no subclass of opforge.OpBuilder", "Only those can be built ahead of time"
            )
        options: dict[str, Any] = {"portable": True} if portable else {}
        made = found(self.target, debug=debug, sanitize=sanitize, **options)
        if made.target.device not in made.devices:
            reason = f"it is an op for {', '.join(made.devices)}, not for {made.target.device}"
            raise OpIncompatibleError(self.name, str(made.target), [reason])
        return made


def target(value: str) -> Target:
    """A target such as cpu:x86-64-v3 or cuda:sm_80+sm_90. Raises click.BadParameter."""
    try:
        return Target.parse(value)
    except SettingError as error:
        raise click.BadParameter(str(error)) from error


def _sanitizers(ctx: click.Context, param: click.Parameter, value: str) -> str:
    unknown = sorted({one for one in value.split(",") if one} - SANITIZERS)
    if unknown:
        raise click.BadParameter(f"{unknown[0]!r} is none of {', '.join(sorted(SANITIZERS))}", ctx, param)
    return value


F = TypeVar("F", bound=Callable[..., Any])


def target_option(command: F) -> F:
    """Add --target and --cpu-level."""
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
        help="For this device and architecture, such as cpu:x86-64-v3 or cuda:sm_90; it need not be here. Repeatable.",
    )(command)


def mode_options(command: F) -> F:
    """Add --debug and --sanitize."""
    command = click.option(
        "--sanitize",
        default="",
        metavar="LIST",
        callback=_sanitizers,
        help="Instrument the code: address, undefined, thread, leak; joined by commas.",
    )(command)
    return click.option("--debug", is_flag=True, help="Keep symbols and source paths, for gdb.")(command)


def all_targets(targets: Sequence[Target], levels: Sequence[str]) -> tuple[Target, ...]:
    """What --target and --cpu-level ask for together, each once."""
    return tuple(dict.fromkeys((*targets, *(Target("cpu", (level,)) for level in levels))))


def select(names: Sequence[str], targets: Sequence[Target] = ()) -> list[Selected]:
    """The ops of these names for these targets; without names all that are offered, without targets this machine's.

    Raises click.UsageError for a name that nobody offers, with the names that are near.
    """
    reached = {device for name in names if ":" in name for device in getattr(_own_class(name), "devices", ())}
    known = offered(targets, reached) if not names or any(":" not in name for name in names) else []
    if not names:
        return [one for offer in known for one in _of_offer(offer, targets, named=bool(targets))]
    found: dict[tuple[str, str], Selected] = {}
    for name in names:
        for one in _by_name(name, targets, known):
            found.setdefault((one.name, str(one.target)), one)
    return list(found.values())


def offered(targets: Sequence[Target], reached: Container[str] = ()) -> list[Offer]:
    """The ops that the targets' accelerators offer; without targets, the one in use and the CPU's.

    A device without an accelerator is refused, except one of those `reached`: an op of one's own is for it.
    """
    from opforge.report.facts import offers

    try:
        return offers(dict.fromkeys(target.device for target in targets))
    except UnknownAcceleratorError as error:
        if not targets:
            raise  # the environment names it, not this command
        if error.name in reached:
            rest = [target for target in targets if target.device != error.name]
            return offered(rest, reached) if rest else []
        raise click.UsageError(str(error)) from error


def _by_name(name: str, targets: Sequence[Target], known: Sequence[Offer]) -> list[Selected]:
    if ":" in name:
        found = _own_class(name)
        return [Selected(name, target, lambda: found, True) for target in _within_reach(found, targets) or (None,)]
    matching = [offer for offer in known if folded(offer.name) == folded(name)]
    if not matching:
        raise click.UsageError(_unknown(name, [offer.name for offer in known], targets))
    if not targets:
        matching = matching[:1]  # the accelerator in use comes before the CPU
    return [one for offer in matching for one in _of_offer(offer, targets, named=True)]


def _within_reach(found: Any, targets: Sequence[Target]) -> Sequence[Target]:
    """Those of the targets that a class declares a device for; all of them where it declares none of these."""
    devices = getattr(found, "devices", ())
    return [target for target in targets if target.device in devices] or targets


def _of_offer(offer: Offer, targets: Sequence[Target], named: bool) -> list[Selected]:
    if not targets:
        return [Selected(offer.name, offer.accelerator.target(), offer.builder_class, named)]
    from opforge.builders.spec.targets import ACCELERATORS

    # An accelerator is known by its name in any case; what a device's name must look like, the builder says.
    named_so = offer.accelerator.name.lower()
    mine = [one for one in targets if ACCELERATORS.get(one.device, one.device).lower() == named_so]
    return [Selected(offer.name, target, offer.builder_class, named) for target in mine]


def folded(name: str) -> str:
    """A name in the form in which names are compared: CPUAdamBuilder, CPUAdam and cpu_adam are one."""
    return name.lower().replace("_", "").replace("-", "").removesuffix("builder")


def _unknown(name: str, known: Sequence[str], targets: Sequence[Target]) -> str:
    import difflib

    by_form = {folded(one): one for one in known}
    near = [by_form[one] for one in difflib.get_close_matches(folded(name), list(by_form), n=3, cutoff=0.5)]
    where = f" for {', '.join(sorted({target.device for target in targets}))}" if targets else " here"
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    offer = f" Offered: {', '.join(dict.fromkeys(known))}." if known else " None is offered."
    return f"no op {name!r} is known{where}.{hint}{offer} {OWN}"


def _own_class(place: str) -> Any:
    """The class at `module:Class`, looked for in the working folder too. Raises click.UsageError, BuilderError."""
    module_name, _, attribute = place.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does: a console script has its own folder there
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            raise click.UsageError(f"{place}: there is no module {error.name!r}, here or on PYTHONPATH.") from error
        raise BuilderError(place, f"its module needs {error.name!r}, which is not installed", "Install it") from error
    except Exception as error:
        advice = "Mend the module, and import it with python -c to see the whole traceback"
        raise BuilderError(place, f"importing its module failed: {type(error).__name__}: {error}", advice) from error
    if not hasattr(module, attribute):
        known = sorted(name for name, value in vars(module).items() if _is_declared(value))
        listed = f" It has: {', '.join(known)}." if known else ""
        raise click.UsageError(f"{place}: the module {module_name!r} has no {attribute!r}.{listed}")
    return getattr(module, attribute)


def _is_declared(value: object) -> bool:
    from opforge.builders.base import OpBuilder

    return isinstance(value, type) and issubclass(value, OpBuilder) and value is not OpBuilder
