"""`opforge withdraw`: takes back what a key has signed, of every kind, in its own list."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from opforge.cli.guard import Guarded, json_option
from opforge.cli.output import counted, emit_json
from opforge.errors import PublishError

from .stores import key_option, opened, url_argument

if TYPE_CHECKING:
    from opforge.remote.stores.protocol import ObjectStore
    from opforge.remote.withdrawals import Withdrawals

EXPECTED = (
    "expected the name of an entry as opforge ls URL shows it, a package as ORG/NAME@VERSION, a tuning result as"
    " tuned:LABEL, compiled graphs as compiled:NAME@DIGITS, or a kernel of Triton's as triton:NAME@DIGITS"
)
OTHERS = r"tuned:[0-9a-f]{8}-[!-~]+-[0-9a-f]{8}|(compiled|triton):[\w-]+@[0-9a-f]{16}"


@click.command("withdraw", cls=Guarded)
@url_argument
@click.argument(
    "names", nargs=-1, metavar="[ENTRY|ORG/NAME@VERSION|tuned:LABEL|compiled:NAME@DIGITS|triton:NAME@DIGITS]..."
)
@click.option(
    "--reason", default="", metavar="TEXT", help="Why, in one line; shown to those who have it or ask for it."
)
@click.option("--stop-loading", is_flag=True, help="Refuse it everywhere, also where it was fetched or installed.")
@click.option("--undo", is_flag=True, help="Take the withdrawal back.")
@key_option
@json_option
def command(
    url: str, names: Sequence[str], reason: str, stop_loading: bool, undo: bool, key: str, as_json: bool
) -> None:
    """Withdraw ops, packages and tuning results that your key has signed: nothing chooses them any more.

    What is in use stays in use, and lock files that name a release go on working, with a warning. With --stop-loading
    it is loaded nowhere any more, as soon as a machine asks the store.

    Each key has one list in a store, with a date. For ops, those who fetch require one that is newer than 30 days, or
    than their trust file says. Without a name only the date is renewed; `opforge publish` does so too. If the store
    has lost what this machine knows to be withdrawn, it is put back.

    \b
    Examples:
      opforge withdraw s3://kernels/ops acme/relu@2.3 --reason "wrong for empty tensors"
      opforge withdraw s3://kernels/ops acme/relu@2.3 --undo
      opforge withdraw file:///shared/ops
    """
    from opforge.remote import withdrawals
    from opforge.remote.signatures import keys
    from opforge.remote.withdrawals import CHOOSING, LOADING, NOTHING, Withdrawal

    remote, store = opened(url)
    if remote.is_unsigned:
        raise click.UsageError(
            "with unsigned=1 no list of withdrawals is read: leave it out, and sign what you publish."
        )
    if stop_loading and undo:
        raise click.UsageError("--stop-loading and --undo exclude each other.")
    try:
        withdrawals.check_reason(reason)
    except ValueError as error:
        raise click.UsageError(f"--reason: {error}.") from error
    signer = keys.signer(key)
    said = Withdrawal(NOTHING if undo else LOADING if stop_loading else CHOOSING, "" if undo else reason)
    subjects = {_subject(store, name): said for name in names}
    listed = withdrawals.publish(store, signer, signer(b"").name, subjects, renew_after=0.0, restore=True)
    _print(listed, [*subjects], as_json)


def _subject(store: ObjectStore, text: str) -> str:
    """Returns what the list calls an entry or a release. Raises click.UsageError, PublishError, StoreError."""
    from opforge.cache.layout import DIGITS
    from opforge.packages.form import names, version
    from opforge.packages.registry import index

    if re.fullmatch(rf"[0-9a-f]{{32}}-[0-9a-f]{{{DIGITS}}}", text):
        return f"op:{text}"
    if re.fullmatch(OTHERS, text):
        return text
    name, _at, label = text.partition("@")
    if not names.is_name(name) or version.read(label) is None:
        raise click.UsageError(f"{text!r}: {EXPECTED}.")
    number, listed = version.parse(label), index.read(store, name)
    if listed is None or number not in listed.releases:
        versions = ", ".join(map(str, sorted(listed.releases, reverse=True)[:10])) if listed else "none"
        problem = "there is no such release"
        raise PublishError(f"{name} {number}", store.url, problem, f"There are: {versions}", "withdrawn in")
    return f"package:{name}@{number.canonical}"


def _print(listed: Withdrawals, subjects: Sequence[str], as_json: bool) -> None:
    from time import gmtime, strftime

    from opforge.remote.withdrawals import CHOOSING, DATE, LOADING

    if as_json:
        withdrawn = {name: {"stops": said.stops, "reason": said.reason} for name, said in listed.withdrawn.items()}
        return emit_json({"key": listed.key, "date": listed.date, "withdrawn": withdrawn})
    texts = {CHOOSING: "is not chosen any more", LOADING: "is not loaded any more"}
    for name in subjects:
        click.echo(f"{name.partition(':')[2]} {texts.get(listed.of(name).stops, 'may be chosen again')}")
    count = sum(said.stops in texts for said in listed.withdrawn.values())
    date = strftime(DATE, gmtime(listed.date))
    return click.echo(f"{counted(count, 'statement', 'statements')} withdrawn by {listed.key}, in its list of {date}")
