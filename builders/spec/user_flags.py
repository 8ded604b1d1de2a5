"""The user's own flags, from the environment."""

from __future__ import annotations

import os

VARIABLES = ("CPPFLAGS", "CXXFLAGS", "LDFLAGS")


def user_flags() -> dict[str, str]:
    """Returns the variables that hold flags and are set, each with its words separated by one space."""
    words = {name: " ".join(os.environ.get(name, "").split()) for name in VARIABLES}
    return {name: text for name, text in words.items() if text}
