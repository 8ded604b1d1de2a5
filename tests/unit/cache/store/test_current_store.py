"""The store that the settings name: which folders are used, what is reported of the others, how a store is made."""

from __future__ import annotations

import errno
import os
import re
import stat

import pytest
from support import child_processes, text_files
from support.owners import ME, STRANGER, as_root

from opforge.cache import layout
from opforge.cache.current_store import PLACEHOLDER_ROOT, current_store, find_problem, prepare, writable_store
from opforge.errors import CacheDirError, LayerError


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "cache"
    path.mkdir(mode=0o700)
    return path


# -- making a store ----------------------------------------------------------------------------------------------------


@pytest.fixture(params=[0o000, 0o002, 0o022, 0o077], ids=lambda mask: f"umask {mask:03o}")
def umask(request):
    old = os.umask(request.param)
    yield request.param
    os.umask(old)


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


def test_a_store_is_private_and_trusted_whatever_the_umask(tmp_path, umask):
    tmp_path.chmod(0o700)
    root = str(tmp_path / "a" / "b" / "store")
    prepare(root, ME)
    assert {mode(folder) for folder, _folders, _files in os.walk(tmp_path / "a")} == {0o700}
    assert find_problem(root, ME) is None
    prepare(root, ME)


def test_a_store_is_tagged_for_backup_programs_once(tmp_path):
    prepare(str(tmp_path), ME)
    tag = tmp_path / "CACHEDIR.TAG"
    assert tag.read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55\n")
    inode = tag.stat().st_ino
    prepare(str(tmp_path), ME)
    assert tag.stat().st_ino == inode
    assert os.listdir(tmp_path / layout.VERSION / "staging") == []


def test_a_new_file_system_can_be_the_cache_folder(tmp_path):
    (tmp_path / "lost+found").mkdir()
    prepare(str(tmp_path), ME)
    assert (tmp_path / layout.VERSION).is_dir()


def test_a_folder_with_other_files_and_no_store_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    problem = "it holds other files, such as thesis.tex, and no store of opforge. Set OPFORGE_CACHE_DIR to an empty"
    with pytest.raises(CacheDirError, match=re.escape(problem)):
        prepare(str(tmp_path), ME)
    assert os.listdir(tmp_path) == ["thesis.tex"]
    prepare(str(tmp_path / "opforge"), ME)
    (tmp_path / "opforge" / "notes.txt").write_text("")
    prepare(str(tmp_path / "opforge"), ME)


def test_a_link_to_a_missing_folder_is_a_new_store_there(tmp_path):
    """A cache on a scratch disk that was cleaned."""
    (tmp_path / "cache").symlink_to(tmp_path / "scratch" / "opforge")
    prepare(str(tmp_path / "cache"), ME)
    assert (tmp_path / "scratch" / "opforge" / layout.VERSION).is_dir() and mode(tmp_path / "scratch") == 0o700


@as_root
def test_a_folder_that_another_user_makes_while_the_store_is_made_is_refused(tmp_path, monkeypatch):
    root = tmp_path / "cache"

    def make_folder(path):
        root.mkdir(mode=0o777)
        os.chown(root, STRANGER, STRANGER)

    monkeypatch.setattr("opforge.cache.current_store.make_folder", make_folder)
    with pytest.raises(CacheDirError, match=f"cache belongs to user {STRANGER}, not to you"):
        prepare(str(root), ME)
    assert not os.listdir(root)


def test_a_network_file_system_that_says_busy_is_no_error(tmp_path, monkeypatch):
    def busy(path):
        raise OSError(errno.EBUSY, "Device or resource busy", path)

    monkeypatch.setattr(os, "rmdir", busy)
    prepare(str(tmp_path), ME)
    assert (tmp_path / layout.VERSION / "entries").is_dir()


def test_a_file_in_place_of_a_folder_is_an_error(tmp_path):
    text_files.write(tmp_path, layout.VERSION, "")
    with pytest.raises(CacheDirError, match=r"it cannot be written \(File exists\). Set OPFORGE_CACHE_DIR to a folder"):
        prepare(str(tmp_path), ME)


# -- opening a store ---------------------------------------------------------------------------------------------------


def test_a_chosen_folder_that_cannot_be_trusted_is_an_error_with_the_fix(own_store):
    own_store.mkdir()
    own_store.chmod(0o777)
    text = rf"{own_store} cannot be used: {own_store} can be written by everybody. Run: chmod go-w {own_store}"
    with pytest.raises(CacheDirError, match=text):
        current_store()


def test_a_chosen_folder_that_is_a_file_is_an_error(own_store, monkeypatch):
    text_files.write(own_store.parent, own_store.name, "")
    with pytest.raises(CacheDirError, match=f"{own_store} is not a folder. Choose another folder, or give"):
        writable_store()


def test_a_default_folder_that_cannot_be_trusted_is_replaced_with_one_warning(
    tmp_path, monkeypatch, warnings_of_the_cache
):
    monkeypatch.delenv("OPFORGE_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "opforge").mkdir()
    (tmp_path / "opforge").chmod(0o777)
    root = writable_store().layout.root
    assert {root} == {current_store().layout.root, writable_store().layout.root}
    assert root.startswith(f"{tmp_path}/opforge-{os.geteuid()}-")
    assert stat.S_IMODE(os.stat(root).st_mode) == 0o700
    (warning,) = warnings_of_the_cache()
    refused = f"{tmp_path}/opforge"
    assert warning == (
        f"The cache folder {refused} cannot be used: {refused} can be written by everybody. Using {root} instead, which"
        " is removed when this process ends: each process builds again. To keep built ops: run: chmod go-w"
        f" {refused}; or set OPFORGE_TRUSTED_FOLDERS={refused} if you trust everybody who may write there; or set"
        " OPFORGE_CACHE_DIR to a folder of your own."
    )


def test_opening_a_store_creates_nothing(own_store):
    current_store()
    assert not own_store.exists()


def test_a_layer_that_cannot_be_trusted_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "layer").mkdir()
    (tmp_path / "layer").chmod(0o777)
    monkeypatch.setenv("OPFORGE_CACHE_LAYERS", str(tmp_path / "layer"))
    with pytest.raises(
        LayerError, match=r"layer can be written by everybody. A layer must be owned by root, by you or"
    ):
        current_store()


