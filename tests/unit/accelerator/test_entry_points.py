"""Entry points of other packages, and the memory that saves scanning for them."""

from __future__ import annotations

import os
import pathlib
import sys
import time
import types

import pytest
from support.store import remembered

from opforge.accelerator import entry_points
from opforge.foundation import files, remembered_values

GROUP = "opforge.accelerators"


def install(folder, name: str, points: str, kind: str = "dist-info") -> None:
    """Writes a distribution with this entry_points.txt into the folder."""
    info = folder / f"{name}-1.0.{kind}"
    info.mkdir(parents=True, exist_ok=True)
    (info / ("METADATA" if kind == "dist-info" else "PKG-INFO")).write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
    )
    (info / "entry_points.txt").write_text(points)


@pytest.fixture
def site(tmp_path, monkeypatch):
    """The only folder of sys.path. Something is remembered already, and nothing has changed in the last two seconds."""
    folder = tmp_path / "site"
    folder.mkdir()
    files.make_folder(f"{remembered_values.folders()[0]}/{remembered_values.LOOKUPS}")
    clock = types.SimpleNamespace(time_ns=lambda: time.time_ns() + 2 * remembered_values.RACY_NS)
    monkeypatch.setattr(entry_points, "time", clock)
    monkeypatch.setattr(sys, "path", [str(folder), str(tmp_path / "missing.zip")])
    return folder


@pytest.fixture
def scans(monkeypatch):
    """The folders whose distributions are read."""
    folders, scan = [], entry_points._scan
    monkeypatch.setattr(entry_points, "_scan", lambda folder: folders.append(folder) or scan(folder))
    return folders


def entries(group: str = GROUP):
    """Returns (name, value, source) of every entry point."""
    return [(point.name, point.value, point.source) for point in entry_points.entry_points(group)]


def remembered_path():
    """Returns the one file that is remembered."""
    (folder,) = remembered_values.kept_folders()
    (name,) = os.listdir(folder)
    return pathlib.Path(folder, name)


def test_an_entry_point_has_its_distributions_name_and_version(site):
    install(site, "quick", "[opforge.accelerators]\nquick = quick.device:Quick\n[console_scripts]\nq = quick:main\n")
    install(site, "ops", "[opforge.op_builders]\nfoo = ops:Foo\n")
    assert entries() == [("quick", "quick.device:Quick", "quick 1.0")]
    assert entries("opforge.op_builders") == [("foo", "ops:Foo", "ops 1.0")]


def test_a_second_process_does_not_scan(site, scans):
    install(site, "quick", "[opforge.accelerators]\nquick = quick:Quick\n")
    first = entries()
    scans.clear()
    assert entries() == first
    assert scans == []


def test_a_newly_installed_package_is_seen(site, scans):
    assert entries() == []
    install(site, "quick", "[opforge.accelerators]\nquick = quick:Quick\n")
    assert [name for name, _, _ in entries()] == ["quick"]


def test_a_folder_that_changed_just_now_is_not_remembered(site, scans, monkeypatch):
    install(site, "quick", "[opforge.accelerators]\nquick = quick:Quick\n")
    monkeypatch.setattr(entry_points, "time", time)
    assert entries() == entries() and scans == [str(site)] * 2


def test_a_folder_without_packages_is_not_scanned(site, scans):
    (site / "log.txt").touch()
    assert entries() == [] == scans
    install(site, "quick", "[opforge.accelerators]\nquick = quick:Quick\n")
    assert len(entries()) == 1 and scans == [str(site)]


def test_a_development_install_rewritten_in_place_is_seen(site):
    install(site, "dev", "", kind="egg-info")
    assert entries() == []
    stamp = site.stat().st_mtime_ns
    (site / "dev-1.0.egg-info/entry_points.txt").write_text("[opforge.accelerators]\ndev = dev:Dev\n")
    os.utime(site, ns=(stamp, stamp))
    assert [name for name, _, _ in entries()] == ["dev"]


def test_the_first_of_two_distributions_of_one_name_counts(site, tmp_path, monkeypatch):
    other = tmp_path / "other"
    install(site, "quick", "[opforge.accelerators]\nquick = first:Quick\n")
    install(other, "quick", "[opforge.accelerators]\nquick = second:Quick\n")
    monkeypatch.setattr(sys, "path", [str(site), str(other), str(site)])
    assert entries() == [("quick", "first:Quick", "quick 1.0")]


def test_a_broken_distribution_hides_no_other(site):
    install(site, "broken", "[opforge.accelerators\nnonsense")
    install(site, "quick", "[opforge.accelerators]\nquick = quick:Quick\n")
    assert [name for name, _, _ in entries()] == ["quick"]


def test_a_removed_working_folder_on_the_path_hides_no_other(site, tmp_path, monkeypatch):
    install(site, "quick", "[opforge.accelerators]\nquick = quick:Quick\n")
    monkeypatch.setattr(sys, "path", ["", *sys.path])  # as at an interactive prompt, and in a notebook
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert entries() == [("quick", "quick:Quick", "quick 1.0")]


def test_no_folder_is_made_to_remember_it(site, tmp_path, monkeypatch):
    install(site, "quick", "[opforge.accelerators]\nquick = quick:Quick\n")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "none"))
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(tmp_path / "none" / "opforge"))
    assert len(entries()) == 1
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    "change", [lambda rows: rows[0].pop(), lambda rows: rows.append(3), lambda rows: rows[0].__setitem__(0, 1)]
)
def test_a_damaged_value_is_found_again(site, scans, change):
    install(site, "quick", "[opforge.accelerators]\nquick = quick:Quick\n")
    entries()
    fields = remembered.read(remembered_path())
    change(fields["value"])
    remembered.write(remembered_path(), fields)
    assert len(entries()) == 1 and scans == [str(site)] * 2


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"format": 0}'])
def test_a_damaged_memory_is_written_again(site, content):
    install(site, "quick", "[opforge.accelerators]\nquick = quick:Quick\n")
    entries()
    remembered_path().write_text(content)
    assert len(entries()) == 1
    assert len(remembered.read(remembered_path())["value"]) == 1


def forge(site) -> pathlib.Path:
    """Remembers an entry point `e` that is not installed. Returns the file."""
    entries()
    fields = remembered.read(remembered_path())
    remembered.write(remembered_path(), {**fields, "value": [[GROUP, "e", "e:E", "e", "1"]]})
    assert [name for name, _, _ in entries()] == ["e"]
    return remembered_path()


def test_a_memory_that_others_can_write_is_not_read(site):
    install(site, "quick", "")
    forge(site).chmod(0o666)
    assert entries() == []


def test_a_memory_that_is_a_symbolic_link_is_not_read(site, tmp_path):
    install(site, "quick", "")
    file = forge(site)
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    assert entries() == []


def test_a_memory_in_a_folder_that_others_can_write_is_not_read(site):
    install(site, "quick", "")
    forge(site).parent.chmod(0o777)
    assert entries() == []


def test_a_memory_that_cannot_be_written_is_not_needed(site, tmp_path, monkeypatch):
    install(site, "quick", "[opforge.accelerators]\nquick = quick:Quick\n")
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert len(entries()) == 1
