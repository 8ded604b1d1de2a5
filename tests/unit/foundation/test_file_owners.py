"""Trust: which users' folders are used, and what is reported of the others."""

from __future__ import annotations

import os
import struct

import pytest
from support import text_files
from support.owners import ME, STRANGER, as_root

from opforge.foundation import file_owners


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "cache"
    path.mkdir(mode=0o700)
    return path


def problem_of(path, owners=ME):
    problem = file_owners.folder_problem(str(path), owners)
    assert problem is not None
    return problem


def test_a_private_folder_is_trusted(folder):
    assert file_owners.folder_problem(str(folder), ME) is None


def test_a_missing_folder_is_no_problem(folder):
    assert file_owners.folder_problem(str(folder / "a" / "b"), ME) is None


def test_a_file_is_problem_of(tmp_path):
    path = text_files.write(tmp_path, "cache", "")
    assert problem_of(path) == (f"{path} is not a folder", "Choose another folder, or give that file another name")
    assert problem_of(path + "/below")[0] == f"{path} is not a folder"


@pytest.mark.parametrize("mode", [0o707, 0o777])
def test_a_folder_that_everybody_can_write_is_refused_with_the_command_that_fixes_it(folder, mode):
    folder.chmod(mode)
    assert problem_of(folder) == (f"{folder} can be written by everybody", f"Run: chmod go-w {folder}")
    os.system(problem_of(folder)[1].removeprefix("Run: "))
    assert file_owners.folder_problem(str(folder), ME) is None


def test_the_command_that_fixes_a_folder_can_be_typed_whatever_its_name_is(tmp_path):
    folder = tmp_path / "my cache; it's"
    (folder / "inside").mkdir(parents=True)
    folder.chmod(0o777)
    os.system(problem_of(folder)[1].removeprefix("Run: "))
    assert file_owners.folder_problem(str(folder), ME) is None
    os.symlink(folder / "inside", folder / "a link")
    os.system(file_owners.link_problem(str(folder))[1].removeprefix("Run: "))
    assert os.listdir(folder) == ["inside"]


def test_a_folder_that_all_share_is_refused_and_nobody_is_told_to_close_it(folder):
    folder.chmod(0o1777)  # as /tmp is: without write permission it would be of no use to the others
    assert problem_of(folder) == (
        f"{folder} can be written by everybody",
        f"Choose a folder of your own in it, such as {folder}/opforge",
    )


def test_a_group_may_write_only_if_it_is_the_users_private_one(folder, monkeypatch):
    folder.chmod(0o770)
    monkeypatch.setattr(file_owners, "is_private_group", lambda _gid: True)
    assert file_owners.folder_problem(str(folder), ME) is None
    monkeypatch.setattr(file_owners, "is_private_group", lambda _gid: False)
    assert problem_of(folder)[0] == f"{folder} can be written by group {folder.stat().st_gid}"


@pytest.mark.parametrize(
    ("entry", "is_open"),
    [
        ((2, 7, STRANGER), True),
        ((2, 5, STRANGER), False),
        ((2, 7, os.geteuid()), False),
        ((8, 7, STRANGER), True),
        ((8, 4, STRANGER), False),
    ],
)
def test_a_private_group_does_not_hide_who_else_is_in_an_access_control_list(folder, monkeypatch, entry, is_open):
    """With such a list the bits of the group are its mask."""
    monkeypatch.setattr(file_owners, "is_private_group", lambda _gid: True)
    base = [(1, 7, 2**32 - 1), (4, 7, 2**32 - 1), (16, 7, 2**32 - 1), (32, 0, 2**32 - 1)]
    entries = b"".join(struct.pack("<HHI", *one) for one in sorted([*base, entry]))
    try:
        os.setxattr(folder, file_owners.ACL, struct.pack("<I", 2) + entries)
    except (AttributeError, OSError):
        pytest.skip("needs a file system with access-control lists")
    assert folder.stat().st_mode & 0o777 == 0o770
    problem = file_owners.folder_problem(str(folder), ME)
    assert (problem is not None) is is_open
    if problem:
        assert problem[0] == f"{folder} can be written by others in its access-control list"
        os.system(problem[1].removeprefix("Run: "))
        assert file_owners.folder_problem(str(folder), ME) is None


def test_a_private_group_has_the_users_name_and_no_other_member(monkeypatch, tmp_path):
    import grp
    import pwd
    from types import SimpleNamespace as Fake

    monkeypatch.setattr(pwd, "getpwuid", lambda _uid: Fake(pw_gid=1000, pw_name="ann"))
    for gid, name, members, own_groups, private in [
        (1000, "ann", [], {"ann": 1000, "bob": 1001}, True),
        (1000, "ann", ["ann"], {}, True),
        (1000, "ann", ["bob"], {"ann": 1000}, False),
        (1000, "ann", [], {"ann": 1000, "bob": 1000}, False),
        (1000, "users", [], {}, False),
        (50, "ann", [], {}, False),
    ]:
        lines = [f"{user}:x:7:{group}::/home:/bin/sh\n" for user, group in own_groups.items()]
        (tmp_path / "passwd").write_text("".join(lines))
        monkeypatch.setattr(file_owners, "USERS", str(tmp_path / "passwd"))
        monkeypatch.setattr(file_owners, "_members", {})
        monkeypatch.setattr(grp, "getgrgid", lambda _gid, n=name, m=members: Fake(gr_name=n, gr_mem=m))
        assert file_owners.is_private_group(gid) is private

    def unknown(_uid):
        raise KeyError

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert not file_owners.is_private_group(1000)


