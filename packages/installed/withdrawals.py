"""What the lists of signers say of installed releases, noted in their files: `get_kernel` reads no list."""

from __future__ import annotations

from opforge.packages.form import names, version
from opforge.packages.form.version import Version
from opforge.remote.withdrawal_lists import NOTHING, Withdrawal, Withdrawals

from . import releases
from .add import add_release
from .layout import Root, roots

PREFIX = "package:"
"""The beginning of what a list calls a release."""


def note(listed: Withdrawals, *chosen: Root) -> None:
    """Notes what a list says in each folder in which packages are looked for, and in the chosen ones.

    Raises OSError of those.
    """
    for root in dict.fromkeys([*chosen, *roots()]):
        try:
            for title, said in listed.withdrawn.items():
                _note(root, listed.key, title, said)
        except OSError:
            if root in chosen:
                raise  # another may be the site's, or of a read-only environment


def _note(root: Root, key: str, title: str, said: Withdrawal) -> None:
    package, _at, label = title.removeprefix(PREFIX).partition("@")
    number = version.read(label)
    if not title.startswith(PREFIX) or not names.is_name(package) or number is None:
        return
    installed = releases.read(root, package, Version(number[0], number[1] or 0))
    stops = "" if said.stops == NOTHING else said.stops
    noted = installed and installed._replace(stops=stops, withdrawn=said.reason if stops else "")
    if noted and installed and installed.signer == key and noted != installed:
        add_release(noted)
