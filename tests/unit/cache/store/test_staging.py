"""Staging folders: removed once their builder is dead, and what a failed rename means."""

from __future__ import annotations

import os
import time
import types

import pytest
from support import child_processes, text_files
from support.store import own_names

from opforge.cache import staging


def test_the_folders_of_this_hosts_dead_builders_are_swept(fake_store, monkeypatch):
    dead = child_processes.start_python("pass")
    dead.communicate()
    for host in ("box", "box.site.example"):
        monkeypatch.setattr("os.uname", lambda host=host: types.SimpleNamespace(nodename=host))
        own = staging.new_folder(fake_store.layout, "plan" * 8)
        monkeypatch.setattr("os.getpid", lambda: dead.pid)
        abandoned = staging.new_folder(fake_store.layout, "plan" * 8)
        monkeypatch.undo()
        monkeypatch.setattr("os.uname", lambda host=host: types.SimpleNamespace(nodename=host))
        assert staging.sweep(fake_store.layout) == 1
        assert os.path.isdir(own) and not os.path.exists(abandoned)
        os.rmdir(own)


def test_the_folder_of_a_dead_builder_is_swept_though_another_process_has_its_id(fake_store):
    own = staging.new_folder(fake_store.layout, "plan" * 8)
    abandoned = own.replace(f".{os.getpid()}-", f".{os.getpid()}-9")  # a process that started at another time
    os.mkdir(abandoned)
    assert staging.sweep(fake_store.layout) == 1
    assert os.path.isdir(own) and not os.path.exists(abandoned)


def test_machines_with_one_name_leave_each_others_builds_alone(fake_store, monkeypatch, tmp_path):
    """As clones of one machine do: same name, same ids of processes, another boot."""
    dead = child_processes.start_python("pass")
    dead.communicate()
    text_files.write(tmp_path, "boot_id", "0f2a5a3e-0000-4000-8000-000000000000\n")
    monkeypatch.setattr(staging, "BOOT_ID", str(tmp_path / "boot_id"))
    monkeypatch.setattr("os.getpid", lambda: dead.pid)
    of_the_clone = staging.new_folder(fake_store.layout, "plan" * 8)
    monkeypatch.undo()
    assert staging.sweep(fake_store.layout) == 0 and os.path.isdir(of_the_clone)
    os.utime(of_the_clone, (0, 0))
    assert staging.sweep(fake_store.layout) == 1


@pytest.mark.parametrize("hours", [-30, 30])
def test_the_age_of_another_hosts_folder_is_by_the_clock_of_the_file_system(fake_store, monkeypatch, hours):
    folder = fake_store.layout.path("staging", own_names.EXAMPLES["staging"])
    os.mkdir(folder)
    monkeypatch.setattr(time, "time", lambda real=time.time: real() + hours * 3600)
    assert staging.sweep(fake_store.layout) == 0
    old = time.time() - (hours + 25) * 3600
    os.utime(folder, (old, old))
    assert staging.sweep(fake_store.layout) == 1


def test_the_folder_of_another_host_is_swept_after_a_day(fake_store):
    folder = fake_store.layout.path("staging", own_names.EXAMPLES["staging"])
    os.mkdir(folder)
    assert staging.sweep(fake_store.layout) == 0
    os.utime(folder, (0, 0))
    assert staging.sweep(fake_store.layout) == 1


def test_a_failed_rename_is_no_entry_of_another_builder(fake_store, monkeypatch):
    def refuse(*_arguments):
        raise PermissionError(13, "Permission denied")

    finished = staging.new_folder(fake_store.layout, "plan" * 8)
    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(PermissionError, match="Permission denied"):
        staging.publish(fake_store.layout, finished, "0" * 32)


def test_nothing_becomes_an_entry_before_all_of_it_is_on_the_disk(fake_store, monkeypatch):
    """After a crash of the machine an entry is complete or missing."""
    synced, folder = [], staging.new_folder(fake_store.layout, "plan" * 8)
    for name in ("a.so", "record.json"):
        text_files.write(folder, name, "")
    monkeypatch.setattr(
        staging, "sync", lambda path, sync=staging.sync: synced.append(os.path.basename(path)) or sync(path)
    )
    monkeypatch.setattr(os, "rename", lambda *paths, rename=os.rename: synced.append("rename") or rename(*paths))
    assert staging.publish(fake_store.layout, folder, own_names.EXAMPLES["entries"])
    assert sorted(synced[:2]) == ["a.so", "record.json"] and synced[2:] == ["rename"]
