"""User namespaces: root's files belong there to the user id that all users have whom the namespace does not map."""

from __future__ import annotations

import os

import pytest
from support import containers, other_user
from support.owners import as_root

pytestmark = [as_root, pytest.mark.compile, pytest.mark.timeout(180)]
MAPPED = (["unshare", "-Ur"], ["unshare", "-U", "--map-current-user"], ["unshare", "-Ur", "unshare", "-Ur"])
BWRAP = ["bwrap", "--bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
"""It makes two namespaces, of which the second one maps the user to 0 outside: that is 0 of the first one."""
LOAD = """
import logging, sys
logging.basicConfig(format="LOG %(message)s", stream=sys.stdout)
import opforge
from opforge.errors import OpforgeError
try:
    op = opforge.load_inline("answer", 'extern "C" int answer() { return 42; }', abi="c")
    print("LOADED", op.answer(), op.origin, op.path)
except OpforgeError as error:
    print("REFUSED", type(error).__name__, error)
"""
JUDGE = """
from opforge.foundation import settings, file_owners as trust
above = trust.trusted_ids(settings.trusted_owners())
print(trust.folder_problem(%r, trust.trusted_ids(), above, settings.trusted_folders()))
"""
SITE = """
from opforge.errors import OpforgeError
from opforge.foundation.settings import table
table.SITE_FILE = "/mnt/etc/config.toml"
try:
    print(table.jobs())
except OpforgeError as error:
    print(error)
"""
UNMAPPED = "belongs to user 65534, as do all files of users that this user namespace does not map (/proc/self/uid_map)"


@pytest.fixture
def folder():
    """A folder of root's, which is /mnt in the namespaces: no folder above it is one as /tmp is."""
    with other_user.shared_folder(0o755) as path:
        make(path, "home", containers.USER, 0o700)
        yield path


def make(folder, name, owner, mode):
    os.mkdir(os.path.join(folder, name))
    os.chmod(os.path.join(folder, name), mode)
    os.chown(os.path.join(folder, name), owner, owner)


def run(code, folder, sandbox, **env):
    env = {"HOME": "/mnt/home", **env}
    return containers.run_python(code, folder, sandbox=sandbox, env=env, setup=f"mount --bind {folder} /mnt").strip()


def judge(path, folder, sandbox, **env):
    return run(JUDGE % path, folder, sandbox, **env)


@pytest.mark.parametrize("sandbox", [*MAPPED, BWRAP], ids=" ".join)
def test_an_op_is_built_into_the_users_own_cache_and_found_by_the_next_process(folder, sandbox):
    for origin in ("built", "cache"):
        answer = run(LOAD, folder, sandbox).split()
        assert answer[:3] == ["LOADED", "42", origin], answer
        assert answer[3].startswith("/mnt/home/.cache/opforge/v2/entries/")


def test_a_namespace_that_maps_nobody_builds_in_a_private_folder_and_says_why(folder):
    answer = run(LOAD, folder, ["unshare", "-U"])
    assert f" {UNMAPPED}, and yours. Using " in answer
    assert "each process builds again. To keep built ops: run as another user than 65534: `unshare" in answer
    assert "LOADED 42 built /proc/self/fd/" in answer and not os.path.exists(f"{folder}/home/.cache/opforge/v2")


def test_what_is_not_mapped_is_trusted_above_a_cache_alone(folder):
    """The id is every unmapped user's: nobody knows who made the cache itself, or what is in a folder as /tmp is."""
    for name, owner, mode in (("system", 0, 0o755), ("system/own", containers.USER, 0o700), ("sticky", 0, 0o1777)):
        make(folder, name, owner, mode)
    make(folder, "sticky/stranger", 4242, 0o755)
    make(folder, "sticky/stranger/own", containers.USER, 0o700)
    os.symlink("own", f"{folder}/system/link")
    sandbox = ["unshare", "-Ur"]
    for path in ("/mnt/system/own", "/mnt/system/own/new"):
        assert judge(path, folder, sandbox) == "None"
    assert f"/mnt/system {UNMAPPED}" in judge("/mnt/system", folder, sandbox)
    assert f"the link /mnt/system/link {UNMAPPED}" in judge("/mnt/system/link", folder, sandbox)
    for path in ("/mnt/sticky/stranger", "/mnt/sticky/stranger/own"):
        assert f"/mnt/sticky/stranger {UNMAPPED}" in judge(path, folder, sandbox)
    os.chmod(f"{folder}/sticky", 0o777)
    named = judge("/mnt/sticky/stranger/own", folder, sandbox, OPFORGE_TRUSTED_FOLDERS="/mnt/sticky")
    assert f"/mnt/sticky/stranger {UNMAPPED}" in named


def test_what_another_user_owns_above_a_cache_is_accepted_only_where_he_cannot_be_told_from_root(folder):
    make(folder, "stranger", 4242, 0o755)
    assert judge("/mnt/stranger/own", folder, BWRAP) == "None"
    assert "/mnt/stranger belongs to user 4242, not to you" in judge("/mnt/stranger/own", folder, [])
    assert judge("/mnt/stranger/own", folder, [], OPFORGE_TRUSTED_OWNERS="4242") == "None"
    assert "/mnt/stranger belongs to user 4242" in judge("/mnt/stranger", folder, [], OPFORGE_TRUSTED_OWNERS="4242")


def test_without_proc_nothing_is_known_and_nothing_more_is_trusted(folder):
    sandbox = ["bwrap", "--bind", "/", "/", "--tmpfs", "/proc"]
    assert "/ belongs to user 65534, not to you" in judge("/mnt/home/.cache", folder, sandbox)


def test_a_private_group_is_not_known_by_the_number_that_a_namespace_gives_it(folder):
    os.chmod(f"{folder}/home", 0o770)
    assert "/mnt/home can be written by group 0" in judge("/mnt/home", folder, ["unshare", "-Ur"])


def test_a_settings_file_of_the_site_names_the_namespace_and_the_line_that_accepts_it(folder):
    make(folder, "etc", 0, 0o755)
    with open(f"{folder}/etc/config.toml", "w") as file:
        file.write("jobs = 3\n")
    answer = run(SITE, folder, ["unshare", "-Ur"])
    assert f"/mnt/etc/config.toml cannot be used: it {UNMAPPED}" in answer
    name, _, value = answer.rstrip(".").rpartition(", set ")[2].partition("=")
    assert (name, value) == ("OPFORGE_TRUSTED_OWNERS", "65534")
    assert run(SITE, folder, ["unshare", "-Ur"], **{name: value}) == "3"
