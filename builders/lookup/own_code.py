"""opforge's own files that shape plans, as one stamp where a wheel's list names them."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Sequence

from opforge.cache.filesystem.disk import Disk
from opforge.foundation.files import folder_names
from opforge.foundation.remembered_values import FlatStamps, PathStamp

LIST = "RECORD"


class Code:
    """Some files of opforge's, and the wheel's list that may name them, with the stamps that they had at first."""

    def __init__(self, files: Sequence[str], package: str) -> None:
        self._files, self._site = files, os.path.dirname(package)
        self._list = _list_of(self._site, os.path.basename(package))
        paths = [*files, *self._list]
        self._stamps = FlatStamps(paths, Disk().flat_stamps(paths)).pairs()

    def stamps(self) -> list[PathStamp]:
        """Returns the stamps to compare: the list's alone, if it names each file with the digest that the file has now.

        Otherwise the stamps of the files, as in a development install. An installed wheel is as little compared file by
        file as torch's is: an edit in it is noticed if it was made before the look-up, and else at its next upgrade.
        """
        count = len(self._files)
        return self._stamps[count:] if self._list and self._are_listed() else self._stamps[:count]

    def _are_listed(self) -> bool:
        try:
            with open(self._list[0], encoding="utf-8") as file:
                lines = {line.rpartition(",")[0] for line in file}
            return all(f"{os.path.relpath(path, self._site)},sha256={_digest(path)}" in lines for path in self._files)
        except (OSError, ValueError):
            return False


def _list_of(site: str, package: str) -> list[str]:
    """Returns the path of the list of the wheel that a package beside it was installed from; none if there is not one.

    Of two, which a broken upgrade leaves behind, neither is believed.
    """
    names = [name for name in folder_names(site) if name.startswith(f"{package}-") and name.endswith(".dist-info")]
    path = os.path.join(site, names[0], LIST) if len(names) == 1 else ""
    return [path] if path and os.path.isfile(path) else []


def _digest(path: str) -> str:
    """Returns a file's digest as a wheel's list has it."""
    with open(path, "rb") as file:
        return base64.urlsafe_b64encode(hashlib.sha256(file.read()).digest()).rstrip(b"=").decode()
