"""File systems, programs and users' settings that miss what is usual: builds do without it, or say what is wrong."""

from __future__ import annotations

import errno
import os

import pytest
from support import child_processes, sample_ops, text_files
from support.remote.nodes import Nodes

from opforge.builders.run import ninja
from opforge.errors import CacheDirError, ToolchainError

pytestmark = [pytest.mark.compile, pytest.mark.timeout(90)]


def failing(number):
    def fail(*_arguments, **_options):
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.ENOSYS])
def test_a_file_system_without_fsync_is_built_on(tmp_path, monkeypatch, number):
    monkeypatch.setattr(os, "fsync", failing(number))
    assert sample_ops.plain_op(tmp_path / "op")().load().value() == 1
    nodes = Nodes(tmp_path / "nodes", monkeypatch)  # makes a key
    builder = sample_ops.plain_op(tmp_path / "published")()
    built = nodes.built(builder)
    assert nodes.fetch(builder)[0].key == built.key


def test_a_file_system_that_sets_no_times_and_repeats_what_it_has_done_is_built_on(tmp_path, own_store, monkeypatch):
    """NFS repeats a request whose answer was lost: the second one finds what the first one has made."""

    def twice(call):
        return lambda *arguments: call(*arguments) or call(*arguments)

    monkeypatch.setattr(os, "utime", failing(errno.EPERM))
    for name in ("mkdir", "replace", "rename"):
        monkeypatch.setattr(os, name, twice(getattr(os, name)))
    assert sample_ops.plain_op(tmp_path / "op")().load().value() == 1


def test_a_failing_fsync_is_reported_with_the_file(tmp_path, own_store, monkeypatch):
    monkeypatch.setattr(os, "fsync", failing(errno.EIO))
    with pytest.raises(CacheDirError, match=r"staging/.*: Input/output error\. Give yourself access"):
        sample_ops.plain_op(tmp_path / "op")().build()


def test_a_failing_write_in_staging_is_reported(tmp_path, own_store, monkeypatch):
    monkeypatch.setattr(ninja, "write_build_file", failing(errno.EIO))
    with pytest.raises(CacheDirError) as caught:
        sample_ops.plain_op(tmp_path / "op")().build()
    assert str(caught.value) == (
        f"The cache folder {own_store} cannot be used: a build in it failed ([Errno 5] Input/output error). Check its"
        " disk, or set OPFORGE_CACHE_DIR to another folder"
    )


@pytest.mark.parametrize("content", ["#!/no/such/interpreter\n", "\x7fELF\n"])
def test_a_ninja_that_cannot_be_started_is_named(tmp_path, monkeypatch, content):
    path = text_files.write(tmp_path, "ninja", content)
    os.chmod(path, 0o755)
    monkeypatch.setattr(ninja, "find_ninja", lambda: path)
    with pytest.raises(ToolchainError) as caught:
        sample_ops.plain_op(tmp_path / "op")().build()
    text = str(caught.value)
    assert text.startswith(f"The compiler {path} cannot be used: it cannot be started ({path}: ")
    assert text.endswith("Reinstall it (ninja: pip install --force-reinstall ninja), or give yourself access to it.")


def test_a_python_that_cannot_be_started_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(ninja, "_python", lambda: str(tmp_path / "gone"))
    with pytest.raises(ToolchainError, match=r"gone cannot be used: it cannot be started \(.*gone: No such file"):
        sample_ops.plain_op(tmp_path / "op")().build()


UMASK = """
import os, sys
from support import sample_ops
from opforge.errors import CacheDirError
os.umask(int(os.environ["UMASK"], 8))
try:
    print(sample_ops.builder_class(os.environ["FOLDER"], "plain", abi="c")().load().value())
except CacheDirError as error:
    print(error)
"""


@pytest.mark.parametrize("umask", ["0777", "0277", "0700"])
def test_a_umask_that_denies_the_owner_is_reported_and_leaves_no_store_behind(tmp_path, own_store, umask):
    sample_ops.plain_op(tmp_path / "op")
    names = {"FOLDER": str(tmp_path / "op"), "OPFORGE_CACHE_DIR": str(tmp_path / "new")}
    assert child_processes.run_python(UMASK, env={**names, "UMASK": umask}).strip() == (
        f"The cache folder {tmp_path / 'new'} cannot be used: the umask {umask} denies you what you create. Set one"
        " that leaves you access, such as `umask 077`"
    )
    assert not (tmp_path / "new").exists()
    assert child_processes.run_python(UMASK, env={**names, "UMASK": "022"}).strip() == "1"
    assert child_processes.run_python(UMASK, env={**names, "UMASK": umask}).strip() == "1", "a hit creates nothing"
