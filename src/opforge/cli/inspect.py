"""`opforge inspect`: the contents of a built op, and the requirements for loading it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from opforge.accelerator.target import Target
from opforge.errors import InspectionError
from opforge.foundation.symbols import demangled

from . import messages
from .cache.entries import entries_of_op, entries_with_key, named_or_offered
from .completion import names as completed_names
from .guard import FAILED, Guarded, json_option
from .output import counted, emit_json, heading, show_table, size_text
from .selection import all_targets, select, target_option

if TYPE_CHECKING:
    from opforge.cache.layout import Layout
    from opforge.cache.maintenance.listing import StoredEntry
    from opforge.packages.audit.environment import Extension

MAX_FUNCTIONS = 10
"""How many of the largest functions are shown. --json has all of them."""


FACADE_HINT = (
    "hint: `opforge why-not` with a project's sources lists what keeps it from the facade. "
    "On the facade one library serves each torch from 2.10 on, and each Python."
)


@click.command("inspect", cls=Guarded)
@click.argument("what", metavar="ENTRY|OP|PATH", required=False, shell_complete=completed_names.inspected)
@click.option("--env", "is_environment", is_flag=True, help="Inspect the extensions of an installed environment.")
@target_option
@json_option
def command(
    what: str | None, is_environment: bool, targets: Sequence[Target], levels: Sequence[str], as_json: bool
) -> None:
    """Show the contents of a built op, and the requirements for loading it.

    For device code: the architectures, and for each kernel its registers, shared memory and spills. For host code:
    sizes, exports, libraries, and the output of the compilers.

    ENTRY is a key or an op of `opforge ls`; of a key, any beginning that no other key has is enough. OP is as for
    build-ops, and must have been built. PATH is a library, a cubin, an HSACO, a fatbin, a clang bundle, a PTX file, a
    folder of such files, or a layer: all of its entries are shown.

    With --env, PATH is the folder of an environment, or left out for the one that opforge runs in. Each installed
    extension of torch is shown with the oldest torch, Python and glibc that it loads under. The exit code is 1 if an
    extension is bound to one torch or one Python, or does not load here.

    \b
    Examples:
      opforge inspect CPUAdam
      opforge inspect FusedAdam --target cuda:sm_80+sm_90+ptx
      opforge inspect 3f9c2a
      opforge inspect prebuilt/
      opforge inspect --env
    """
    if is_environment:
        if what == "":
            raise click.UsageError("The folder after --env is empty: leave it out for the environment of opforge.")
        if targets or levels:
            raise click.UsageError("--target and --cpu-level choose a build of an op: leave them out with --env.")
        _inspect_environment(what or "", as_json)
        return
    if not what:
        raise click.UsageError("Missing argument 'ENTRY|OP|PATH'.")
    files: list[dict[str, Any]] = []
    problems: list[str] = []
    for path, build in _resolve(what, all_targets(targets, levels)):
        contents, unreadable = _examine_files(path, build)
        files += contents
        problems += unreadable
    if not files:
        advice = "Name a library, a cubin, an HSACO, a fatbin, a bundle, a PTX file, an entry, or a layer"
        raise InspectionError(what, "; ".join(problems) or "the folder holds no such file", advice)
    if as_json:
        emit_json({"files": files, "problems": problems})
    else:
        for number, file in enumerate(files):
            if number:
                click.echo()
            _print(file)
        for problem in problems:
            messages.show_error(problem)
    if problems:
        click.get_current_context().exit(FAILED)


def _inspect_environment(where: str, as_json: bool) -> None:
    """Shows under which versions the extensions of an environment load. Exits with 1 if one does not load under all."""
    from opforge.packages.audit import environment

    found = environment.extensions(where)
    if as_json:
        emit_json({"extensions": [{**one._asdict(), "problems": one.problems} for one in found]})
    elif not found:
        click.echo("No installed distribution has an extension of torch.")
    else:
        shown = _names(one.path for one in found)
        rows = [(f"{one.distribution} {one.version}", shown[one.path], *_versions(one)) for one in found]
        show_table(("DISTRIBUTION", "LIBRARY", "TORCH", "PYTHON", "GLIBC", "DEVICE CODE"), rows)
        for one in found:
            for problem in one.problems:
                click.echo(f"{one.distribution}: {shown[one.path]} {problem}")
        if any("is bound to" in problem for one in found for problem in one.problems):
            click.echo(FACADE_HINT)
    if any(one.problems for one in found):
        click.get_current_context().exit(FAILED)


def _versions(one: Extension) -> tuple[str, ...]:
    """Returns the cells of a library: torch, Python, glibc, device code."""
    if one.unreadable:
        return ("?",) * 4
    return (
        _from(one.torch) if one.torch else "one",
        one.bound_to_python or _from(one.python),
        f"{one.glibc}+" if one.glibc else "any",
        " ".join(one.archs) or "-",
    )


def _names(paths: Iterable[str]) -> dict[str, str]:
    """Returns how each path is shown: by its last part, or whole if several have the same."""
    listed = list(paths)
    counts = Counter(map(os.path.basename, listed))
    return {path: path if counts[os.path.basename(path)] > 1 else os.path.basename(path) for path in listed}


def _from(oldest: str) -> str:
    return oldest if oldest == "any" else f"{oldest}+"


def _resolve(what: str, targets: Sequence[Target]) -> list[tuple[str, dict[str, Any]]]:
    """Returns the files or folders that `what` names, each with its build record (see `_build_record`).

    Raises InspectionError, click.UsageError.
    """
    if os.path.exists(what) and not _is_package_of_op(what):
        if not os.path.isfile(what) and not os.path.isdir(what):
            problem = "it is neither a file nor a folder"
            raise InspectionError(what, problem, "Name a library, or an op")
        if os.path.isdir(what):
            return [(folder, _build_record(folder)) for folder in _entries_of_store(what) or [what]]
        return [(what, _build_record(os.path.dirname(what)))]
    from opforge.builders.load_op import find
    from opforge.cache.current_store import current_store
    from opforge.cache.maintenance import listing

    layout = current_store().layout
    stored = listing.entries(layout)
    of_op = entries_of_op(stored, what)
    if not of_op and len(keyed := entries_with_key(stored, what)) == 1:
        return _of_entries(layout, keyed)
    if os.sep in what or ("." in what and ":" not in what):  # no op has a name with a dot
        raise InspectionError(what, "there is no such file or folder", "Correct the path")
    try:
        ops = select([what], targets)
    except click.UsageError as error:  # an op of `opforge.load` is in no package's table
        named, wanted = named_or_offered(stored, what, error), {*map(str, targets)}
        if of_target := [entry for entry in named if not wanted or entry.target in wanted]:
            return _of_entries(layout, of_target)
        raise
    entries = []
    for op in ops:
        entry = find(op.builder().spec()).entry
        if entry is None:
            target = f" --target {op.target}" if targets else ""
            advice = f"Build it first: build-ops {op.name}{target}. To see what is built: opforge ls"
            raise InspectionError(op.label, "no built entry fits it as it is declared now", advice)
        entries.append((entry.folder, _build_record(entry.folder)))
    return entries


def _is_package_of_op(what: str) -> bool:
    """Returns whether `what` names a folder with nothing to inspect and a stored op, as in a project of `opforge new`.

    Then the op is meant. Raises OSError.
    """
    from opforge.builders.inspection.examine import inspectable_files
    from opforge.cache.current_store import current_store
    from opforge.cache.maintenance import listing

    if os.sep in what or not os.path.isdir(what) or _entries_of_store(what) or inspectable_files(what):
        return False
    return bool(entries_of_op(listing.entries(current_store().layout), what))


def _of_entries(layout: Layout, stored: Sequence[StoredEntry]) -> list[tuple[str, dict[str, Any]]]:
    return [(layout.entry(entry.key), _build_record(layout.entry(entry.key))) for entry in stored]


def _entries_of_store(folder: str) -> list[str]:
    """Returns the folders of the entries of a store or a layer; none if the folder is neither. Raises OSError."""
    from opforge.cache.layout import Layout

    entries = Layout(os.path.normpath(folder)).path("entries")
    return [os.path.join(entries, key) for key in sorted(os.listdir(entries))] if os.path.isdir(entries) else []


def _build_record(folder: str) -> dict[str, Any]:
    """Returns the facts about library and build in the files of an entry's folder; empty for any other folder.

    Keys: op, abi, target, torch_target (if recorded), file, compiler, and `said`, what the compilers printed. The last
    two are empty for an entry of a layer, which does not hold how it was built.
    """
    from opforge.cache.records.entry import read_record
    from opforge.fast_path.library import BUILD
    from opforge.foundation.files import read_json
    from opforge.foundation.remembered_values import UNREADABLE
    from opforge.report.machine import compiler_versions

    try:
        record = read_record(os.path.abspath(folder))
        shown = {name: str((record or {})[name]) for name in ("op", "abi", "target", "file")}
        if record and record.get("torch_target"):
            shown["torch_target"] = str(record["torch_target"])
    except UNREADABLE:  # it is shown as it is, without a schema
        return {}
    try:
        build = read_json(os.path.join(folder, BUILD))
        return {**shown, "compiler": compiler_versions(build["components"]["toolchain"]), "said": str(build["output"])}
    except UNREADABLE:  # build.json may change in each version
        return {**shown, "compiler": "", "said": ""}


def _examine_files(path: str, build: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """Returns the content of each file at `path`, and why some could not be read. Raises OSError."""
    from opforge.builders.inspection.examine import examine, inspectable_files

    contents, problems = [], []
    for file in inspectable_files(path) if os.path.isdir(path) else [path]:
        try:
            entry = dict(build) if os.path.basename(file) == build.get("file") else {}
            contents.append({**examine(file), "entry": entry})
        except (OSError, ValueError) as error:
            problems.append(str(error))
    return contents, problems


def _print(content: Mapping[str, Any]) -> None:
    click.echo(f"{content['kind']} {content['path']}, {size_text(content['size'])}")
    if entry := content["entry"]:
        compiler = f", by {entry['compiler']}" if entry["compiler"] else ""
        click.echo(f"op {entry['op']} for {entry['target']}, ABI {entry['abi']}{compiler}")
        if entry["said"]:
            heading("output of the compilers")
            click.echo(entry["said"])
    for note in content["notes"]:
        click.echo(f"note: {note}")
    if "machine" in content:
        _print_host(content)
    if content["images"]:
        heading("device code")
        images = [
            (image["kind"], image["arch"], size_text(image["size"]), image["compression"])
            for image in content["images"]
        ]
        show_table(("KIND", "ARCH", "SIZE", "COMPRESSED"), images, ("SIZE",))
    if content["kernels"]:
        heading(counted(len(content["kernels"]), "kernel", "kernels"))
        fields = ("code", "registers", "shared", "stack", "spills", "copies", "waits")
        columns = [field.upper() for field in fields]
        readable = demangled(kernel["name"] for kernel in content["kernels"])
        kernels = [
            (
                kernel["launched"] or readable[kernel["name"]],
                kernel["arch"],
                *("?" if kernel[field] is None else str(kernel[field]) for field in fields),
            )
            for kernel in content["kernels"]
        ]
        show_table(("KERNEL", "ARCH", *columns), kernels, columns)


def _print_host(content: Mapping[str, Any]) -> None:
    floors = ", ".join(f"{name} {version}" for name, version in content["floors"].items())
    needs = [("machine", content["machine"]), ("libraries", " ".join(content["needs"])), ("symbols", floors)]
    shims = content["shims"]
    if shims["used"]:
        versions = f"{shims['floor']} or newer" if shims["floor"] else "any that has these"
        used = counted(len(shims["used"]), "function", "functions")
        needs.append(("torch", f"{versions}, by {used} of its C interface"))
    heading("needs")
    show_table(("WHAT", "WHICH"), needs)
    if content["exports"]:
        heading("exports")
        for name in content["exports"]:
            click.echo(name)
    if content["functions"]:
        heading(f"the largest of {counted(len(content['functions']), 'function', 'functions')}")
        largest = content["functions"][:MAX_FUNCTIONS]
        readable = demangled(function["name"] for function in largest)
        functions = [(readable[function["name"]], function["size"]) for function in largest]
        show_table(("FUNCTION", "BYTES"), functions, ("BYTES",))