def test_a_parent_that_everybody_can_write_must_be_sticky(folder, tmp_path):
    child = folder / "child"
    child.mkdir(mode=0o700)
    folder.chmod(0o1777)
    assert file_owners.folder_problem(str(child), ME) is None
    folder.chmod(0o777)
    assert problem_of(child) == (f"{folder} can be written by everybody", f"Run: chmod go-w {folder}")


def test_a_link_is_judged_by_its_target(folder, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(folder)
    assert file_owners.folder_problem(str(link), ME) is None
    folder.chmod(0o777)
    assert problem_of(link)[0] == f"{folder} can be written by everybody"


def test_a_link_to_itself_is_a_problem(tmp_path):
    link = tmp_path / "link"
    link.symlink_to(link)
    assert problem_of(link)[0]


@as_root
def test_another_users_folder_is_problem_of(folder):
    os.chown(folder, STRANGER, STRANGER)
    problem, advice = problem_of(folder)
    assert problem == f"{folder} belongs to user {STRANGER}, not to you (user 0)"
    assert advice == (
        "Choose a folder of your own: files that another user made cannot be trusted."
        f" If you trust that user, set OPFORGE_TRUSTED_OWNERS={STRANGER}"
    )
    (folder / "below").mkdir()
    problem, advice = problem_of(folder / "below")
    assert problem.startswith(f"{folder} belongs to user")
    assert file_owners.folder_problem(str(folder), ME | {STRANGER}) is None


@as_root
def test_whose_a_link_is_counts_too(tmp_path, folder):
    """In a folder like /tmp anybody can make a link; its owner decides where it leads."""
    link = tmp_path / "link"
    link.symlink_to(folder)
    assert file_owners.folder_problem(str(link), ME) is None
    os.chown(link, STRANGER, STRANGER, follow_symlinks=False)
    assert problem_of(link)[0] == f"the link {link} belongs to user {STRANGER}, not to you (user 0)"
    assert problem_of(link / "below")[0].startswith("the link ")


def test_a_link_is_followed_component_by_component(tmp_path, folder):
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "cache").mkdir()
    (tmp_path / "open").chmod(0o777)
    (folder / "link").symlink_to("../open/cache")
    assert problem_of(folder / "link")[0] == f"{folder}/../open can be written by everybody".replace("cache/../", "")


def test_trusted_ids_are_those_of_root_the_user_and_named_users_that_exist():
    assert file_owners.trusted_ids() == {0, os.geteuid()}
    assert file_owners.trusted_ids(["4242", "root", "no-such-user-here"]) == {0, os.geteuid(), 4242}


# What the user names.


def problem_or_none(path, above=None, shared=()):
    return file_owners.folder_problem(str(path), ME, above, shared)


def test_a_folder_that_others_may_write_is_waived_by_its_exact_path(folder, caplog):
    child = folder / "child"
    child.mkdir(mode=0o700)
    folder.chmod(0o777)
    for other in (str(child), str(folder.parent), f"{folder}/."):
        assert problem_or_none(child, shared=(other,)) is not None
    file_owners._reported.clear()
    for _time in range(2):
        assert problem_or_none(child, shared=(str(folder),)) is None
    assert [record.getMessage() for record in caplog.records] == [
        f"{folder} can be written by everybody, and OPFORGE_TRUSTED_FOLDERS names it: who may write there can run code"
        " as you."
    ]


def test_the_line_names_all_folders_that_others_may_write_and_those_named_before(folder):
    (folder / "a" / "b").mkdir(parents=True)
    for path in (folder, folder / "a"):
        path.chmod(0o777)
    _, advice = problem_or_none(folder / "a" / "b", shared=("/before",))
    assert advice == (
        f"Run: chmod go-w {folder}; or set OPFORGE_TRUSTED_FOLDERS=/before:{folder}:{folder}/a"
        " if you trust everybody who may write there"
    )


def test_a_link_that_is_named_waives_nothing_for_what_it_leads_to(folder, tmp_path):
    folder.chmod(0o777)
    (tmp_path / "link").symlink_to(folder)
    assert problem_or_none(tmp_path / "link" / "cache", shared=(str(tmp_path / "link"),)) is not None


@as_root
def test_a_named_owner_may_own_what_lies_above_and_not_the_store_itself(folder):
    os.chown(folder, STRANGER, STRANGER)
    (folder / "own").mkdir(mode=0o700)
    assert problem_or_none(folder / "own", above=ME) is not None
    assert problem_or_none(folder / "own", above={*ME, STRANGER}) is None
    assert problem_or_none(folder, above={*ME, STRANGER}) == (
        f"{folder} belongs to user {STRANGER}, not to you (user 0)",
        "Choose a folder of your own: files that another user made cannot be trusted",
    )


@as_root
def test_the_advice_is_what_this_user_can_do(folder, monkeypatch):
    folder.chmod(0o777)
    monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    _, advice = problem_or_none(folder / "own")
    assert advice == f"Set OPFORGE_TRUSTED_FOLDERS={folder} if you trust everybody who may write there"
    assert problem_or_none(folder / "own", shared=None)[1] == f"Only user 0 can run: chmod go-w {folder}"
