"""Whether the Python packages that a kernel needs are installed. Nothing is installed here."""

from __future__ import annotations

from collections.abc import Sequence

HUBS = {"tvm-ffi": "apache-tvm-ffi", "onednn": "onednn-devel"}
"""The names that the hub has for distributions of another name."""


def problem(requirements: Sequence[str]) -> str:
    """Returns which of these requirements is not met, or an empty text. Each is a text of PEP 508."""
    from importlib import metadata

    from packaging.requirements import InvalidRequirement, Requirement

    for text in requirements:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            return f"it needs {text!r}, expected a requirement such as torch>=2.10"
        if requirement.name in HUBS:
            requirement.name = HUBS[requirement.name]
            text = str(requirement)
        if requirement.marker and not requirement.marker.evaluate():
            continue
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            return f"it needs {text}, which is not installed: pip install '{text}'"
        if not requirement.specifier.contains(version, prereleases=True):
            return f"it needs {text}, and {requirement.name} {version} is installed: pip install '{text}'"
    return ""
