"""Entry points of other packages, and the index that saves scanning for them."""

from __future__ import annotations

import json
import os
import sys
import time

import pytest

from opforge.accelerator import entry_points

GROUP = "opforge.accelerators"


def install(folder, name: str, points: str, kind: str = "dist-info") -> None:
    """Writes a distribution with this entry_points.txt into the folder."""
    info = folder / f"{name}-1.0.{kind}"
    info.mkdir(parents=True, exist_ok=True)
    (info / ("METADATA" if kind == "dist-info" else "PKG-INFO")).write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
    )
    (info / "entry_points.txt").write_text(points)
    make_old(folder)


def make_old(folder, seconds: int = 100) -> None:
    """Sets the folder's time back, to another time at each call, so that the index records the folder."""
    time_ns = time.time_ns() - seconds * 10**9 - time.perf_counter_ns() % 10**9
    os.utime(folder, ns=(time_ns, time_ns))


@pytest.fixture
def site(tmp_path, monkeypatch):
    """The only folder of sys.path, with an empty cache folder."""
    folder = tmp_path / "site"
    folder.mkdir()
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(cache))
    monkeypatch.setattr(sys, "path", [str(folder), str(tmp_path / "missing.zip")])
    return folder


@pytest.fixture
def scans(monkeypatch):
    """The folders that are listed, which is how a scan begins."""
    folders = []
    listdir = os.listdir
    monkeypatch.setattr(os, "listdir", lambda folder: folders.append(folder) or listdir(folder))
    return folders


def entries(group: str = GROUP):
    """Returns (name, value, source) of every entry point."""
    return [(point.name, point.value, point.source) for point in entry_points.entry_points(group)]


def index_file(tmp_path):
    """Returns the one file in the index's folder."""
    (file,) = (tmp_path / "cache/index").iterdir()
    return file


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


def test_a_folder_that_changed_just_now_is_not_recorded(site, scans):
    os.utime(site)
    entries()
    entries()
    assert scans == [str(site), str(site)]


def test_a_changing_folder_without_packages_does_not_rewrite_the_index(site, tmp_path):
    make_old(site)
    entries()
    inode = index_file(tmp_path).stat().st_ino
    (site / "log.txt").touch()
    make_old(site)
    assert entries() == [] and index_file(tmp_path).stat().st_ino == inode
    install(site, "quick", "[opforge.accelerators]\nquick = quick:Quick\n")
    assert len(entries()) == 1 and index_file(tmp_path).stat().st_ino != inode


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


def test_no_cache_folder_is_made_for_the_index(site, tmp_path, monkeypatch):
    install(site, "quick", "[opforge.accelerators]\nquick = quick:Quick\n")
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(tmp_path / "none"))
    assert len(entries()) == 1
    assert not (tmp_path / "none").exists()


def test_the_index_is_private_and_leaves_no_temporary_file(site, tmp_path):
    make_old(site)
    entries()
    assert (tmp_path / "cache/index").stat().st_mode & 0o777 == 0o700
    assert index_file(tmp_path).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", '{"format": 0}', '{"format": 2, "folders": {"/x": [1]}}', '{"format": 2, "folders": [3]}'],
)
def test_a_damaged_index_is_rewritten(site, tmp_path, content):
    install(site, "quick", "[opforge.accelerators]\nquick = quick:Quick\n")
    entries()
    index_file(tmp_path).write_text(content)
    assert len(entries()) == 1
    assert json.loads(index_file(tmp_path).read_text())["format"] == 2


def forged_index(site) -> str:
    """Returns an index with an entry point `e` that is not installed."""
    return json.dumps(
        {"format": 2, "folders": {str(site): [site.stat().st_mtime_ns, [[GROUP, "e", "e:E", "e", "1"]], {}]}}
    )


def test_an_index_that_others_can_write_is_not_read(site, tmp_path):
    make_old(site)
    entries()
    file = index_file(tmp_path)
    file.write_text(forged_index(site))
    assert len(entries()) == 1
    file.chmod(0o666)
    assert entries() == []


def test_an_index_that_is_a_symbolic_link_is_not_read(site, tmp_path):
    make_old(site)
    entries()
    file = index_file(tmp_path)
    (tmp_path / "elsewhere").write_text(forged_index(site))
    file.unlink()
    file.symlink_to(tmp_path / "elsewhere")
    assert entries() == []


@pytest.mark.parametrize("folder", ["cache", "cache/index"])
def test_an_index_in_a_folder_that_others_can_write_is_not_read(site, tmp_path, folder):
    make_old(site)
    entries()
    index_file(tmp_path).write_text(forged_index(site))
    (tmp_path / folder).chmod(0o777)
    assert entries() == []


def test_an_index_that_cannot_be_written_is_not_needed(site, tmp_path, monkeypatch):
    install(site, "quick", "[opforge.accelerators]\nquick = quick:Quick\n")
    (tmp_path / "cache/index").write_text("a file where the folder should be")
    assert len(entries()) == 1
