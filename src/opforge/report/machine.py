"""The state of this machine, for `opforge report`: versions, accelerators, compilers, the cache.

Nothing here prints. A part that fails becomes a problem in the result, so that it hides no other part.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pkgutil import resolve_name
from typing import Any

from opforge.builders.declaration import machine
from opforge.builders.toolchains import DEVICES, TOOLCHAINS
from opforge.builders.toolchains.discovery import probe
from opforge.builders.toolchains.portable import find_portable
from opforge.cache import layout
from opforge.cache.current_store import WRITABLE, find_problem
from opforge.cache.filesystem.disk import Disk
from opforge.cache.maintenance import listing
from opforge.errors import OpforgeError, SettingError, ToolchainNotFoundError
from opforge.fast_path.machine import python_tag
from opforge.foundation import file_owners, settings
from opforge.foundation.files import can_write


def environment() -> dict[str, Any]:
    """Returns the versions and paths of Python and torch. Does not import torch."""
    folder = machine.torch_folder()
    torch: dict[str, str] = {"problem": "torch is not installed. Install it: pip install torch"}
    if folder:
        try:
            torch = {"version": machine.torch_version(folder), "path": folder}
        except (OSError, OpforgeError) as error:
            torch = {"path": folder, "problem": str(error)}
    return {
        "python": {"version": sys.version.split()[0], "path": sys.executable, "tag": python_tag()},
        "torch": torch,
    }


def accelerators() -> dict[str, Any]:
    """Returns every candidate with its reason, and the one in use with its capabilities. Imports torch."""
    from opforge.accelerator import candidates, get_accelerator
    from opforge.accelerator.availability import entry_point_problems

    record: dict[str, Any] = {"candidates": [], "problems": [], "ignored": [], "in_use": None, "capabilities": None}
    try:
        active = get_accelerator()
        record["in_use"] = {"name": active.name, "target": str(active.target()), "ops": active.op_builder_dir()}
        record["capabilities"] = active.capabilities().as_dict()
    except Exception as error:  # torch may be missing or broken, which is what the report must say
        record["problems"].append(_text(error))
    try:
        listed = candidates()
        record["candidates"] = [
            {
                "name": candidate.name,
                "available": candidate.available,
                "reason": candidate.reason,
                "source": candidate.source,
            }
            for candidate in listed
        ]
        record["ignored"] = entry_point_problems(listed)
    except Exception as error:
        if _text(error) not in record["problems"]:
            record["problems"].append(_text(error))
    return record


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, OpforgeError) else f"{type(error).__name__}: {error}"


def compilers() -> list[dict[str, str]]:
    """Returns a row for every toolchain, the host's linker and ninja.

    Each has `name`, `path`, `version`, `problem` (why it cannot be used) and `missing` (for the compiler of a device,
    which need not be installed: what to install).
    """
    root = settings.cache_dir()
    trusted = find_problem(root, file_owners.trusted_ids()) is None
    store_layout = layout.Layout(root if trusted else os.path.join(os.devnull, "none"))
    rows: list[dict[str, str]] = []
    tools: dict[str, Callable[[], tuple[str, str]]] = {"ninja": _ninja}
    factories: dict[str, Callable[[], Any]] = {
        name: partial(find_toolchain, import_path, store_layout) for name, import_path in TOOLCHAINS.items()
    }
    factories["portable"] = partial(find_portable, (), settings.sysroot(), store_layout, Disk())
    for name, make in factories.items():
        row = _row(name)
        try:
            toolchain = make()
            # Triton is a package that Python runs, so argv[0] would only name Python.
            row["path"] = getattr(toolchain, "package", toolchain.argv[0])
            row["version"] = _version(toolchain)
            if name == DEVICES["cpu"]:
                tools = {"linker": partial(_linker, toolchain), **tools}
        except ToolchainNotFoundError as error:
            if name == DEVICES["cpu"]:
                row["problem"] = str(error)
            else:  # only the host's compiler is required
                row |= {"version": error.short, "missing": str(error)}
        except OpforgeError as error:
            row["problem"] = str(error)
        rows.append(row)
    for name, find in tools.items():
        row = _row(name)
        try:
            row["path"], row["version"] = find()
        except OpforgeError as error:
            row["problem"] = str(error)
        rows.append(row)
    return rows


def _row(name: str) -> dict[str, str]:
    return {"name": name, "path": "", "version": "", "problem": "", "missing": ""}


def _ninja() -> tuple[str, str]:
    from opforge.builders.run.ninja import find_ninja

    path = find_ninja()
    advice = "Reinstall it: pip install --force-reinstall ninja"
    return path, probe.run([path], "--version", advice=advice).strip()


def _linker(host: Any) -> tuple[str, str]:
    flags = host.flags()[1]
    return host.linker(), probe.run(host.argv, *flags, "-Wl,--version").strip().partition("\n")[0]


def find_toolchain(import_path: str, store_layout: layout.Layout) -> Any:
    """Returns the toolchain of this class, "module:Class", as it is found here. Raises what finding it raises."""
    return resolve_name(import_path)(store_layout, Disk())


def _version(toolchain: Any) -> str:
    identity, root = dict(toolchain.identity()), getattr(toolchain, "root", "")
    if not root:
        return str(identity["version"])
    without_compiler = f"no compiler of its own: {identity['version']} puts its source text into the library"
    return str(identity.get(f"{root} version", without_compiler))


def compiler_versions(identity: Mapping[str, str]) -> str:
    """Returns the versions of the compilers in a toolchain's identity: the device's, if any, then the host's."""
    versions = {name.removesuffix(" version"): text for name, text in identity.items() if name.endswith(" version")}
    device = [text if text[:1].isalpha() else f"{name} {text}" for name, text in versions.items()]
    return " with ".join([*device, *filter(None, [identity.get("version", "")])])


def cache() -> dict[str, Any]:
    """Returns the path, bytes and entries of the user's own store, and its problem if it cannot be trusted.

    Creates nothing.
    """
    root, source = settings.cache_dir(), settings.cache_dir.found()[1]
    problem = find_problem(root, file_owners.trusted_ids())
    store_layout = layout.Layout(root)
    record: dict[str, Any] = {"path": root, "chosen": bool(source), "exists": os.path.isdir(root)}
    record |= {"source": source}
    record |= {
        "layers": list(settings.cache_layers()),
        "problem": f"{problem.problem}. {problem.advice}." if problem else "",
    }
    try:
        size = sum(area.size for area in listing.areas(store_layout))
        record |= {"bytes": size, "entries": len(listing.entries(store_layout))}
    except OSError as error:
        record |= {"bytes": 0, "entries": 0, "problem": record["problem"] or str(error)}
    return record


def unwritable_cache() -> str:
    """Returns why nothing that is built can be kept in the user's own store, or an empty text."""
    root = settings.cache_dir()
    return "" if can_write(root) else f"the cache folder {root} cannot be written. {WRITABLE}."


def remotes() -> list[dict[str, Any]]:
    """Returns the remotes that are configured, and why one is not asked now; a setting's error as one without a URL."""
    if not settings.remotes():
        return []
    from opforge.remote import remembered_answers
    from opforge.remote.remotes import configured

    try:
        return [
            {"url": str(remote), "publishes": remote.pushes, "problem": remembered_answers.not_asked(remote)}
            for remote in configured()
        ]
    except SettingError as error:
        return [{"url": "", "publishes": False, "problem": str(error)}]
