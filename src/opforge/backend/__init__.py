"""A build backend (PEP 517, PEP 660) that wraps another one, and puts a project's ops into the wheel that this makes.

    [build-system]
    requires = ["hatchling", "opforge", "torch>=2.10"]
    build-backend = "opforge.backend"

    [tool.opforge]
    backend = "hatchling.build"
    ops = ["my_package.ops:MyBuilder"]

All hooks are the other backend's. A wheel gets the ops after it was made; an editable install builds them when they are
loaded.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pkgutil import resolve_name
from typing import Any

from opforge.errors import BuilderError

from .project import build_into, read_table, wrapped_backend

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]
Settings = Mapping[str, Any] | None


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    """Builds the wheel by the wrapped backend, and adds the ops. Returns its name."""
    table = read_table()
    with tempfile.TemporaryDirectory(prefix="opforge-wheel-") as folder:
        # What prepared metadata says of the tag would not be that of the wheel with ops.
        name = _call("build_wheel", folder, config_settings, metadata_directory)
        return build_into(os.path.join(folder, name), wheel_directory, table)


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    """Builds the sdist by the wrapped backend. Returns its name."""
    return str(_call("build_sdist", sdist_directory, config_settings))


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """Builds an editable install by the wrapped backend: its ops are built when they are loaded."""
    return str(_call("build_editable", wheel_directory, config_settings, metadata_directory))


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """Returns what the wrapped backend needs."""
    return _requirements("get_requires_for_build_wheel", config_settings)


def get_requires_for_build_sdist(config_settings: Settings = None) -> list[str]:
    """Returns what the wrapped backend needs."""
    return _requirements("get_requires_for_build_sdist", config_settings)


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    """Returns what the wrapped backend needs."""
    return _requirements("get_requires_for_build_editable", config_settings)


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Settings = None) -> str:
    """Returns the name of the folder with the metadata that the wrapped backend prepares."""
    return _metadata("build_wheel", "prepare_metadata_for_build_wheel", metadata_directory, config_settings)


def prepare_metadata_for_build_editable(metadata_directory: str, config_settings: Settings = None) -> str:
    """Returns the name of the folder with the metadata that the wrapped backend prepares."""
    return _metadata("build_editable", "prepare_metadata_for_build_editable", metadata_directory, config_settings)


def _backend() -> tuple[str, Any]:
    """Returns the name of the wrapped backend, and its object. Raises BuilderError if it cannot be imported."""
    name = wrapped_backend(read_table())
    try:
        return name, resolve_name(name if ":" in name else f"{name}:")
    except (ImportError, AttributeError, ValueError) as error:
        advice = "Add the package that has it to `requires` of [build-system], or correct `backend` in [tool.opforge]"
        raise BuilderError("opforge.backend", f"there is no build backend {name!r} here ({error})", advice) from error


def _call(hook: str, *arguments: Any) -> Any:
    name, backend = _backend()
    if not hasattr(backend, hook):
        raise BuilderError("opforge.backend", f"the backend {name} has no {hook}", "Use one that has it")
    return getattr(backend, hook)(*arguments)


def _requirements(hook: str, config_settings: Settings) -> list[str]:
    backend = _backend()[1]
    return list(getattr(backend, hook)(config_settings)) if hasattr(backend, hook) else []


def _metadata(build: str, hook: str, metadata_directory: str, config_settings: Settings) -> str:
    """Returns the folder's name. Without the hook it is taken from a wheel, as PEP 517 has it for frontends."""
    from .wheel_file import extract_metadata

    if hasattr(_backend()[1], hook):
        return str(_call(hook, metadata_directory, config_settings))
    with tempfile.TemporaryDirectory(prefix="opforge-wheel-") as folder:
        return extract_metadata(os.path.join(folder, _call(build, folder, config_settings)), metadata_directory)
