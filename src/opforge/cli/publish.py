"""`opforge publish`: signs packages and built ops, and publishes them to a store."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from opforge.cli import messages
from opforge.cli.completion import names as completed_names
from opforge.cli.guard import FAILED, OK, Guarded, error_text, json_option
from opforge.cli.output import counted, emit_json, is_terminal, size_text
from opforge.packages.form import origin

from . import kinds
from . import triton as triton_names
from . import tuned as tuned_names
from .kernels.benchmarks import of_file
from .kernels.transfers import Transfers
from .remote.stores import key_option, opened, url_argument

if TYPE_CHECKING:
    from opforge.cache.records.triton import Kernel
    from opforge.cache.records.tuned import Stored
    from opforge.packages.registry.publish import Published
    from opforge.remote.publish import Pushed
    from opforge.remote.publish_triton import PushedKernel
    from opforge.remote.publish_tuned import PushedResult
    from opforge.remote.remotes import Remote
    from opforge.remote.signatures.keys import Signer
    from opforge.remote.stores.protocol import ObjectStore


@click.command("publish", cls=Guarded)
@url_argument
@click.argument(
    "names", nargs=-1, metavar="[FOLDER|OP|KEY|tuned:OP|triton:NAME]...", shell_complete=completed_names.stored
)
@click.option("--all", "takes_all", is_flag=True, help="Publish every op of the cache that was built here.")
@key_option
@click.option("--allow-dirty", is_flag=True, help="Publish a package although its sources differed from their commit.")
@click.option(
    "--bench",
    "bench_paths",
    multiple=True,
    metavar="FILE",
    help="Add the results that `opforge bench --json` wrote to the release. Repeatable.",
)
@json_option
def command(
    url: str,
    names: Sequence[str],
    takes_all: bool,
    key: str,
    allow_dirty: bool,
    bench_paths: Sequence[str],
    as_json: bool,
) -> None:
    """Publish packages that `opforge pack` wrote into these folders, ops of the cache, and tuning results to a store.

    triton:NAME are the kernels that Triton itself compiled under `opforge.triton_cache()`, by the names of their
    functions, which may be globs.

    Without a name the package in this folder is published. Files are put before what names them, so one that is
    interrupted leaves nothing visible. The same package again changes nothing; a version that has other files is
    refused. Ops that were built with your own CXXFLAGS, CPPFLAGS or LDFLAGS need ?flags=1 in the URL.

    hf:ORG/NAME in place of the URL is a repository of the Hugging Face hub, for packages alone: their variants become
    one commit on the branch of their version, v3 of version 3, or on that after an @.

    \b
    Examples:
      opforge publish s3://kernels/ops
      opforge publish file:///shared/kernels ./kernels/relu --key ci
      opforge publish file:///shared/kernels ./kernels/relu --bench h100.json
      opforge publish file:///shared/ops CPUAdam tuned:CPUAdam
      opforge publish file:///shared/ops 'triton:*'
      opforge publish https://cache.example/ops --all
      opforge publish hf:acme/relu ./kernels/relu
    """
    if url.startswith(origin.HUB):
        if takes_all or key or bench_paths or [name for name in names if not _is_folder(name)]:
            raise click.UsageError("hf: takes the folder of a package: leave out ops, --all, --key and --bench.")
        return _to_hub(url, names, allow_dirty, as_json)
    if takes_all and names:
        raise click.UsageError("--all publishes every op of the cache: leave out names.")
    from opforge.remote.signatures import keys

    named, others = kinds.by_kind(names, ["tuned", "triton"])
    folders = [name for name in others if _is_folder(name)] if names or takes_all else ["."]
    ops = [name for name in others if name not in folders]
    results = tuned_names.stored(named["tuned"]) if named["tuned"] else []
    kernels = triton_names.stored(named["triton"]) if named["triton"] else []
    remote, store = opened(url)
    signer = None if remote.is_unsigned else keys.signer(key)
    if bench_paths and len(folders) != 1:
        raise click.UsageError("--bench is of one package: publish it alone.")
    benchmarks = [of_file(path) for path in bench_paths]
    failed, foreign = list[tuple[str, str]](), list[str]()
    sent = _results(store, remote, results, signer, as_json, failed, foreign)
    sent_kernels = _kernels(store, remote, kernels, signer, as_json, failed, foreign)
    packages = _packages(store, folders, signer, allow_dirty, benchmarks, as_json)
    pushed = _ops(store, remote, ops, signer, as_json, failed, foreign) if ops or takes_all else []
    if as_json:
        problems = [{"entry": entry, "reason": reason} for entry, reason in failed]
        records: list[dict[str, Any]] = [{**done._asdict(), "version": str(done.version)} for done in packages]
        parts = {"tuned": [one._asdict() for one in sent]} if named["tuned"] else {}
        parts |= {"triton": [one._asdict() for one in sent_kernels]} if named["triton"] else {}
        emit_json({"packages": records, **parts, "ops": [entry._asdict() for entry in pushed], "failed": problems})
    else:
        for name, reason in failed:
            click.echo(f"error: {name}: {reason}", err=True)
        if ops or takes_all:
            click.echo(f"{counted(sum(result.is_new for result in pushed), 'entry', 'entries')} published to {remote}")
    if foreign:
        some = ", ".join(foreign[:3]) + (" and more" if len(foreign) > 3 else "")
        advice = "their publishers sign them, and opforge mirror copies them"
        messages.show("note", f"{len(foreign)} that were not made here are left out ({some}): {advice}")
    sys.exit(FAILED if failed else OK)


def _to_hub(url: str, folders: Sequence[str], allow_dirty: bool, as_json: bool) -> None:
    """Publishes a package to the Hugging Face hub."""
    from opforge.packages.project import hub_publish

    if len(folders) > 1:
        raise click.UsageError("hf: is the repository of one package: name one folder.")
    repository, branch = hub_publish.parse(url)
    done = hub_publish.to_hub(repository, branch, folders[0] if folders else ".", allow_dirty)
    if as_json:
        return emit_json(done._asdict())
    state = "published" if done.is_new else "is there already, unchanged:"
    click.echo(f"{state} {done.repository} {done.version}, branch {done.branch}, commit {done.commit[:12]}")
    return click.echo(f"{counted(len(done.labels), 'variant', 'variants')}: {', '.join(done.labels)}")


def _results(
    store: ObjectStore,
    remote: Remote,
    results: Sequence[Stored],
    signer: Signer | None,
    as_json: bool,
    failed: list[tuple[str, str]],
    foreign: list[str],
) -> list[PushedResult]:
    """Publishes tuning results. A damaged one goes to `failed`, and one that was fetched to `foreign`."""
    from opforge.errors import PublishError
    from opforge.remote import publish_tuned

    sent = []
    for result in results:
        name = f"tuned:{result.value['op']}" if result.value else result.path
        if result.is_fetched and not result.problem:
            foreign.append(name)
            continue
        try:
            done = publish_tuned.push_stored(store, remote, result, signer)
        except PublishError as error:
            failed.append((name, error_text(error)))
            continue
        sent.append(done)
        if not as_json:
            state = "published" if done.is_new else "is there already:"
            click.echo(f"{state} tuned:{done.op} for {done.target}, {done.label}")
    return sent


def _kernels(
    store: ObjectStore,
    remote: Remote,
    kernels: Sequence[Kernel],
    signer: Signer | None,
    as_json: bool,
    failed: list[tuple[str, str]],
    foreign: list[str],
) -> list[PushedKernel]:
    """Publishes what Triton itself compiled. A damaged one goes to `failed`, and one that was fetched to `foreign`."""
    from opforge.errors import PublishError
    from opforge.remote import publish_triton

    sent = []
    for kernel in kernels:
        if kernel.is_fetched:
            foreign.append(f"triton:{kernel.name}")
            continue
        try:
            done = publish_triton.push(store, remote, kernel, signer)
        except PublishError as error:
            failed.append((f"triton:{kernel.name}", error_text(error)))
            continue
        sent.append(done)
        if not as_json:
            state = "published" if done.is_new else "is there already:"
            click.echo(f"{state} triton:{done.name}@{done.label} for {done.target}, {size_text(done.size)}")
    return sent


def _is_folder(name: str) -> bool:
    """Returns whether a word names the folder of a package, and not an op or a key. Raises click.UsageError."""
    if os.path.isdir(name):
        return True
    if "/" in name or name in (".", ".."):
        raise click.UsageError(
            f"{name!r} does not exist: expected a folder that opforge pack has written, or an op or a key."
        )
    return False


def _packages(
    store: ObjectStore,
    folders: Sequence[str],
    signer: Signer | None,
    allow_dirty: bool,
    benchmarks: Sequence[dict[str, Any]],
    as_json: bool,
) -> list[Published]:
    from opforge.packages.registry.publish import publish

    published = []
    for folder in folders:
        with Transfers(as_json) as transfers:
            done = publish(store, folder, signer, allow_dirty, transfers, benchmarks)
        published.append(done)
        if not as_json:
            state = "published" if done.is_new else "is there already, unchanged:"
            click.echo(f"{state} {done.name} {done.version}, {size_text(done.size)}, release {done.digest[:12]}")
    return published


def _ops(
    store: ObjectStore,
    remote: Remote,
    names: Sequence[str],
    signer: Signer | None,
    as_json: bool,
    failed: list[tuple[str, str]],
    foreign: list[str],
) -> list[Pushed]:
    """Publishes entries of the cache. Those that fail go to `failed`, without names those of others to `foreign`."""
    from opforge.cache.current import own_store
    from opforge.cli.cache.entries import matching_entries
    from opforge.cli.progress import reporter
    from opforge.errors import OpforgeError
    from opforge.remote import publish, withdrawals

    layout = own_store().layout
    entries = matching_entries(layout, names)
    pushed = list[publish.Pushed]()
    if signer:  # a store that is away, or a key that does not sign, is one error and not one for each entry
        withdrawals.publish(store, signer, signer(b"").name)
    with reporter(1, quiet=as_json or not is_terminal(sys.stderr)) as progress:
        progress.begin("publish")
        for number, entry in enumerate(entries):
            progress.step("publish", number, len(entries), entry.op)
            shown = f"{entry.op} {entry.key[:12]}"
            try:
                folder = layout.entry(entry.key)
                if not names and publish.came_from(folder):
                    foreign.append(shown)
                    continue
                pushed.append(publish.push(store, remote, folder, publish.description_of(folder), signer))
            except (OpforgeError, OSError, ValueError) as error:
                failed.append((shown, error_text(error)))
    for result in () if as_json else pushed:
        state = "published" if result.is_new else "is there already:"
        click.echo(f"{state} {result.op} {result.entry[:12]}, {size_text(result.size)}")
    return pushed
