"""Entry points and the index that spares the scan."""

from __future__ import annotations

import json
import os
import sys
import time

import pytest

from opforge.accelerator import entry_points

GROUP = "opforge.accelerators"


def install(folder, name: str, points: str, kind: str = "dist-info") -> None:
    info = folder / f"{name}-1.0.{kind}"
    info.mkdir(parents=True, exist_ok=True)
    (info / ("METADATA" if kind == "dist-info" else "PKG-INFO")).write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
    )
    (info / "entry_points.txt").write_text(points)
    age(folder)


def age(folder, seconds: int = 100) -> None:
    """Set the folder's time back, each time to another one, so that it counts as settled."""
    then = time.time_ns() - seconds * 10**9 - time.perf_counter_ns() % 10**9
    os.utime(folder, ns=(then, then))


@pytest.fixture
def site(tmp_path, monkeypatch):
    folder = tmp_path / "site"
    folder.mkdir()
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(cache))
    monkeypatch.setattr(sys, "path", [str(folder), str(tmp_path / "missing.zip")])
    return folder


@pytest.fixture
def scans(monkeypatch):
    scanned = []
    scan = entry_points._scan
    monkeypatch.setattr(entry_points, "_scan", lambda folder: scanned.append(folder) or scan(folder))
    return scanned


def found(group: str = GROUP):
    return [(point.name, point.value, point.source) for point in entry_points.entry_points(group)]


def index(tmp_path):
    (file,) = (tmp_path / "cache/index").iterdir()
    return file


def test_an_entry_point_is_found_with_its_distribution(site):
    install(site, "quick", "[opforge.accelerators]\nquick = quick.device:Quick\n[console_scripts]\nq = quick:main\n")
    install(site, "ops", "[opforge.op_builders]\nfoo = ops:Foo\n")
    assert found() == [("quick", "quick.device:Quick", "quick 1.0")]
    assert found("opforge.op_builders") == [("foo", "ops:Foo", "ops 1.0")]


def test_a_second_process_does_not_scan(site, scans):
    install(site, "quick", "[opforge.accelerators]\nquick = quick:Quick\n")
    first = found()
    scans.clear()
    assert found() == first
    assert scans == []


def test_a_newly_installed_package_is_seen(site, scans):
    assert found() == []
    install(site, "quick", "[opforge.accelerators]\nquick = quick:Quick\n")
    assert [name for name, _, _ in found()] == ["quick"]


def test_a_folder_that_changed_just_now_is_not_remembered(site, scans):
    os.utime(site)
    found()
    found()
    assert scans == [str(site), str(site)]


def test_a_folder_of_scripts_that_changes_with_each_run_is_not_written_down_each_time(site, tmp_path):
    age(site)
    found()
    written = index(tmp_path).stat().st_ino
    (site / "log.txt").touch()
    age(site)
    assert found() == [] and index(tmp_path).stat().st_ino == written
    install(site, "quick", "[opforge.accelerators]\nquick = quick:Quick\n")
    assert len(found()) == 1 and index(tmp_path).stat().st_ino != written


def test_a_development_install_rewritten_in_place_is_seen(site):
    install(site, "dev", "", kind="egg-info")
    assert found() == []
    stamp = site.stat().st_mtime_ns
    (site / "dev-1.0.egg-info/entry_points.txt").write_text("[opforge.accelerators]\ndev = dev:Dev\n")
    os.utime(site, ns=(stamp, stamp))
    assert [name for name, _, _ in found()] == ["dev"]


def test_of_two_distributions_of_one_name_the_first_on_the_path_counts(site, tmp_path, monkeypatch):
    other = tmp_path / "other"
    install(site, "quick", "[opforge.accelerators]\nquick = first:Quick\n")
    install(other, "quick", "[opforge.accelerators]\nquick = second:Quick\n")
    monkeypatch.setattr(sys, "path", [str(site), str(other), str(site)])
    assert found() == [("quick", "first:Quick", "quick 1.0")]


def test_a_broken_distribution_hides_no_other(site):
    install(site, "broken", "[opforge.accelerators\nnonsense")
    install(site, "quick", "[opforge.accelerators]\nquick = quick:Quick\n")
    assert [name for name, _, _ in found()] == ["quick"]


def test_no_cache_folder_is_made_for_the_index(site, tmp_path, monkeypatch):
    install(site, "quick", "[opforge.accelerators]\nquick = quick:Quick\n")
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(tmp_path / "none"))
    assert len(found()) == 1
    assert not (tmp_path / "none").exists()


def test_the_index_is_private_and_leaves_no_draft(site, tmp_path):
    age(site)
    found()
    assert (tmp_path / "cache/index").stat().st_mode & 0o777 == 0o700
    assert index(tmp_path).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", '{"format": 0}', '{"format": 1, "folders": {"/x": [1]}}', '{"format": 1, "folders": [3]}'],
)
def test_a_damaged_index_is_made_anew(site, tmp_path, content):
    install(site, "quick", "[opforge.accelerators]\nquick = quick:Quick\n")
    found()
    index(tmp_path).write_text(content)
    assert len(found()) == 1
    assert json.loads(index(tmp_path).read_text())["format"] == 1


def poisoned(tmp_path, site) -> str:
    return json.dumps(
        {"format": 1, "folders": {str(site): [site.stat().st_mtime_ns, [[GROUP, "e", "e:E", "e", "1"]], {}]}}
    )


def test_an_index_that_others_may_write_is_not_believed(site, tmp_path):
    age(site)
    found()
    file = index(tmp_path)
    file.write_text(poisoned(tmp_path, site))
    assert len(found()) == 1
    file.chmod(0o666)
    assert found() == []


def test_an_index_that_is_a_link_is_not_believed(site, tmp_path):
    age(site)
    found()
    file = index(tmp_path)
    (tmp_path / "elsewhere").write_text(poisoned(tmp_path, site))
    file.unlink()
    file.symlink_to(tmp_path / "elsewhere")
    assert found() == []


@pytest.mark.parametrize("folder", ["cache", "cache/index"])
def test_a_folder_that_others_may_write_is_not_used(site, tmp_path, folder):
    age(site)
    found()
    index(tmp_path).write_text(poisoned(tmp_path, site))
    (tmp_path / folder).chmod(0o777)
    assert found() == []


def test_an_index_that_cannot_be_written_is_done_without(site, tmp_path, monkeypatch):
    install(site, "quick", "[opforge.accelerators]\nquick = quick:Quick\n")
    (tmp_path / "cache/index").write_text("a file where the folder should be")
    assert len(found()) == 1
