"""Trust: whose folders are used, and what is said of the others."""

from __future__ import annotations

import os
import stat

import pytest
from support import child_processes, text_files

from opforge.cache import current, layout
from opforge.cache.filesystem import trust
from opforge.errors import CacheDirError, LayerError

ME = frozenset({0, os.geteuid()})
STRANGER = 4242
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away: run the tests as root")


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "cache"
    path.mkdir(mode=0o700)
    return path


def refused(path, owners=ME):
    found = trust.folder_problem(str(path), owners)
    assert found is not None
    return found


def test_a_private_folder_is_trusted(folder):
    assert trust.folder_problem(str(folder), ME) is None


def test_a_missing_folder_is_no_objection(folder):
    assert trust.folder_problem(str(folder / "a" / "b"), ME) is None


def test_a_file_is_refused(tmp_path):
    path = text_files.write(tmp_path, "cache", "")
    assert refused(path) == (f"{path} is not a folder", "Choose another folder, or give that file another name")
    assert refused(path + "/below")[0] == f"{path} is not a folder"


@pytest.mark.parametrize("mode", [0o707, 0o777, 0o1777])
def test_a_folder_that_everybody_can_write_is_refused_with_the_command_that_mends_it(folder, mode):
    folder.chmod(mode)
    assert refused(folder) == (f"{folder} can be written by everybody", f"Run: chmod go-w {folder}")
    os.system(refused(folder)[1].removeprefix("Run: "))
    assert trust.folder_problem(str(folder), ME) is None


def test_a_group_can_write_only_where_it_is_the_users_own(folder, monkeypatch):
    folder.chmod(0o770)
    monkeypatch.setattr(trust, "_private_group", lambda _gid: True)
    assert trust.folder_problem(str(folder), ME) is None
    monkeypatch.setattr(trust, "_private_group", lambda _gid: False)
    assert refused(folder)[0] == f"{folder} can be written by group {folder.stat().st_gid}"


def test_a_private_group_has_the_users_name_and_nobody_else_in_it(monkeypatch):
    import grp
    import pwd
    from types import SimpleNamespace as Fake

    monkeypatch.setattr(pwd, "getpwuid", lambda _uid: Fake(pw_gid=1000, pw_name="ann"))
    for gid, name, members, private in [
        (1000, "ann", [], True),
        (1000, "ann", ["ann"], True),
        (1000, "ann", ["bob"], False),
        (1000, "users", [], False),
        (50, "ann", [], False),
    ]:
        monkeypatch.setattr(grp, "getgrgid", lambda _gid, n=name, m=members: Fake(gr_name=n, gr_mem=m))
        assert trust._private_group(gid) is private

    def nobody(_uid):
        raise KeyError

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    assert not trust._private_group(1000)


def test_a_parent_that_everybody_can_write_must_be_sticky(folder, tmp_path):
    below = folder / "mine"
    below.mkdir(mode=0o700)
    folder.chmod(0o1777)
    assert trust.folder_problem(str(below), ME) is None
    folder.chmod(0o777)
    assert refused(below) == (f"{folder} can be written by everybody", f"Run: chmod go-w {folder}")


