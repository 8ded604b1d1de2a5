"""`opforge key`: makes keys, and chooses whose signatures are accepted."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from opforge.cli import messages
from opforge.cli.completion import names as completed_names
from opforge.cli.guard import Guarded, GuardedGroup, json_option
from opforge.cli.output import emit_json, show_table
from opforge.remote.kind_table import FORMER_NAMED, KINDS, scope_of

if TYPE_CHECKING:
    from opforge.remote.signatures.trust_file import TrustedKey

FORMS = (
    f"expected what the key may sign: {', '.join(map(scope_of, KINDS))}. NAME may be a glob: --for 'op:*' for every op,"
    " --for 'op:my_*' for some, --for 'package:acme/*' for the kernel packages of an organization;"
    f" {FORMER_NAMED}."
)


@click.group("key", cls=GuardedGroup)
def group() -> None:
    """Make signing keys, and choose the keys that are trusted."""


@group.command("new", cls=Guarded)
@click.argument("name")
@json_option
def new_command(name: str, as_json: bool) -> None:
    """Make the key NAME, and print its public key, which users who fetch must trust.

    The secret key is a file that only you can read. Keys that publish belong to CI or to one builder.

    \b
    Example:
      opforge key new ci
    """
    from opforge.remote.signatures import keys

    public = keys.create(name)
    if as_json:
        return emit_json({"name": name, "public": str(public), "path": keys.path_of(name)})
    click.echo(public)
    return click.echo(f"note: the secret key is {keys.path_of(name)}; keep it secret, and back it up", err=True)


@group.command("list", cls=Guarded)
@json_option
def list_command(as_json: bool) -> None:
    """List the keys that are trusted, and your own: their public keys, and the files of the secret ones.

    \b
    Example:
      opforge key list
    """
    from opforge.remote.signatures import keys, trust_file

    trusted, own = trust_file.read(), [_own(name) for name in keys.names()]
    if as_json:
        fields = [entry._asdict() | {"key": str(entry.key)} for entry in trusted.keys]
        return emit_json({"path": trusted.path, "trusted": fields, "secret": own})
    rows = [
        (str(entry.key), " ".join(entry.scopes), entry.until or "-", entry.problem(time.time()) or "trusted")
        for entry in trusted.keys
    ]
    show_table(("KEY", "MAY SIGN", "UNTIL", "STATE"), rows)
    for key in own:
        click.echo(f"note: your own key {key['public']}: the secret key is {key['path']}", err=True)
    return None


def _own(name: str) -> dict[str, str]:
    """Returns the name, public key and file of one of the user's keys; the reason if the file cannot be used."""
    from opforge.errors import KeyFileError
    from opforge.remote.signatures import keys, signing

    try:
        public = str(signing.public_of(keys.read(name)))
    except KeyFileError as error:
        public = f"{name} ({error})"
    return {"name": name, "public": public, "path": keys.path_of(name)}


@group.command("trust", cls=Guarded)
@click.argument("key")
@click.option(
    "--for",
    "scopes",
    multiple=True,
    metavar="SCOPE",
    shell_complete=completed_names.scopes,
    help=f"A scope that it may sign: {', '.join(map(scope_of, KINDS))}.",
)
@click.option("--until", default="", metavar="DAY", help="The last day of its use, such as 2027-06-30.")
@json_option
def trust_command(key: str, scopes: Sequence[str], until: str, as_json: bool) -> None:
    """Trust KEY, a public key as `opforge key new` prints it, or a file that holds one.

    Code that this key signs is loaded into your processes. Get the key from its holder, not from the remote. --for is
    a scope that the key may sign, a glob over names; it can be repeated. The scopes replace the key's earlier ones.

    \b
    Examples:
      opforge key trust ci.pub --for 'op:*'
      opforge key trust acme.pub --for 'package:acme/*' --for 'op:acme_*' --until 2027-06-30
    """
    from opforge.remote.signatures import signing, trust_file

    text, shown = key, key.partition(":")[0][:80]  # after the name could be a secret
    if os.path.isfile(key):
        shown = key
        with open(key, encoding="utf-8", errors="replace") as file:
            text = file.read(4096)
    try:
        public = signing.parse(text, signing.PUBLIC_BYTES)
    except ValueError as error:
        raise click.UsageError(f"{shown!r} {_no_public_key(text, error)}") from None
    try:
        until = trust_file.check_date(until)
    except ValueError as error:
        raise click.UsageError(f"--until {until!r}: expected a day such as 2027-06-30.") from error
    if not scopes:
        raise click.UsageError(f"--for is missing: {FORMS}")
    for scope in scopes:
        try:
            trust_file.scope(scope)
        except ValueError:
            raise click.UsageError(f"--for {scope!r}: {FORMS}") from None
    entry = trust_file.TrustedKey(public, tuple(scopes), until)
    if entry.problem(time.time()):
        raise click.UsageError(f"--until {until!r} has passed: expected today or a later day.")
    with trust_file.held() as content:
        kept = [other for other in content.keys if other.key != public]
        trust_file.write(content._replace(keys=(*kept, entry)))
    for other in content.keys:
        if other.key == public and other.revoked:
            messages.show("note", f"this key was revoked on {other.revoked}, and is trusted again")
        elif other.key == public and (lost := [scope for scope in other.scopes if scope not in entry.scopes]):
            messages.show("note", f"this key may no longer sign {' '.join(lost)}: one command names all, each by --for")
        elif other.key.name == public.name and other.key != public and not other.problem(time.time()):
            messages.show("note", f"another key of the name {public.name} is trusted too: {other.key}")
    return _show(entry, "trusted", content.path, as_json)


def _no_public_key(text: str, error: ValueError) -> str:
    """Returns the problem of a text that is not a public key."""
    from opforge.remote.signatures import signing

    try:
        signing.parse(text, signing.SECRET_BYTES)
    except ValueError:
        return f"is not a public key: {error}."
    hint = "Trust its public key, which opforge key list prints"
    return f"is a secret key. {hint}; and make a new one if others could see what you typed."


@group.command("revoke", cls=Guarded)
@click.argument("name")
@json_option
def revoke_command(name: str, as_json: bool) -> None:
    """Stop accepting signatures of the key NAME, also for artifacts that were fetched already.

    \b
    Example:
      opforge key revoke ci
    """
    from opforge.remote.signatures import trust_file

    day = time.strftime(trust_file.DATE, time.gmtime())
    with trust_file.held() as content:
        if name not in [entry.key.name for entry in content.keys]:
            others = ", ".join(entry.key.name for entry in content.keys) or "no key"
            raise click.UsageError(f"{name!r} is not a key in {content.path}, which holds: {others}.")
        changed = [
            entry._replace(revoked=entry.revoked or day) if entry.key.name == name else entry for entry in content.keys
        ]
        trust_file.write(content._replace(keys=tuple(changed)))
    return _show(next(entry for entry in changed if entry.key.name == name), "revoked", content.path, as_json)


def _show(entry: TrustedKey, verb: str, path: str, as_json: bool) -> None:
    if as_json:
        return emit_json({verb: entry._asdict() | {"key": str(entry.key)}, "path": path})
    scope = f" for {' '.join(entry.scopes)}" if verb == "trusted" else ""
    return click.echo(f"{verb} {entry.key.name}{scope}: {path}")
