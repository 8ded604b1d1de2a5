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
from opforge.cli.progress import reporter
from opforge.packages.form import origin
from opforge.remote.kind_table import KINDS

from . import kinds, verbs
from .kernels.benchmarks import of_file
from .kernels.transfers import Transfers
from .remote.stores import key_option, opened, url_argument

if TYPE_CHECKING:
    from opforge.packages.registry.publish import Published
    from opforge.remote.kinds import Kind, StoredArtifact
    from opforge.remote.publish import Pushed
    from opforge.remote.remotes import Remote
    from opforge.remote.signatures.keys import Signer
    from opforge.remote.stores.protocol import ObjectStore


@click.command("publish", cls=Guarded)
@url_argument
@click.argument("names", nargs=-1, metavar=f"[FOLDER|OP|KEY|{verbs.FORMS}]...", shell_complete=completed_names.stored)
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
    """Publish packages that `opforge pack` wrote into these folders, ops of the cache, and all other kinds to a store.

    KIND:NAME is as `opforge ls` lists it, and may be a glob; tuned:module:Class is the result of an op of your own.
    Fetched artifacts are never published: their publisher has signed them.

    Without a name the package in this folder is published. Files are uploaded before the index that names them, so an
    interrupted command leaves nothing visible. Publishing the same package again changes nothing; a version that exists
    with other files is refused. Ops that were built with your own CXXFLAGS, CPPFLAGS or LDFLAGS need ?flags=1 in the
    URL.

    hf:ORG/NAME in place of the URL is a repository of the Hugging Face hub, for packages alone: their variants become
    one commit on the branch of their version, v3 of version 3, or on that after an @.

    \b
    Examples:
      opforge publish s3://kernels/ops
      opforge publish file:///shared/kernels ./kernels/relu --key ci
      opforge publish file:///shared/kernels ./kernels/relu --bench h100.json
      opforge publish file:///shared/ops CPUAdam tuned:CPUAdam
      opforge publish file:///shared/ops 'jit:triton/*'
      opforge publish https://cache.example/ops --all
      opforge publish hf:acme/relu ./kernels/relu
    """
    if url.startswith(origin.HUB):
        if takes_all or key or bench_paths or [name for name in names if not _is_folder(name)]:
            raise click.UsageError("hf: takes the folder of a package: leave out ops, --all, --key and --bench.")
        return _to_hub(url, names, allow_dirty, as_json)
    if takes_all and names:
        raise click.UsageError("--all publishes every op of the cache: leave out names.")
    folders = [name for name in names if _is_folder(name)] if names or takes_all else ["."]
    named = kinds.by_kind([name for name in names if name not in folders], "publish")
    if named["package"]:
        raise click.UsageError(f"{named['package'][0]!r}: a package is published from its folder.")
    if bench_paths and len(folders) != 1:
        raise click.UsageError("--bench is of one package: publish it alone.")
    has_ops = bool(named["op"]) or takes_all
    chosen = [(kind, one) for kind in kinds.named_in(named) for one in kinds.stored(kind, named[kind.name])]
    remote, store = opened(url)
    signer = _signer(remote, key)
    benchmarks = [of_file(path) for path in bench_paths]
    chosen += [(kinds.of("op"), entry) for entry in (_entries(named["op"]) if has_ops else ())]
    if signer and (chosen or has_ops):
        _renew_list(store, signer)
    packages = _packages(store, folders, signer, allow_dirty, benchmarks, as_json)
    sent, failed, foreign = _push(store, remote, chosen, signer, as_json, takes_all)
    if as_json:
        emit_json(_as_json(packages, sent, failed, [name for name in verbs.OTHERS if named[name]]))
    else:
        for name, reason in failed:
            click.echo(f"error: {name}: {reason}", err=True)
        if has_ops:
            count = sum(done.is_new for done in sent if done.kind == "op")
            click.echo(f"{counted(count, 'entry', 'entries')} published to {remote}")
    _show_foreign(foreign)
    sys.exit(FAILED if failed else OK)