def test_a_link_is_judged_by_where_it_leads(folder, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(folder)
    assert trust.folder_problem(str(link), ME) is None
    folder.chmod(0o777)
    assert refused(link)[0] == f"{folder} can be written by everybody"


def test_a_link_to_itself_is_an_objection_not_a_crash(tmp_path):
    link = tmp_path / "link"
    link.symlink_to(link)
    assert refused(link)[0]


@as_root
def test_another_users_folder_is_refused(folder):
    os.chown(folder, STRANGER, STRANGER)
    problem, advice = refused(folder)
    assert problem == f"{folder} belongs to user {STRANGER}, not to you (user 0)"
    assert advice == f"Choose a folder of your own, or take it over: sudo chown -R 0 {folder}"
    problem, advice = refused(folder / "below" if (folder / "below").mkdir() is None else None)
    assert advice == "Choose a folder of your own"
    assert trust.folder_problem(str(folder), ME | {STRANGER}) is None


@as_root
def test_a_library_of_another_user_is_not_loaded_from_a_trusted_folder(folder):
    import hashlib

    from opforge.cache.records.entry import Entry, integrity_problem

    path = text_files.write(folder, "a.so", "x")
    os.chown(path, STRANGER, STRANGER)
    os.chmod(path, 0o500)
    entry = Entry("r", str(folder), {"file": "a.so", "size": 1, "sha256": hashlib.sha256(b"x").hexdigest()}, "cache")
    assert integrity_problem(entry, ME) == f"the library belongs to user {STRANGER}, who is not trusted here"
    assert integrity_problem(entry, ME | {STRANGER}) is None


def test_trusted_owners_are_root_me_and_those_named_who_exist():
    assert trust.trusted_ids() == {0, os.geteuid()}
    assert trust.trusted_ids(["4242", "root", "no-such-user-here"]) == {0, os.geteuid(), 4242}


# -- the store that is opened ------------------------------------------------------------------------------------------


def test_a_chosen_folder_that_cannot_be_trusted_is_an_error_with_its_mend(own_store):
    own_store.mkdir()
    own_store.chmod(0o777)
    text = rf"{own_store} cannot be used: {own_store} can be written by everybody. Run: chmod go-w {own_store}"
    with pytest.raises(CacheDirError, match=text):
        current.current_store()


def test_a_chosen_folder_that_is_a_file_is_an_error(own_store, monkeypatch):
    text_files.write(own_store.parent, own_store.name, "")
    with pytest.raises(CacheDirError, match=f"{own_store} is not a folder. Choose another folder, or give"):
        current.writable_store()


def test_a_default_folder_that_cannot_be_trusted_gives_way_with_one_warning(
    tmp_path, monkeypatch, warnings_of_the_cache
):
    monkeypatch.delenv("OPFORGE_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "opforge").mkdir()
    (tmp_path / "opforge").chmod(0o777)
    root = current.writable_store().layout.root
    assert {root} == {current.current_store().layout.root, current.writable_store().layout.root}
    assert root.startswith(f"{tmp_path}/opforge-{os.geteuid()}-")
    assert stat.S_IMODE(os.stat(root).st_mode) == 0o700
    (warning,) = warnings_of_the_cache()
    assert f"{tmp_path}/opforge can be written by everybody. Run: chmod go-w" in warning
    assert f"Using {root} instead" in warning and "OPFORGE_CACHE_DIR" in warning


def test_looking_creates_nothing(own_store):
    current.current_store()
    assert not own_store.exists()


def test_a_layer_that_cannot_be_trusted_is_an_error_not_a_silence(tmp_path, monkeypatch):
    (tmp_path / "layer").mkdir()
    (tmp_path / "layer").chmod(0o777)
    monkeypatch.setenv("OPFORGE_CACHE_LAYERS", str(tmp_path / "layer"))
    with pytest.raises(LayerError, match=r"layer can be written by everybody. A layer must belong to root, to you or"):
        current.current_store()


@as_root
def test_a_layer_may_belong_to_a_named_owner(folder, monkeypatch):
    os.chown(folder, STRANGER, STRANGER)
    monkeypatch.setenv("OPFORGE_CACHE_LAYERS", str(folder))
    with pytest.raises(LayerError, match=f"belongs to user {STRANGER}.* or to one of OPFORGE_TRUSTED_OWNERS") as told:
        current.current_store()
    assert str(told.value).startswith(f"The layer {folder} cannot be used: ") and "chown" not in str(told.value)
    monkeypatch.setenv("OPFORGE_TRUSTED_OWNERS", str(STRANGER))
    assert current.current_store().layers == (layout.Layout(str(folder)),)


@as_root
def test_the_users_own_store_may_not_belong_to_a_named_owner(own_store, monkeypatch):
    own_store.mkdir(mode=0o700)
    os.chown(own_store, STRANGER, STRANGER)
    monkeypatch.setenv("OPFORGE_TRUSTED_OWNERS", str(STRANGER))
    with pytest.raises(CacheDirError, match=f"belongs to user {STRANGER}"):
        current.current_store()


AS_NOBODY = """
import logging, os, sys, tempfile, grp, pwd, random, shutil
from opforge.cache import current as opened
from opforge.errors import CacheDirError
os.setgroups([]); os.setgid(65534); os.setuid(65534)
logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
try:
    for _ in range(2):
        print("ROOT", opened.writable_store().layout.root)
except CacheDirError as error:
    print("REFUSED", error)
"""


@pytest.fixture
def home_of_nobody():
    """A folder outside pytest's own, which nobody else may enter."""
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
def test_a_home_that_cannot_be_written_gives_way_with_one_warning(home_of_nobody):
    said = run_as_nobody(home_of_nobody, OPFORGE_CACHE_DIR=None).splitlines()
    assert len(said) == 3, said
    assert said[0].startswith(f"The cache folder {home_of_nobody}/.cache/opforge cannot be used: it cannot be written")
    assert said[1] == said[2] and said[1].startswith(f"ROOT {home_of_nobody}/tmp/opforge-65534-")


def test_a_default_folder_that_is_refused_costs_nothing_where_nothing_is_built(monkeypatch, tmp_path, caplog):
    """In a container without anything that can be written, a layer is read all the same."""
    import tempfile

    (tmp_path / "opforge").mkdir()
    (tmp_path / "opforge").chmod(0o777)
    monkeypatch.delenv("OPFORGE_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tempfile, "mkdtemp", _no_temporary_folder)
    assert current.current_store().layout.root == current.PLACEHOLDER_ROOT and not caplog.records
    with pytest.raises(CacheDirError, match=r"written by everybody; nor is there a temporary folder. Set"):
        current.writable_store()


def _no_temporary_folder(**_options):
    raise FileNotFoundError(2, "No usable temporary directory found")


@as_root
def test_a_chosen_folder_that_cannot_be_written_is_an_error_that_says_what_to_set(home_of_nobody):
    said = run_as_nobody(home_of_nobody, OPFORGE_CACHE_DIR=home_of_nobody + "/chosen")
    assert said == (
        f"REFUSED The cache folder {home_of_nobody}/chosen cannot be used: it cannot be written (Permission denied)."
        " Set OPFORGE_CACHE_DIR to a folder that you can write\n"
    )


@as_root
def test_a_foreign_home_gives_way(home_of_nobody):
    os.makedirs(home_of_nobody + "/.cache")
    os.chown(home_of_nobody + "/.cache", STRANGER, STRANGER)
    os.chmod(home_of_nobody + "/.cache", 0o755)
    said = run_as_nobody(home_of_nobody, OPFORGE_CACHE_DIR=None).splitlines()
    assert f"{home_of_nobody}/.cache belongs to user {STRANGER}" in said[0]
    assert said[1].startswith(f"ROOT {home_of_nobody}/tmp/")
