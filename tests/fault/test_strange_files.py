"""Something else in place of a file of the store: a pipe, a device, a socket, a folder, a file of terabytes."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys

import pytest
from support import child_processes, sample_ops
from support.processes import forked_python

import opforge

pytestmark = [pytest.mark.compile, pytest.mark.timeout(120)]
SECONDS = 60
LOAD = """
import os
from support import sample_ops
print(sample_ops.builder_class(os.environ["FOLDER"], "plain", abi="c")().load().value())
"""
COMMANDS = (["ls"], ["cache", "stats"], ["gc", "--dry-run"], ["verify"], ["report"])


def pipe(path):
    os.mkfifo(path)


def endless_device(path):
    os.symlink("/dev/zero", path)


def full_device(path):
    os.symlink("/dev/full", path)


def bound_socket(path):
    here = os.getcwd()
    os.chdir(path.parent)  # a socket's path may have 107 bytes
    try:
        server = socket.socket(socket.AF_UNIX)
        server.bind(path.name)
        server.close()
    finally:
        os.chdir(here)


def folder(path):
    path.mkdir()


def terabytes(path):
    with open(path, "wb") as file:
        file.truncate(1 << 42)


def dangling_link(path):
    path.symlink_to("nowhere")


KINDS = (pipe, endless_device, full_device, bound_socket, folder, terabytes, dangling_link)


@pytest.fixture(scope="module")
def op_folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("op")
    sample_ops.plain_op(path, value=5)
    return path


def files_of(store):
    """Returns the files of a store, one of each area and kind, relative to it."""
    by_kind = {}
    for parent, _folders, names in os.walk(store):
        for name in names:
            path = os.path.relpath(os.path.join(parent, name), store)
            by_kind[path.split(os.sep)[1 if os.sep in path else 0], os.path.splitext(name)[1]] = path
    return sorted(by_kind.values())


def run(*command, store):
    env = child_processes.environment(OPFORGE_CACHE_DIR=str(store))
    words = [sys.executable, "-m", "opforge"]
    if command[0] == "report":  # it imports torch
        words = [os.path.join(forked_python.commands(), "opforge")]
    return subprocess.run([*words, *command], env=env, capture_output=True, text=True, timeout=SECONDS)


OTHER_KINDS = pytest.mark.long("loads for each file of the store; the commands below are tried with it too")


@pytest.mark.parametrize(
    "replace",
    [pipe, endless_device, pytest.param(folder, marks=OTHER_KINDS), pytest.param(terabytes, marks=OTHER_KINDS)],
)
def test_no_load_waits_for_it_or_reads_it_whole(op_folder, own_store, tmp_path, replace):
    env = {"FOLDER": str(op_folder), "OPFORGE_CACHE_DIR": str(own_store)}
    assert child_processes.run_python(LOAD, env=env) == "5\n"
    run("ls", store=own_store)
    for path in files_of(own_store):
        store = tmp_path / "damaged"
        shutil.copytree(own_store, store, symlinks=True)
        victim = store / path
        victim.unlink()
        replace(victim)
        loaded = child_processes.run_python(LOAD, env={**env, "OPFORGE_CACHE_DIR": str(store)}, timeout=SECONDS)
        assert loaded == "5\n", path
        shutil.rmtree(store)


OFTEN = (endless_device, folder)
"""Those that fail in other ways: reading does not end, or is an error."""
RARELY = [
    pytest.param(kind, marks=pytest.mark.long("7 s for each kind of file")) for kind in KINDS if kind not in OFTEN
]


@pytest.mark.parametrize("replace", [*OFTEN, *RARELY])
def test_every_command_says_so_or_works(op_folder, own_store, replace):
    sample_ops.builder_class(op_folder, "plain", abi="c")().build()
    run("ls", store=own_store)
    for path in files_of(own_store):
        if path.endswith((".json", ".so", "bytes", "summaries", "peaks")) or "/peaks/" in path:
            (own_store / path).chmod(0o600)
            (own_store / path).unlink()
            replace(own_store / path)
    for command in COMMANDS:
        done = run(*command, store=own_store)
        assert "Traceback" not in done.stderr, (command, done.stderr)


@pytest.mark.parametrize("replace", [pipe, folder, terabytes, dangling_link])
def test_an_edited_source_of_load_inline_is_written_again(own_store, replace):
    text = 'extern "C" int answer() { return 42; }\n'
    assert opforge.load_inline("answer", text, abi="c").answer() == 42
    (path,) = (own_store / "v2" / "sources").glob("*/main.cpp")
    for damage in (lambda path: path.write_text("int x;"), lambda path: path.write_text("")):
        damage(path)
        opforge.load_inline("answer", text, abi="c")
        assert path.read_text() == text
    path.unlink()
    replace(path)
    opforge.load_inline("answer", text, abi="c")
    assert path.is_file() and not path.is_symlink() and path.read_text() == text
