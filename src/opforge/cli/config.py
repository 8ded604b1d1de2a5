"""`opforge config`: every setting in force, and where it comes from."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from opforge.errors import SettingError, UnknownAcceleratorError

from . import messages
from .guard import FAILED, OK, Guarded, json_option
from .output import emit_json, show_table

if TYPE_CHECKING:
    from opforge.foundation.settings import Setting

DEFAULT = "default"


@click.command("config", cls=Guarded)
@json_option
def command(as_json: bool) -> None:
    """Show every setting in force and where it comes from: a variable, a settings file, or the default.

    A variable comes first, then the user's file, then the site's. An empty variable stands for the default. The keys of
    the files are the names that are shown here; those marked `variable only` cannot be in a file.

    \b
    Examples:
      opforge config
      OPFORGE_JOBS=2 opforge config
    """
    rows = settings_in_force()
    problems = [row["problem"] for row in rows if row["problem"]]
    files = settings_files()
    if as_json:
        emit_json({"settings": {row.pop("name"): row for row in rows}, "files": files})
    else:
        table = [(row["name"], row["value"], row["from"] + _note(row)) for row in rows]
        show_table(("SETTING", "VALUE", "FROM"), table)
        for file in files:
            click.echo(f"settings file: {file['path']} ({file['what']}{'' if file['exists'] else ', does not exist'})")
        for problem in problems:
            messages.show_error(problem)
    sys.exit(FAILED if problems else OK)


def _check_accelerator(value: str, source: str) -> None:
    from opforge.accelerator import registry

    registry.find(value.strip(), source)


def _check_remotes(_value: str, _source: str) -> None:
    from opforge.remote import remotes

    remotes.configured()


CHECKED_ELSEWHERE: Mapping[str, Callable[[str, str], object]] = {
    "accelerator": _check_accelerator,
    "remotes": _check_remotes,
}
"""The settings that the parts above read further. Each raises what its first use would."""


def _note(row: Mapping[str, Any]) -> str:
    return "" if row["in_files"] or row["from"] != DEFAULT else " (variable only)"


def settings_files() -> list[dict[str, Any]]:
    """Returns the settings files, with what they are and whether they exist."""
    from opforge.foundation import settings

    files = {settings.user_file(): "this user's", settings.SITE_FILE: "the site's"}
    return [{"path": path, "what": what, "exists": os.path.exists(path)} for path, what in files.items()]


def settings_in_force() -> list[dict[str, Any]]:
    """Returns a row for each setting, JSON-able: its name, variable, value, where that is from, and what is wrong.

    Raises ConfigFileError.
    """
    from opforge.foundation.settings import TABLE

    rows = []
    for name, setting in sorted(TABLE.items()):
        value, source = setting.found()
        problem = ""
        try:
            setting()
            if name in CHECKED_ELSEWHERE and value:
                CHECKED_ELSEWHERE[name](value, source)
        except (SettingError, UnknownAcceleratorError) as error:
            problem = str(error)
        row = {"name": name, "variable": setting.variable, "value": _shown(setting, value) or setting.default_text()}
        rows.append(row | {"from": source or DEFAULT, "in_files": setting.in_files, "problem": problem})
    return rows


def _shown(setting: Setting[Any], value: str) -> str:
    """Returns a value without what is secret in it."""
    if setting.is_secret and value:
        return "(set, not shown)"
    from opforge.remote.stores.urls import masked

    return re.sub(r"[^\s,]+", lambda word: masked(word[0]), value.strip())
