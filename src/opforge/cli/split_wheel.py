"""`opforge split-wheel`: a wheel with built ops becomes wheel variants."""

from __future__ import annotations

import os
from collections.abc import Sequence

import click

from .guard import FolderPath, Guarded, json_option
from .output import emit_json, show_table, size_text


@click.command("split-wheel", cls=Guarded)
@click.argument("wheels", metavar="WHEEL...", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--wheel-dir",
    "-w",
    default="wheelhouse",
    show_default=True,
    type=FolderPath(),
    help="The folder for the variants.",
)
@click.option(
    "--label",
    "given",
    multiple=True,
    metavar="TARGET=LABEL",
    help="The label of a target's variant, such as cuda:sm_90=hopper. Repeatable.",
)
@click.option(
    "--plain",
    type=click.Choice(["all", "null"]),
    default="all",
    show_default=True,
    help="What the wheel for other installers holds: all code, or that of the variant without properties.",
)
@click.option("--partial", is_flag=True, help="Let variants lack ops, which are built when they are loaded.")
@json_option
def command(
    wheels: Sequence[str], wheel_dir: str, given: Sequence[str], plain: str, partial: bool, as_json: bool
) -> None:
    """Split a wheel that holds built ops into one wheel for each kind of machine.

    Each target that the ops were built for becomes a wheel variant: a level of x86-64, or a group of architectures of
    a GPU. The variant "null" has the code of the lowest level. An installer that knows variants downloads the one that
    fits (uv --preview-features wheel-variants); others take the plain wheel. Repair a wheel before it is split.

    \b
    Examples:
      opforge split-wheel dist/my_op-0.1.0-py3-none-manylinux_2_34_x86_64.whl
      opforge split-wheel dist/*.whl --wheel-dir dist/variants --label cuda:sm_90=hopper --plain null
    """
    from opforge.backend.split import split

    labels = _labels(given)
    written = [each for wheel in wheels for each in split(wheel, wheel_dir, labels, plain, partial)]
    if as_json:
        emit_json({"folder": wheel_dir, "wheels": [each._asdict() for each in written]})
        return
    rows = [
        (each.label or "-", size_text(each.size), _properties_text(each.properties), os.path.join(wheel_dir, each.name))
        for each in written
    ]
    show_table(("VARIANT", "SIZE", "NEEDS", "WHEEL"), rows)


def _labels(given: Sequence[str]) -> dict[str, str]:
    labels = {}
    for text in given:
        target, separator, label = text.rpartition("=")
        if not separator or not target or not label:
            raise click.UsageError(f"--label {text}: expected TARGET=LABEL, such as cuda:sm_90=hopper")
        labels[target] = label
    return labels


def _properties_text(properties: object) -> str:
    assert isinstance(properties, dict)
    words = [
        f"{feature}={'|'.join(values)}" for features in properties.values() for feature, values in features.items()
    ]
    return " ".join(words) or "nothing"
