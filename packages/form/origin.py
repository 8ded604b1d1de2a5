"""Where a release came from, if it is a state of the hub: `Repository@COMMIT#NAME`; NAME is a branch or a tag."""

from __future__ import annotations

HUB = "hf:"
"""Prefix of the origin of a mirrored release."""


def text(repository: str, commit: str, name: str = "") -> str:
    """Returns the text for a state."""
    return f"{repository}@{commit}#{name}" if name and name != commit else f"{repository}@{commit}"


def is_revision(source: str, package: str, revision: str) -> bool:
    """Returns whether a source is this commit, branch or tag of the package's repository."""
    repository, _at, state = source.removeprefix(HUB).partition("@")
    return repository.lower() == package and revision in state.split("#", 1)
