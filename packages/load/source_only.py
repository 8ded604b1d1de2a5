"""Imports the Python of a checkout from its sources alone: no digest covers bytecode that may lie there."""

from __future__ import annotations

import os
import sys
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES, ExtensionFileLoader, FileFinder, SourceFileLoader
from types import CodeType

from opforge.packages.form import digests


class SourceOnly(SourceFileLoader):
    """Neither reads nor writes bytecode."""

    def get_code(self, fullname: str) -> CodeType:
        """Returns the code of the source."""
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


def prepare(folder: str) -> None:
    """Makes this process import whatever is below a folder so, also what its modules import later.

    Raises OSError, ValueError for links that lead in a circle.
    """
    digests.files_of(folder)  # no link in it leads in a circle
    for parent, folders, _files in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if name != "__pycache__"]
        sys.path_importer_cache[parent] = FileFinder(
            parent, (ExtensionFileLoader, EXTENSION_SUFFIXES), (SourceOnly, SOURCE_SUFFIXES)
        )