def test_a_file_in_a_layers_place_is_an_error_that_is_not_about_its_owner(tmp_path, monkeypatch):
    (tmp_path / "layer.tar").touch()
    monkeypatch.setenv("OPFORGE_CACHE_LAYERS", str(tmp_path / "layer.tar"))
    with pytest.raises(LayerError, match=r"layer\.tar is not a folder\. .*\. Choose another folder, or") as caught:
        current_store()
    assert "Name its owner" not in str(caught.value)


@as_root
def test_a_layer_may_belong_to_a_named_owner(folder, monkeypatch):
    os.chown(folder, STRANGER, STRANGER)
    monkeypatch.setenv("OPFORGE_CACHE_LAYERS", str(folder))
    with pytest.raises(
        LayerError, match=f"belongs to user {STRANGER}.* or by a user in OPFORGE_TRUSTED_OWNERS"
    ) as caught:
        current_store()
    assert str(caught.value).startswith(f"The layer {folder} cannot be used: ") and "chown" not in str(caught.value)
    monkeypatch.setenv("OPFORGE_TRUSTED_OWNERS", str(STRANGER))
    assert [source.layout.root for source in current_store().layers] == [str(folder)]


@as_root
def test_the_users_own_store_may_not_belong_to_a_named_owner(own_store, monkeypatch):
    own_store.mkdir(mode=0o700)
    os.chown(own_store, STRANGER, STRANGER)
    monkeypatch.setenv("OPFORGE_TRUSTED_OWNERS", str(STRANGER))
    with pytest.raises(CacheDirError, match=f"belongs to user {STRANGER}"):
        current_store()


AS_NOBODY = """
import importlib, logging, os, pkgutil, sys, tempfile, grp, pwd, random, shlex, shutil
import opforge.cache
# All of it, while this is root: the checkout may be in a folder that nobody else can enter.
for module in pkgutil.walk_packages(opforge.cache.__path__, "opforge.cache."):
    importlib.import_module(module.name)
from opforge.cache.current_store import writable_store
from opforge.errors import CacheDirError
os.setgroups([]); os.setgid(65534); os.setuid(65534)
logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
try:
    for _ in range(2):
        print("ROOT", writable_store().layout.root)
except CacheDirError as error:
    print("REFUSED", error)
"""


@pytest.fixture
def home_of_nobody():
    """A home folder outside pytest's own, which the user nobody could not enter."""
    import shutil
    import tempfile

    path = tempfile.mkdtemp(prefix="opforge-test-")
    os.chmod(path, 0o755)
    os.makedirs(os.path.join(path, "tmp"))
    os.chmod(os.path.join(path, "tmp"), 0o1777)
    yield path
    shutil.rmtree(path)


def run_as_nobody(home, **env):
    return child_processes.run_python(
        AS_NOBODY, env={"HOME": home, "TMPDIR": home + "/tmp", "XDG_CACHE_HOME": None, **env}, cwd="/"
    )


@as_root
def test_a_home_that_cannot_be_written_is_replaced_with_one_warning(home_of_nobody):
    lines = run_as_nobody(home_of_nobody, OPFORGE_CACHE_DIR=None).splitlines()
    assert len(lines) == 3, lines
    assert lines[0].startswith(f"The cache folder {home_of_nobody}/.cache/opforge cannot be used: it cannot be written")
    assert lines[1] == lines[2] and lines[1].startswith(f"ROOT {home_of_nobody}/tmp/opforge-65534-")


def test_a_refused_default_folder_is_replaced_only_when_something_is_built(monkeypatch, tmp_path, caplog):
    """A layer can be read in a container in which no folder can be written."""
    import tempfile

    (tmp_path / "opforge").mkdir()
    (tmp_path / "opforge").chmod(0o777)
    monkeypatch.delenv("OPFORGE_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tempfile, "mkdtemp", no_temporary_folder)
    assert current_store().layout.root == PLACEHOLDER_ROOT and not caplog.records
    with pytest.raises(CacheDirError, match=r"written by everybody; no temporary folder can be made \(No usable"):
        writable_store()


def no_temporary_folder(**_options):
    raise FileNotFoundError(2, "No usable temporary directory found")


@as_root
def test_a_chosen_folder_that_cannot_be_written_is_an_error_with_the_variable_to_set(home_of_nobody):
    output = run_as_nobody(home_of_nobody, OPFORGE_CACHE_DIR=home_of_nobody + "/chosen")
    assert output == (
        f"REFUSED The cache folder {home_of_nobody}/chosen cannot be used: it cannot be written (Permission denied)."
        " Set OPFORGE_CACHE_DIR to a folder that you can write\n"
    )


@as_root
def test_a_home_of_another_user_is_replaced(home_of_nobody):
    os.makedirs(home_of_nobody + "/.cache")
    os.chown(home_of_nobody + "/.cache", STRANGER, STRANGER)
    os.chmod(home_of_nobody + "/.cache", 0o755)
    lines = run_as_nobody(home_of_nobody, OPFORGE_CACHE_DIR=None).splitlines()
    assert f"{home_of_nobody}/.cache belongs to user {STRANGER}" in lines[0]
    assert lines[1].startswith(f"ROOT {home_of_nobody}/tmp/")
