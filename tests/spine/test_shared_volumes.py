"""Volumes whose mount point others may write: a pod's emptyDir, a claim with fsGroup, a project folder of a cluster.

They are mounted at /mnt for a user without a passwd entry, whose home folder does not exist, as in a hardened pod.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys

import pytest
from support import child_processes, containers, other_user
from support.owners import as_root
from support.paths import TESTS

pytestmark = [as_root, pytest.mark.compile, pytest.mark.timeout(180)]
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
EMPTY_DIR = "mount -t tmpfs -o mode=0777 none /mnt"
CLAIM = f"mount -t tmpfs -o mode=2775,gid={containers.GROUP} none /mnt"
PROJECT = f"mount -t tmpfs -o mode=2770,uid=4242,gid={containers.GROUP} none /mnt"
REPOSITORY = os.path.dirname(TESTS)
READ_ONLY = "mount -o remount,bind,ro /"


@pytest.fixture
def folder():
    with other_user.shared_folder(0o755) as path:
        yield path


def load(folder, setup, **env):
    """Loads the op as the user, and returns what it printed."""
    return containers.run_python(LOAD, folder, setup=setup, env={"HOME": "/nowhere", **env}).strip()


@pytest.mark.parametrize(("setup", "who"), [(EMPTY_DIR, "everybody"), (CLAIM, f"group {containers.GROUP}")])
def test_without_a_setting_the_op_is_built_in_a_private_folder_and_one_warning_names_the_line(folder, setup, who):
    env = {"HOME": "/mnt", "TMPDIR": "/mnt"}
    warning, loaded = load(folder, f"{setup}\n{READ_ONLY}", **env).splitlines()
    assert loaded.startswith("LOADED 42 built /proc/self/fd/")
    refused = f"LOG The cache folder /mnt/.cache/opforge cannot be used: /mnt can be written by {who}. Using"
    assert warning.startswith(refused)
    assert "chmod" not in warning, "the folder is not his"
    line = re.search(r"set (OPFORGE_TRUSTED_FOLDERS)=(\S+) if you trust everybody who may write there", warning)
    warning, loaded = load(folder, setup, **env, **{line[1]: line[2]}).splitlines()
    assert loaded.startswith("LOADED 42 built /mnt/.cache/opforge/v2/entries/")
    named = "OPFORGE_TRUSTED_FOLDERS names it: who may write there can run code as you."
    assert warning == f"LOG /mnt can be written by {who}, and {named}"


@pytest.mark.parametrize("setup", [EMPTY_DIR, CLAIM, PROJECT])
def test_the_lines_that_errors_print_make_a_named_cache_work(folder, setup):
    """The error for a cache that was named says what to set, until nothing is missing."""
    env = {"OPFORGE_CACHE_DIR": "/mnt/cache"}
    for _line in range(3):
        answer = load(folder, setup, **env)
        if answer.splitlines()[-1].startswith("LOADED"):
            break
        assert answer.startswith("REFUSED CacheDirError") and "chmod" not in answer
        name, value = re.search(r"[sS]et (OPFORGE_TRUSTED_\w+)=(\S+)", answer).groups()
        env[name] = value
    assert answer.splitlines()[-1].startswith("LOADED 42 built /mnt/cache/v2/"), answer


def test_where_only_the_home_folder_is_missing_the_warning_names_a_folder_that_keeps(folder):
    setup = "mount -t tmpfs -o mode=1777 none /mnt"
    warning, loaded = load(folder, setup, TMPDIR="/mnt").splitlines()
    assert loaded.startswith("LOADED 42 built /mnt/opforge-")
    (line,) = re.findall(r"To keep built ops: set (\S+)\.$", warning)
    assert line == f"OPFORGE_CACHE_DIR=/mnt/opforge-{containers.USER}"
    env = {"TMPDIR": "/mnt", "OPFORGE_CACHE_DIR": line.partition("=")[2]}
    assert load(folder, setup, **env).startswith("LOADED 42 built /mnt")


def test_a_folder_is_named_exactly_and_its_owner_is_judged_all_the_same(folder):
    setup = f"{EMPTY_DIR}\nmkdir -m 0777 /mnt/a; mkdir /mnt/b; chown 4242 /mnt/b"
    shared = {"OPFORGE_TRUSTED_FOLDERS": "/mnt"}
    answer = load(folder, setup, OPFORGE_CACHE_DIR="/mnt/a/cache", **shared)
    assert "/mnt/a can be written by everybody. Set OPFORGE_TRUSTED_FOLDERS=/mnt:/mnt/a if" in answer
    answer = load(folder, setup, OPFORGE_CACHE_DIR="/mnt/b", **shared)
    assert answer.startswith("REFUSED CacheDirError") and "/mnt/b belongs to user 4242, not to you" in answer
    answer = load(folder, setup, OPFORGE_CACHE_DIR="/mnt/b/own", **shared)
    assert "/mnt/b belongs to user 4242, not to you" in answer and "OPFORGE_TRUSTED_OWNERS=4242" in answer


def test_settings_and_keys_are_not_read_from_a_folder_that_is_named(folder):
    setup = f"{EMPTY_DIR}\nmkdir /mnt/opforge; echo jobs=1 > /mnt/opforge/config.toml; chown -R 4242 /mnt/opforge"
    env = {"XDG_CONFIG_HOME": "/mnt", "OPFORGE_TRUSTED_FOLDERS": "/mnt"}
    answer = containers.run([sys.executable, "-c", LOAD], folder, setup=setup, env=env).stdout
    assert "ConfigFileError" in answer and "/mnt can be written by everybody. Only user 0 can run: chmod go-w" in answer
    trust_file = {"OPFORGE_TRUST_FILE": "/mnt/trust.json", "OPFORGE_TRUSTED_FOLDERS": "/mnt"}
    code = (
        "from opforge.remote.signatures import trust_file\n"
        "try:\n  trust_file.read()\nexcept Exception as error:\n  print(error)"
    )
    answer = containers.run_python(code, folder, setup=f"{EMPTY_DIR}; echo '{{}}' > /mnt/trust.json", env=trust_file)
    assert "The trust file /mnt/trust.json cannot be used: /mnt can be written by everybody" in answer


ATTACK = """
import os, shutil, time
parent = os.getppid()
while os.getppid() == parent:
    for name in os.listdir("/mnt"):
        if name.startswith("opforge-") and not name.endswith(".old"):
            try:
                os.rename(f"/mnt/{name}", f"/mnt/{name}.{time.time_ns()}.old")
                shutil.copytree(EVIL, f"/mnt/{name}")
            except OSError:
                continue
