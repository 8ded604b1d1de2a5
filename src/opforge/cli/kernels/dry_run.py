"""`opforge install --dry-run`: which variant would be installed, and why each other would not."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from opforge.cli.output import emit_json, show_table

from .options import is_folder

if TYPE_CHECKING:
    from opforge.packages.choose.candidate import VariantCandidate
    from opforge.packages.choose.environment import Environment
    from opforge.packages.registry.selection import Verified


def show(kernels: Sequence[str], machine: str | None, urls: Sequence[str], offline: bool, as_json: bool) -> bool:
    """Prints the variants of packages with what is decided of each; returns whether each package has one that fits.

    `machine` is the file of another one; None for this one.
    """
    from opforge.packages.choose import environment, order

    here = _environment(machine) if machine else environment.here(["all"])
    results = []
    for kernel in kernels:
        where, candidates = _candidates(kernel, urls, offline, here)
        decisions = order.decide(candidates, here)
        chosen = [candidate.label for candidate in order.best(candidates, here)]
        variants = [
            {
                "label": choice.candidate.label,
                "fits": choice.candidate.label in chosen or not choice.problem,
                "problem": choice.problem,
                "properties": choice.candidate.properties.to_json(),
            }
            for choice in decisions
        ]
        results.append({"kernel": kernel, "where": where, "chosen": chosen, "variants": variants})
        if not as_json:
            rows = []
            for choice in decisions:
                is_chosen = choice.candidate.label in chosen
                state = "chosen" if is_chosen else "rejected" if choice.problem else "fits"
                rows.append((choice.candidate.label, state, "" if is_chosen else choice.problem))
            show_table(("VARIANT", "STATE", "REASON"), rows)
            click.echo(where, err=True)
    if as_json:
        emit_json({"kernels": results})
    return all(result["chosen"] for result in results)


def _environment(path: str) -> Environment:
    from opforge.cache.schema import Fields
    from opforge.foundation.files import read_file
    from opforge.packages.choose import environment

    expected = "a file of opforge report --machine"
    return environment.from_json(Fields.parse(read_file(path), path, expected, 1 << 20).values, path)


def _candidates(
    kernel: str, urls: Sequence[str], offline: bool, here: Environment
) -> tuple[str, list[VariantCandidate]]:
    """Returns where a package was found, and its variants. Raises KernelNotFoundError and what reading it raises."""
    from opforge.errors import KernelFormatError, KernelNotFoundError
    from opforge.packages.choose import order
    from opforge.packages.load import checkout
    from opforge.packages.registry import selection

    if is_folder(kernel):
        variants, problems = checkout.variants(os.path.abspath(kernel))
        if problems or not variants:
            problem = problems[0] if problems else "there is no variant in it"
            raise KernelFormatError(kernel, problem, "a folder that opforge pack has written")
        return f"in {kernel}", [choice.candidate for choice in variants]
    name, numbers = selection.parse_requirement(kernel)
    missing = list[str]()
    newest: Verified | None = None
    for verified in selection.releases(name, numbers, selection.sources(urls, offline)):
        if isinstance(verified, selection.PassedOver):
            missing.append(verified.reason)
            continue
        parts = [part.candidate for part in verified.release.variants]
        newest = newest or verified
        if order.best(parts, here):  # an older one that fits is what would be installed
            return _signed(verified), parts
    if newest is not None:
        return _signed(newest), [part.candidate for part in newest.release.variants]
    advice = "Check the name and the version, or name a remote with --remote."
    raise KernelNotFoundError(kernel, missing, advice)


def _signed(verified: Verified) -> str:
    release = verified.release
    return f"release {release.version} of {verified.source.remote}, signed by {verified.signer or 'nobody'}"
