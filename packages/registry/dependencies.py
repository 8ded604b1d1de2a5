"""Chooses releases that agree with each other: packages that need ranges of others, newest first, by resolvelib."""

from __future__ import annotations

import graphlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from opforge.errors import ExtraNotInstalledError, KernelDependencyError
from opforge.packages.choose import environment
from opforge.packages.choose.environment import Environment
from opforge.packages.form import origin, version
from opforge.packages.form.version import Range, Version

from . import selection
from .selection import Choice, Source

if TYPE_CHECKING:
    from types import ModuleType

MAX_ROUNDS = 10_000
MAX_PAGES = 20
"""How often further releases of a package are looked for, after those of one look could not be used."""


class Need(NamedTuple):
    """A range of a package's versions, or its state at a revision on the hub; and who needs it."""

    name: str
    numbers: Range
    needed_by: str = "your request"
    revision: str = ""

    def __str__(self) -> str:
        """Returns the need as one line."""
        what = f"of the revision {self.revision}" if self.revision else self.numbers
        return f"{self.needed_by} needs {self.name} {what}"

    def is_met_by(self, offer: ReleaseOffer) -> bool:
        """Returns whether a release is one of these."""
        source = offer.choice.verified.release.source
        is_state = not self.revision or origin.is_revision(source, self.name, self.revision)
        return is_state and offer.version in self.numbers


class ReleaseOffer:
    """A release that may be chosen."""

    def __init__(self, choice: Choice) -> None:
        self.choice = choice
        self.name, self.version = choice.verified.release.name, choice.verified.release.version

    @property
    def needs(self) -> list[Need]:
        """Returns the needs of the chosen variants."""
        by = f"{self.name} {self.version}"
        needed = {name: text for part in self.choice.variants for name, text in part.candidate.depends.items()}
        needs = []
        for name, text in sorted(needed.items()):
            revision = text[1:] if text.startswith("@") else ""
            needs.append(Need(name, version.parse_range(None if revision else text or None), by, revision))
        return needs


class _Provider:
    """The provider for resolvelib: names, the fitting releases of a name, and the requirements of a release."""

    def __init__(self, offers: Callable[[str, Range], list[ReleaseOffer]]) -> None:
        self._offers = offers

    def identify(self, requirement_or_candidate: Need | ReleaseOffer) -> str:
        return requirement_or_candidate.name

    def get_preference(self, identifier: str, *_arguments: Any, **_keywords: Any) -> str:
        return identifier

    def narrow_requirement_selection(self, identifiers: Iterable[str], *_arguments: Any, **_keywords: Any) -> Any:
        return identifiers

    def find_matches(
        self,
        identifier: str,
        requirements: Mapping[str, Iterator[Need]],
        incompatibilities: Mapping[str, Iterator[ReleaseOffer]],
    ) -> Callable[[], Iterator[ReleaseOffer]]:
        needs = list(requirements[identifier])
        refused = {offer.version for offer in incompatibilities[identifier]}

        def fitting() -> Iterator[ReleaseOffer]:
            """Yields the releases that fit, the newest first; what is behind a page of them once those have failed."""
            # Only so many releases are looked at in one range: it must not hold what another need excludes.
            numbers, seen = version.joined(need.numbers for need in needs), set[Version]()
            for _page in range(MAX_PAGES):
                offers = [offer for offer in self._offers(identifier, numbers) if offer.version not in seen]
                for offer in offers:
                    if offer.version not in refused and all(need.is_met_by(offer) for need in needs):
                        yield offer
                if not offers:
                    return
                seen |= {offer.version for offer in offers}
                numbers = version.joined([numbers, *map(version.without, sorted(offer.version for offer in offers))])

        return fitting

    def is_satisfied_by(self, requirement: Need, candidate: ReleaseOffer) -> bool:
        return requirement.is_met_by(candidate)

    def get_dependencies(self, candidate: ReleaseOffer) -> list[Need]:
        return candidate.needs


def resolve(
    requirements: Sequence[tuple[str, Range]],
    among: Sequence[Source],
    here: Callable[[set[str]], Environment] = environment.here,
    all_platforms: bool = False,
    kept: Mapping[str, Version] | None = None,
) -> list[Choice]:
    """Returns a release of each package, and of each that these need, sorted by name.

    `kept` are the releases that packages which others need had before: each is taken again if it can be.

    Raises KernelDependencyError if no releases agree, or if they need each other in a circle; what `choose` raises.
    """
    chosen = [selection.choose(name, numbers, among, here, all_platforms) for name, numbers in requirements]
    offers = {offer.name: offer for offer in map(ReleaseOffer, chosen)}
    if any(offer.needs for offer in offers.values()) or len(offers) < len(chosen):
        offers = _backtrack(requirements, among, here, all_platforms, kept or {})
    _refuse_circles(offers)
    return [offers[name].choice for name in sorted(offers)]


def _backtrack(
    requirements: Sequence[tuple[str, Range]],
    among: Sequence[Source],
    here: Callable[[set[str]], Environment],
    all_platforms: bool,
    kept: Mapping[str, Version],
) -> dict[str, ReleaseOffer]:
    resolvelib = _resolvelib()
    listed: dict[tuple[str, Range], list[ReleaseOffer]] = {}
    notes: dict[str, list[str]] = {}

    def offers(name: str, numbers: Range) -> list[ReleaseOffer]:
        if (name, numbers) not in listed:
            reasons = list[str]()
            ranges = [version.exactly(kept[name])] if name in kept and kept[name] in numbers else []
            by_version: dict[Version, ReleaseOffer] = {}  # the first is tried first
            for part in (*ranges, numbers):
                for choice in selection.fitting(name, part, among, here, all_platforms):
                    if isinstance(choice, selection.PassedOver):
                        reasons.append(choice.reason)
                    else:
                        by_version.setdefault(choice.verified.release.version, ReleaseOffer(choice))
            listed[name, numbers] = [*by_version.values()]
            notes[name] = [*dict.fromkeys([*notes.get(name, ()), *reasons])]
        return listed[name, numbers]

    needs = [Need(name, numbers) for name, numbers in requirements]
    try:
        result = resolvelib.Resolver(_Provider(offers), resolvelib.BaseReporter()).resolve(needs, max_rounds=MAX_ROUNDS)
    except resolvelib.ResolutionImpossible as error:
        lines = sorted({str(cause.requirement) for cause in error.causes})
        names = sorted({cause.requirement.name for cause in error.causes})
        lines += [line for name in names for line in notes.get(name, ())]
        raise KernelDependencyError(", ".join(name for name, _numbers in requirements), lines) from error
    except resolvelib.ResolutionTooDeep as error:
        problem = f"no releases were found that agree, after {MAX_ROUNDS} rounds"
        raise KernelDependencyError(", ".join(name for name, _numbers in requirements), [problem]) from error
    mapping: dict[str, ReleaseOffer] = result.mapping
    return mapping


def _refuse_circles(offers: Mapping[str, ReleaseOffer]) -> None:
    """Raises KernelDependencyError, which names the packages of a circle in their order."""
    needed = {name: [need.name for need in offers[name].needs if need.name in offers] for name in sorted(offers)}
    try:
        graphlib.TopologicalSorter(needed).prepare()
    except graphlib.CycleError as error:
        circle = error.args[1][::-1]
        raise KernelDependencyError(circle[0], [" needs ".join(circle)]) from None


def _resolvelib() -> ModuleType:
    try:
        import resolvelib
    except ImportError as error:
        raise ExtraNotInstalledError("Resolving packages that need others", "resolvelib", "packages") from error
    return resolvelib
