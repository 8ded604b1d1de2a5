"""The process's environment: its variables as they are now, and the user's folders, which some of them name."""

from __future__ import annotations

import os
from collections.abc import Mapping


def variables() -> Mapping[bytes, bytes]:
    """Returns the environment as it is now, without a copy where Python keeps it as bytes.

    `os.environ` decodes and encodes at each access, which would be a tenth of a hit's time.
    """
    encoded: Mapping[bytes, bytes] | None = getattr(os.environ, "_data", None) if os.supports_bytes_environ else None
    if encoded is None:
        return {os.fsencode(name): os.fsencode(value) for name, value in os.environ.items()}
    return encoded


def variable(name: str) -> str:
    """Returns the value of another program's variable, such as PATH; empty if it is not set."""
    return os.fsdecode(variables().get(name.encode(), b""))


def own(setting: str) -> str:
    """Returns the variable of a setting of opforge's."""
    return f"OPFORGE_{setting.upper()}"


def first(*names: str) -> str:
    """Returns the value of the first of these variables that is not blank; empty if there is none."""
    return next((value for value in (variable(name).strip() for name in names) if value), "")


def user_folder(name: str, default: str) -> str:
    """Returns the folder that an XDG variable names or, if it names no absolute one, `default` in the user's home."""
    here = variables()
    chosen = os.fsdecode(here.get(name.encode(), b""))
    if chosen[:1] == "/":
        return chosen
    home = os.fsdecode(here.get(b"HOME", b"")).rstrip("/")
    # Looking a missing HOME up takes ten times as long as the rest of this function.
    if home[:1] != "/":
        from opforge import trust

        home = trust.listed_home()
    # In a container a user may have none. A folder below the working one is anybody's, and says whom opforge trusts.
    return f"{home}/{default}"


def config_dir() -> str:
    """Returns the folder of this user's keys and trust file: $XDG_CONFIG_HOME/opforge, by default in ~/.config."""
    return f"{user_folder('XDG_CONFIG_HOME', '.config')}/opforge"


def state_dir() -> str:
    """Returns the user's folder for what must not be forgotten: $XDG_STATE_HOME/opforge, by default in ~/.local."""
    return f"{user_folder('XDG_STATE_HOME', '.local/state')}/opforge"


def data_dir() -> str:
    """Returns the user's folder for what is installed, as opposed to cached: $XDG_DATA_HOME/opforge."""
    return f"{user_folder('XDG_DATA_HOME', '.local/share')}/opforge"


def cache_home() -> str:
    """Returns the user's folder for caches, of all programs: $XDG_CACHE_HOME, by default ~/.cache."""
    return user_folder("XDG_CACHE_HOME", ".cache")
