"""Warnings about settings that do nothing: misspelt names, layers that are missing or cannot be read."""

from __future__ import annotations

import logging
import os

from opforge.foundation import formats, settings
from opforge.foundation.files import folder_names

log = logging.getLogger("opforge")
PREFIX = "OPFORGE_"
NEARNESS = 0.8
"""How similar a name must be. Other programs have variables with this prefix too."""
_warned: set[str] = set()
"""The texts that this process has logged."""


def warn_of_useless_settings() -> None:
    """Logs a warning for each setting that does nothing, once a process. Not on the path of a hit."""
    for text in problems():
        if text not in _warned:
            _warned.add(text)
            log.warning(text)


def problems() -> list[str]:
    """Returns the problems of the environment: variables with almost a setting's name, layers that provide nothing."""
    import difflib

    known = [setting.variable for setting in settings.TABLE.values()]
    texts = [
        f"{name} is not a variable of opforge's, and is ignored. Did you mean {near}?"
        for name in sorted(name for name in os.environ if name.startswith(PREFIX) and name not in known)
        for near in difflib.get_close_matches(name, known, n=1, cutoff=NEARNESS)
    ]
    texts += _unknown_owners()
    for layer in settings.cache_layers():
        if problem := layer_problem(layer):
            beside = [] if os.path.lexists(layer) else folder_names(os.path.dirname(layer))
            names = difflib.get_close_matches(os.path.basename(layer), beside, n=1)
            near = f" Did you mean {os.path.join(os.path.dirname(layer), names[0])}?" if names else ""
            texts.append(f"The layer {layer}, which {settings.cache_layers.found()[1]} names, {problem}.{near}")
    return texts


def layer_problem(layer: str) -> str:
    """Returns why a layer provides nothing, such as "does not exist"; empty if it may, also one that is still empty."""
    try:
        os.stat(f"{layer}/{formats.STORE}/descriptions/.")  # the dot asks for the right to search the folder
    except FileNotFoundError:
        if not os.path.isdir(layer):
            return "does not exist"
        holds_files = os.access(layer, os.R_OK) and bool(os.listdir(layer))
        return "holds other files, and no ops of this format" if holds_files else ""
    except NotADirectoryError:
        return "is not a folder"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return ""


def _unknown_owners() -> list[str]:
    """Returns a line for each user among the trusted owners that this system does not have."""
    import difflib
    import pwd

    names = [name for name in settings.trusted_owners() if not name.isdecimal()]
    if not names:
        return []
    users, source = [user.pw_name for user in pwd.getpwall()], settings.trusted_owners.found()[1]
    texts = []
    for name in names:
        try:
            pwd.getpwnam(name)  # a directory service need not list its users
        except KeyError:
            near = difflib.get_close_matches(name, users, n=1)
            meant = f" Did you mean {near[0]}?" if near else ""
            texts.append(f"{source} names the user {name!r}, and this system has no such user.{meant}")
    return texts
