"""`opforge withdraw`: withdraws artifacts of any kind that a key has signed, in the key's list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from opforge.cli import kinds
from opforge.cli.completion import names as completed_names
from opforge.cli.guard import Guarded, json_option
from opforge.cli.output import counted, emit_json

from .stores import key_option, opened, url_argument

if TYPE_CHECKING:
    from opforge.remote.kinds import Kind
    from opforge.remote.stores.protocol import ObjectStore
    from opforge.remote.withdrawal_lists import Withdrawals

MAX_SHOWN = 6


@click.command("withdraw", cls=Guarded)
@url_argument
@click.argument(
    "names",
    nargs=-1,
    metavar="[ENTRY|ORG/NAME@VERSION|KIND:NAME@LABEL]...",
    shell_complete=completed_names.published,
)
@click.option(
    "--reason", default="", metavar="TEXT", help="The reason, in one line; users who have it or ask for it see it."
)
@click.option("--stop-loading", is_flag=True, help="Refuse it everywhere, also where it was fetched or installed.")
@click.option("--undo", is_flag=True, help="Take the withdrawal back.")
@key_option
@json_option
def command(
    url: str, names: Sequence[str], reason: str, stop_loading: bool, undo: bool, key: str, as_json: bool
) -> None:
    """Withdraw artifacts of any kind that your key has signed: they are no longer chosen.

    Names are as `opforge ls URL` shows them; of a label the beginning is enough. Artifacts in use stay in use, and
    lock files that name a release go on working, with a warning. With --stop-loading, a machine stops loading them as
    soon as it reads the store's list.

    Each key has one list in a store, with a date. `withdrawal_days` in the trust file of a user who fetches limits the
    list's age, for all kinds; without it any age is accepted. Without a name only the date is renewed; `opforge
    publish` does so too. Withdrawals that this machine knows and the store has lost are added
    again.

    \b
    Examples:
      opforge withdraw s3://kernels/ops acme/relu@2.3 --reason "wrong for empty tensors"
      opforge withdraw s3://kernels/ops acme/relu@2.3 --undo
      opforge withdraw file:///shared/ops
    """
    from opforge.remote import withdrawal_lists
    from opforge.remote.signatures import keys
    from opforge.remote.withdrawal_lists import CHOOSING, LOADING, NOTHING, Withdrawal

    remote, store = opened(url)
    if remote.is_unsigned:
        raise click.UsageError(
            "with unsigned=1 no list of withdrawals is read: leave it out, and sign what you publish."
        )
    if stop_loading and undo:
        raise click.UsageError("--stop-loading and --undo exclude each other.")
    try:
        withdrawal_lists.check_reason(reason)
    except ValueError as error:
        raise click.UsageError(f"--reason: {error}.") from error
    signer = keys.signer(key)
    said = Withdrawal(NOTHING if undo else LOADING if stop_loading else CHOOSING, "" if undo else reason)
    name_of_key = signer(b"").name
    own = withdrawal_lists.own(store, signer, name_of_key, restore=True)
    subjects = {_subject(store, name, own): said for name in names}
    listed = withdrawal_lists.publish(store, signer, name_of_key, subjects, renew_after=0.0, restore=True)
    _print(listed, [*subjects], as_json)


def _subject(store: ObjectStore, text: str, own: Withdrawals) -> str:
    """Returns the name in lists of withdrawals of a typed one. Raises click.UsageError, PublishError, StoreError."""
    ((name, (typed, *_others)),) = ((name, names) for name, names in kinds.by_kind([text], "withdraw").items() if names)
    kind = kinds.of(name)
    title = typed.rpartition("@")[2] if kind.has_unique_labels else typed  # as ls shows both
    try:
        return kind.withdrawable(store, title, own.released)
    except ValueError as error:
        found = _signed(store, kind, typed, own.key) if name != "package" else []
        if len(found) == 1:
            return found[0]
        shown = ", ".join(found[:MAX_SHOWN]) + (f" and {len(found) - MAX_SHOWN} more" if found[MAX_SHOWN:] else "")
        several = f"it stands for {len(found)} statements that {own.key} has signed: {shown}" if found else ""
        raise click.UsageError(f"{text!r}: {several or error}.") from error


def _signed(store: ObjectStore, kind: Kind, typed: str, key: str) -> list[str]:
    """Returns what a key has signed in a store by a typed name without its label, or with the beginning of that."""
    from opforge.errors import StoreError
    from opforge.remote import contents

    name, at, label = typed.rpartition("@")
    if not typed:  # every label begins so
        return []
    try:
        items = [item for item in contents.items(store, kind.name) if key in item.signers and item.name]
    except StoreError:  # it cannot list what it holds
        return []
    return [
        kind.title(item.name, item.label)
        for item in items
        if kinds.is_meant(kind, item.name, item.label, name if at else typed)
        or (kind.has_unique_labels and not at and item.label.startswith(label))
        if item.label.startswith(label if at else "")
    ]


def _print(listed: Withdrawals, subjects: Sequence[str], as_json: bool) -> None:
    from time import gmtime, strftime

    from opforge.remote.withdrawal_lists import CHOOSING, DATE, LOADING

    if as_json:
        withdrawn = {name: {"stops": said.stops, "reason": said.reason} for name, said in listed.withdrawn.items()}
        return emit_json({"key": listed.key, "date": listed.date, "withdrawn": withdrawn})
    texts = {CHOOSING: "is not chosen any more", LOADING: "is not loaded any more"}
    for name in subjects:
        click.echo(f"{name.partition(':')[2]} {texts.get(listed.of(name).stops, 'may be chosen again')}")
    count = sum(said.stops in texts for said in listed.withdrawn.values())
    date = strftime(DATE, gmtime(listed.date))
    return click.echo(f"{counted(count, 'statement', 'statements')} withdrawn by {listed.key}, in its list of {date}")