def _as_json(
    packages: Sequence[Published], sent: Sequence[Pushed], failed: Sequence[tuple[str, str]], others: Sequence[str]
) -> dict[str, Any]:
    """Returns the object that --json prints. `others` are the kinds, beside packages and ops, that were named."""
    return {
        "packages": [{**done._asdict(), "version": str(done.version)} for done in packages],
        **{name: [done._asdict() for done in sent if done.kind == name] for name in others},
        "ops": [done._asdict() for done in sent if done.kind == "op"],
        "failed": [{"entry": entry, "reason": reason} for entry, reason in failed],
    }


def _signer(remote: Remote, key: str) -> Signer | None:
    """Returns the signer; None for a remote with unsigned=1."""
    from opforge.remote.signatures import keys

    return None if remote.is_unsigned else keys.signer(key)


def _renew_list(store: ObjectStore, signer: Signer) -> None:
    """Renews the signer's list first: a store that is away, or a key that does not sign, is one error."""
    from opforge.remote import withdrawal_lists

    withdrawal_lists.publish(store, signer, signer(b"").name)


def _show_foreign(foreign: Sequence[str]) -> None:
    """Reports the artifacts that were left out because others have made them."""
    if foreign:
        some = ", ".join(foreign[:3]) + (" and more" if len(foreign) > 3 else "")
        advice = "their publishers sign them, and opforge mirror copies them"
        messages.show("note", f"{len(foreign)} that were not made here are left out ({some}): {advice}")


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


def _is_folder(name: str) -> bool:
    """Returns whether a word names the folder of a package, and not something in the cache. Raises click.UsageError."""
    if name.partition(":")[0] in KINDS:
        return False
    if os.path.isdir(name):
        return True
    if "/" in name or name in (".", ".."):
        raise click.UsageError(
            f"{name!r} does not exist: expected a folder that opforge pack has written, or an op or a key."
        )
    return False


def _entries(names: Sequence[str]) -> list[StoredArtifact]:
    """Returns the entries of the cache that these names stand for; all without one."""
    from opforge.cache.current_store import own_store
    from opforge.cli.cache.entries import matching_entries
    from opforge.remote.op_statements import OP

    layout = own_store().layout
    return [OP.at(layout.entry(entry.key)) for entry in matching_entries(layout, names)]


def _push(
    store: ObjectStore,
    remote: Remote,
    chosen: Sequence[tuple[Kind, StoredArtifact]],
    signer: Signer | None,
    as_json: bool,
    takes_all: bool,
) -> tuple[list[Pushed], list[tuple[str, str]], list[str]]:
    """Publishes artifacts of any kind. Returns the published ones, the failed ones with reasons, and those of others.

    An op that others made is a failure if it was named.
    """
    from opforge.errors import OpforgeError
    from opforge.remote import publish

    sent, failed, foreign = list[Any](), list[tuple[str, str]](), list[str]()
    with reporter(1, quiet=as_json or not is_terminal(sys.stderr)) as progress:
        progress.begin("publish")
        for number, (kind, one) in enumerate(chosen):
            progress.step("publish", number, len(chosen), one.name)
            shown = f"{kind.name}:{one.name}@{one.label[:12]}" if one.name else one.path
            try:
                if kind.origin(one) and not one.problem and (takes_all or kind.name != "op"):
                    foreign.append(f"{kind.name}:{one.name}")
                    continue
                sent.append(publish.push(store, remote, kind, one, signer))
            except (OpforgeError, OSError, ValueError) as error:
                failed.append((shown, error_text(error)))
    for done in () if as_json else sent:
        state = "published" if done.is_new else "is there already:"
        size = f", {size_text(done.size)}" if done.size else ""
        target = f" for {done.target}" if done.target else ""
        click.echo(f"{state} {done.kind}:{done.name}@{done.label[:12]}{target}{size}")
    return sent, failed, foreign


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
