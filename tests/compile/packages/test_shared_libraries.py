"""A library that two installed releases hold is one entry of the root's layer."""

from __future__ import annotations

import os
import shutil

from support.text_files import write

from opforge.packages.form import version
from opforge.packages.installed import add, remove
from opforge.packages.installed.layout import Root
from opforge.packages.pack.run import Options, pack
from opforge.packages.registry.publish import packed_variants
from opforge.packages.sources import reading


def test_a_library_of_two_releases_stays_until_both_are_removed(scale_releases, tmp_path):
    """A rebuild that changes the Python alone has the same library."""
    folder = shutil.copytree(scale_releases["3"], tmp_path / "rebuild")
    text = (folder / "kernel.toml").read_text()
    write(folder, "kernel.toml", text.replace('version = "3"', 'version = "3.1"'))
    pack(reading.read(str(folder)), str(folder), Options(tried=False))
    root = Root(str(tmp_path / "root"), "folder")
    for release in (scale_releases["3"], str(folder)):
        add.from_folders(root, "acme/scale", [variant.folder for variant in packed_variants(release)])
    entries = os.path.join(root.path, "v2", "entries")
    assert len(os.listdir(entries)) == 1
    remove.remove(root, "acme/scale", version.parse_range("3.0"))
    assert len(os.listdir(entries)) == 1
    remove.remove(root, "acme/scale", version.ANY)
    assert os.listdir(entries) == []
