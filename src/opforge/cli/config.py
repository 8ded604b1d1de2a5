"""`opforge config`: every setting in force, and where it comes from."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

import click

from opforge.errors import SettingError

from . import messages
from .guard import FAILED, OK, Guarded, json_option
from .output import emit_json, show_table

ALIASES = {
    "accelerator": "DS_ACCELERATOR",
    "allow_deprecated_fp16": "DS_ALLOW_DEPRECATED_FP16",
    "jobs": "MAX_JOBS",
}
"""The variables of other projects that are used if opforge's own is not set."""
DEFAULTS = {"cache_max_age": "180d", "cache_max_size": "10GiB", "prebuilt": "prefer"}
FLAGS = ("allow_deprecated_fp16", "cpp_extension", "full_traceback", "install", "offline", "paranoid", "triton_jit")
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


def _note(row: Mapping[str, Any]) -> str:
    return "" if row["in_files"] or row["from"] != DEFAULT else " (variable only)"


def settings_files() -> list[dict[str, Any]]:
    """Returns the settings files, with what they are and whether they exist."""
    from opforge import settings

    files = {settings.user_file(): "this user's", settings.SITE_FILE: "the site's"}
    return [{"path": path, "what": what, "exists": os.path.exists(path)} for path, what in files.items()]


def settings_in_force() -> list[dict[str, Any]]:
    """Returns a row for each setting, JSON-able: its name, variable, value, where that is from, and what is wrong.

    Raises ConfigFileError.
    """
    from opforge import settings
    from opforge.config_keys import KEYS, OF_ENVIRONMENT, variable_of

    rows, checks = [], _checks()
    for name in sorted({*KEYS, *OF_ENVIRONMENT}):
        variable = variable_of(name)
        aliases = [ALIASES[name]] if name in ALIASES else []
        value, source = settings.first(variable, *aliases)
        problem = ""
        try:
            checks.get(name, str)()
        except SettingError as error:
            problem = str(error)
        row = {"name": name, "variable": variable, "value": _shown(name, value) or _default(name)}
        rows.append(row | {"from": source or DEFAULT, "in_files": name in KEYS, "problem": problem})
    return rows


def _shown(name: str, value: str) -> str:
    """Returns a value without what is secret in it."""
    if name == "signing_key" and value:
        return "(set, not shown)"
    return re.sub(r"//[^/@\s]+@", "//***@", value)


def _default(name: str) -> str:
    from opforge import settings

    if name == "cache_dir":
        return settings.cache_dir()[0]
    if name == "trust_file":
        return settings.trust_file()
    return "0" if name in FLAGS else DEFAULTS.get(name, "")


def _checks() -> dict[str, Callable[[], object]]:
    from opforge import limit_settings, settings

    return {
        **{name: getattr(settings, name) for name in (*FLAGS, "prebuilt", "deepspeed") if name != "install"},
        **{name: getattr(limit_settings, name) for name in ("cache_max_age", "cache_max_size", "jobs", "lock_timeout")},
        "compiler_env": settings.compiler_variables,
        "install": settings.installs_kernels,
        "kernels": settings.kernel_checkouts,
    }