"""


def test_renaming_the_private_folder_while_a_build_runs_changes_nothing(folder):
    """The other user puts a folder in its place, in which the source of the op is his."""
    with other_user.shared_folder(0o755) as evil:
        child_processes.run_python(LOAD, env={"OPFORGE_CACHE_DIR": f"{evil}/store", "HOME": evil})
        (key,) = os.listdir(f"{evil}/store/v2/sources")
        with open(f"{evil}/store/v2/sources/{key}/main.cpp", "w") as file:
            file.write('extern "C" int answer() { return 666; }')
        subprocess.run(["chmod", "-R", "a+rX", f"{evil}/store"], check=True)
        attack = shlex.join([sys.executable, "-c", ATTACK.replace("EVIL", repr(f"{evil}/store"))])
        setup = f"{EMPTY_DIR}\nsetpriv --reuid=4242 --regid=4242 --clear-groups {attack} &"
        script = f'for i in 1 2 3; do {sys.executable} -c "$CODE"; done; ls /mnt | grep -c old'
        env = {"CODE": LOAD, "HOME": "/mnt", "TMPDIR": "/mnt"}
        done = containers.run(["sh", "-c", script], folder, setup=setup, env=env)
    assert done.stdout.count("LOADED 42 built /proc/self/fd/") == 3, done.stdout + done.stderr
    assert int(done.stdout.splitlines()[-1]) >= 3, "the other user did rename them"


SWAPPED = """
import os
(name,) = [name for name in os.listdir("/mnt") if name.startswith("opforge-")]
os.rename(f"/mnt/{name}", "/mnt/moved")
os.rename("/mnt/thesis", f"/mnt/{name}")
"""


def test_at_the_end_nothing_is_removed_by_a_name_that_others_may_have_given_another_folder(folder):
    setup = f"{EMPTY_DIR}\nmkdir -m 700 /mnt/thesis; touch /mnt/thesis/chapter; chown -R {containers.USER} /mnt/thesis"
    script = f'{sys.executable} -c "$CODE"; find /mnt -path "/mnt/[mo]*"'
    env = {"CODE": LOAD + SWAPPED, "HOME": "/mnt", "TMPDIR": "/mnt"}
    done = containers.run(["sh", "-c", script], folder, setup=setup, env=env)
    assert "LOADED 42" in done.stdout, done.stdout + done.stderr
    left = [path for path in done.stdout.splitlines() if path.startswith("/mnt")]
    assert "/mnt/moved" in left and not any(path.startswith("/mnt/moved/") for path in left)
    assert any(path.endswith("/chapter") for path in left)


def documented(section, language):
    """Returns the first piece of code of a section of docs/deploying.md."""
    with open(os.path.join(REPOSITORY, "docs", "deploying.md")) as file:
        return file.read().partition(f"## {section}\n")[2].partition(f"```{language}\n")[2].partition("```")[0]


def test_the_documented_lines_for_kubernetes_keep_what_is_built(folder):
    code = documented("Kubernetes", "yaml")
    env = dict(re.findall(r"\{name: (\w+), value: (\S+)\}", code))
    assert "mountPath: /cache" in code and "OPFORGE_TRUSTED_FOLDERS" in env
    env = {name: value.replace("/cache", "/mnt") for name, value in env.items()}
    script = f'{sys.executable} -c "$CODE"; {sys.executable} -c "$CODE"'
    done = containers.run(["sh", "-c", script], folder, setup=CLAIM, env={**env, "CODE": LOAD})
    answers = [line for line in done.stdout.splitlines() if line.startswith("LOADED")]
    assert [line.rpartition(" ")[0] for line in answers] == ["LOADED 42 built", "LOADED 42 cache"], done.stdout
    assert all("/mnt/opforge/v2/entries/" in line for line in answers)


def test_the_documented_lines_for_slurm_keep_what_is_built(folder):
    code = documented("Slurm", "bash").replace("/project/lab", "/mnt").replace("=lead", "=4242")
    lines = "\n".join(line for line in code.splitlines() if line.startswith("export "))
    script = f'{lines}\n{sys.executable} -c "$CODE"; {sys.executable} -c "$CODE"'
    env = {"USER": "ann", "HOME": "/nowhere", "CODE": LOAD}
    done = containers.run(["sh", "-c", script], folder, setup=PROJECT, env=env)
    answers = [line for line in done.stdout.splitlines() if line.startswith("LOADED")]
    assert [line.rpartition(" ")[0] for line in answers] == ["LOADED 42 built", "LOADED 42 cache"], done.stdout
    assert all("/mnt/ann/opforge/v2/entries/" in line for line in answers)


def test_where_kubernetes_has_opened_every_file_to_the_group_the_errors_lines_make_the_cache_work_again(folder):
    """Without OnRootMismatch it does so at each start of a pod."""
    env = {"OPFORGE_CACHE_DIR": "/mnt/opforge", "OPFORGE_TRUSTED_FOLDERS": "/mnt", "CODE": LOAD}
    load_again = f'{sys.executable} -c "$CODE" > /mnt/answer; cat /mnt/answer'
    run_its_line = "eval $(grep -o 'Run: [^;]*' /mnt/answer | cut -c6-)"
    opened = "chmod -R ug+rwX,g+s /mnt/opforge"
    script = "; ".join([load_again, opened, load_again, run_its_line, load_again, run_its_line, load_again])
    done = containers.run(["sh", "-c", script], folder, setup=CLAIM, env=env)
    answers = [line for line in done.stdout.splitlines() if not line.startswith("LOG")]
    assert [answer.partition(" ")[0] for answer in answers] == ["LOADED", "REFUSED", "REFUSED", "LOADED"], done.stdout
    assert "/mnt/opforge/v2 can be written by others (mode 2770). They may have changed its contents." in answers[2]


def test_where_nothing_but_the_shared_home_folder_can_be_written_the_private_folder_is_there(folder):
    warning, loaded = load(folder, f"{EMPTY_DIR}\n{READ_ONLY}", HOME="/mnt").splitlines()
    assert loaded.startswith("LOADED 42 built /proc/self/fd/") and "Using /mnt/opforge-" in warning
