"""`opforge launch` as it is typed: spellings, dry runs, and what is refused before anything starts."""

from __future__ import annotations

import json
import sys

import pytest
from click.testing import CliRunner

from opforge.cli import group


def launch(*words):
    return CliRunner().invoke(group, ["launch", *words])


def test_options_may_be_typed_with_dashes_or_underscores():
    for bind, number in (("--bind-cores-to-rank", "--num-accelerators"), ("--bind_cores_to_rank", "--num_gpus")):
        done = launch(number, "1", bind, "--dry-run", "--json", "train.py", "--epochs", "2")
        document = json.loads(done.stdout)
        assert done.exit_code == 0 and document["launcher"] == "torchrun"
        (rank,) = document["ranks"]
        assert rank["command"].endswith("-u train.py --epochs 2") and rank["threads"] >= 1
        assert document["engines"][0]["argv"][-3:] == ["train.py", "--epochs", "2"]
    names = {name for option in group.get_command(None, "launch").params for name in option.opts}
    for name in names:
        assert not name.startswith("--") or f"--{name[2:].replace('-', '_')}" in names


def test_a_dry_run_is_a_table_in_a_pipe():
    done = launch("--num-accelerators", "1", "--bind-cores-to-rank", "--dry-run", "train.py")
    first, second = done.stdout.splitlines()
    assert first.split("\t") == ["RANK", "HOST", "CORES", "MEMORY", "THREADS", "COMMAND"]
    assert second.split("\t")[:2] == ["0", "localhost"] and done.stderr.startswith("localhost: ")


def test_an_offline_dry_run_leaves_remote_hosts_undecided(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("localhost slots=1\nfar slots=2\n")
    done = launch(
        *("--hostfile", str(file), "--master-addr", "10.0.0.1", "--ssh", "/nonexistent", "--bind-cores-to-rank"),
        *("--dry-run", "--offline", "--json", "a.py"),
    )
    rows = json.loads(done.stdout)["ranks"]
    assert [(row["rank"], row["host"], row["local_rank"]) for row in rows] == [
        (0, "localhost", 0),
        (1, "far", 0),
        (2, "far", 1),
    ]
    assert rows[0]["cores"] != "decided there" and {row["cores"] for row in rows[1:]} == {"decided there"}


def test_an_offline_dry_run_with_slurm_names_slurm_as_the_host(add_programs):
    add_programs(srun="exit 1")
    done = launch("--launcher", "slurm", "--num-accelerators", "1", "--dry-run", "--offline", "--json", "a.py")
    (row,) = json.loads(done.stdout)["ranks"]
    assert (row["rank"], row["host"], row["cores"]) == ("?", "chosen by Slurm", "decided there")


def test_an_offline_dry_run_without_an_mpirun_says_whose_command_it_shows(add_programs):
    done = launch("--launcher", "impi", "--num-accelerators", "1", "--dry-run", "--offline", "a.py")
    assert done.exit_code == 0
    assert "note: there is no mpirun on PATH: this is the command of Intel MPI\n" in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["--json", "a.py"], 2, "--json requires --dry-run"),
        (["--offline", "a.py"], 2, "--offline requires --dry-run"),
        (["--launcher", "ray", "a.py"], 1, "error: The launcher 'ray' cannot be used here"),
        (["--num-accelerators", "0", "a.py"], 2, "0 is not in the range x>=1"),
        (["--bind-core-list", "x", "a.py"], 1, "error: --bind-core-list='x' cannot be used"),
        (["--ssh", "ssh -o 'x", "a.py"], 1, "expected a command with balanced quotes, such as ssh or 'ssh -p 2222'"),
        (["--ssh", "", "a.py"], 1, "error: --ssh='' cannot be used: expected a command with"),
        (
            ["--launcher", "slurm", "--include", "a", "--num-accelerators", "1", "a.py"],
            1,
            "expected --hostfile as well",
        ),
        ([], 2, "Missing argument 'SCRIPT'"),
    ],
)
def test_wrong_usage_is_refused_before_anything_starts(words, code, text):
    done = launch(*words)
    assert done.exit_code == code and text in done.output


def test_options_after_the_script_belong_to_the_script():
    done = launch("--dry-run", "--json", "--num-accelerators", "1", "a.py", "--json")
    (rank,) = json.loads(done.stdout)["ranks"]
    assert rank["command"].endswith("a.py --json")


def test_affinity_variables_are_refused_when_binding(monkeypatch):
    monkeypatch.setenv("KMP_AFFINITY", "compact")
    done = launch("--num-accelerators", "1", "--bind-cores-to-rank", "a.py")
    assert done.exit_code == 1 and "KMP_AFFINITY='compact' cannot be used" in done.stderr


def test_another_system_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    done = launch("--num-accelerators", "1", "a.py")
    assert done.exit_code == 1 and "darwin is not supported: binding uses Linux system calls." in done.stderr


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("trian.py",), "there is no file 'trian.py' in FOLDER; did you mean train.py"),
        (("train",), "there is no file 'train' in FOLDER; did you mean train.py"),
        (("[1]/trian.py",), "there is no file '[1]/trian.py' in FOLDER; did you mean [1]/train.py"),
        (("a.py",), "there is no file 'a.py' in FOLDER"),
        (("[1]/evaluate.py",), "there is no file '[1]/evaluate.py' in FOLDER"),
        (("[1]",), "'[1]' is a folder without a __main__.py"),
        (("no/such.py", "--lr", "1"), "there is no file 'no/such.py' in FOLDER"),
        (("--no-python", "no_such_program_here"), "there is no program 'no_such_program_here'"),
    ],
)
def test_a_script_that_does_not_exist_starts_nothing(tmp_path, monkeypatch, words, problem):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "[1]").mkdir()
    for name in ("train.py", "c.py", "[1]/train.py"):
        (tmp_path / name).touch()
    done = launch("--num-accelerators", "2", *words)
    problem = problem.replace("FOLDER", str(tmp_path))
    hint = "Correct the path; use -m for a module, --no-python for a program"
    assert done.exit_code == 1 and done.stderr == f"error: The launch failed: {problem}.\nhint: {hint}\n"
