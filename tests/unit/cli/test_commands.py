"""How commands start and end: light imports, errors as messages, exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner
from support import child_processes

import opforge
from opforge.cli import COMMANDS, MOVED, SECTIONS, group
from opforge.cli.guard import Guarded, GuardedGroup, json_option
from opforge.errors import OpforgeError

HEAVY = ("torch", "rich", "packaging", "numpy", "filelock", "platformdirs", "importlib.metadata")


def command_raising(error):
    @click.command(cls=Guarded)
    @json_option
    def command(as_json):
        raise error

    return command


def test_an_error_is_one_message():
    done = CliRunner().invoke(command_raising(OpforgeError("it is so")), [])
    assert (done.exit_code, done.stdout, done.stderr) == (1, "", "error: it is so\n")


def test_an_error_as_json():
    done = CliRunner().invoke(command_raising(OpforgeError("it is so")), ["--json"])
    assert done.exit_code == 1 and done.stderr == ""
    assert json.loads(done.stdout) == {"error": "OpforgeError", "message": "it is so"}


def test_wrong_usage_as_json():
    done = CliRunner().invoke(command_raising(click.UsageError("not so")), ["--json"])
    assert done.exit_code == 2 and json.loads(done.stdout) == {"error": "UsageError", "message": "not so"}


@pytest.mark.parametrize("words", [["--jsn", "--json"], ["extra", "--json"], ["--json", "--into"]])
def test_arguments_that_do_not_parse_are_wrong_usage_as_json_too(words):
    command = command_raising(click.UsageError("not reached"))
    command.params.append(click.Option(["--into"], expose_value=False))
    done = CliRunner().invoke(command, words)
    document, wrong = json.loads(done.stdout), next(word for word in words if word != "--json")
    assert done.exit_code == 2 and document["error"] == "UsageError" and wrong in document["message"]


@pytest.mark.parametrize("call", ["os.getcwd()", "os.mkdir('project')"])
def test_a_working_folder_that_was_removed_is_named_in_the_error(tmp_path, call):
    code = f"import os; os.chdir({str(tmp_path)!r}); os.rmdir({str(tmp_path)!r}); {call}"

    @click.command(cls=Guarded)
    def command():
        exec(code)

    here = os.getcwd()
    try:
        done = CliRunner().invoke(command, [])
    finally:
        os.chdir(here)
    text = "error: the working folder was removed: change to another folder\n"
    assert (done.exit_code, done.stderr) == (1, text)


def test_wrong_usage_is_the_usage_line_and_one_message():
    done = CliRunner().invoke(command_raising(click.UsageError("not reached")), ["--jsn"], prog_name="command")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("Usage: command [OPTIONS]\nTry 'command --help' for help.\n\nerror: No such option")


@pytest.mark.parametrize(
    "words",
    [
        ["build-ops", "CPUAdam", "--out", ""],
        ["pack", "--out", ""],
        ["install", "acme/relu", "--into", ""],
        ["rm", "acme/relu", "--into", ""],
        ["split-wheel", __file__, "--wheel-dir", ""],
        ["repair-wheel", __file__, "--wheel-dir", ""],
    ],
    ids=lambda words: words[0],
)
def test_an_empty_text_is_no_folder(words):
    """It was this folder, or the default: of `--out "$OUT"` without the variable."""
    done = CliRunner().invoke(group, words)
    assert done.exit_code == 2 and f"Invalid value for '{words[-2]}'" in done.stderr.replace(" / '-w'", ""), done.stderr
    assert "it is empty: name a folder" in done.stderr


def test_a_group_without_a_command_prints_its_help():
    done = CliRunner().invoke(group, ["cache"])
    assert done.exit_code == 2 and "explain" in done.output and "error:" not in done.output


def test_an_interrupt_ends_with_130():
    inner = command_raising(KeyboardInterrupt())
    done = CliRunner().invoke(GuardedGroup("outer", commands={"inner": inner}), ["inner"])
    assert (done.exit_code, done.stdout, done.stderr) == (130, "", "interrupted\n")


@pytest.mark.parametrize("kind", [KeyboardInterrupt, EOFError])
def test_an_interrupt_at_a_question_ends_with_130_and_no_answer_with_1(monkeypatch, kind):
    def read(prompt):
        raise kind

    @click.command(cls=Guarded)
    def ask():
        monkeypatch.setattr(click.termui, "visible_prompt_func", read)
        click.confirm("Remove it?", abort=True)

    done = CliRunner().invoke(ask)
    assert (done.exit_code, done.stderr) == ((130, "interrupted\n") if kind is KeyboardInterrupt else (1, "Aborted!\n"))


def test_an_unexpected_exception_is_not_caught():
    done = CliRunner().invoke(command_raising(ZeroDivisionError()), [])
    assert isinstance(done.exception, ZeroDivisionError)


@pytest.mark.parametrize("name", [*COMMANDS, "cache stats", "cache explain", "key list"])
def test_every_command_has_help(name):
    done = CliRunner().invoke(group, [*name.split(), "--help"])
    assert done.exit_code == 0 and ("--json" in done.output or name in ("cache", "completion", "key"))


def test_the_table_and_the_commands_agree():
    context = click.Context(group)
    for name in COMMANDS:
        assert group.get_command(context, name).name == name


def test_help_lists_every_command_and_the_exit_codes():
    text = " ".join(CliRunner().invoke(group, ["--help"]).output.split())
    assert all(f"{name} {line}" in text for name, (_import_path, line) in COMMANDS.items())
    assert "Exit codes: 0 success, 1 something failed or is missing, 2 wrong usage, 130 interrupted." in text


def test_an_unknown_command_is_wrong_usage():
    done = CliRunner().invoke(group, ["repotr"])
    assert done.exit_code == 2 and "No such command 'repotr'. Did you mean 'report'?" in done.output
    done = CliRunner().invoke(group, ["cache", "explian"])
    assert done.exit_code == 2 and "No such command 'explian'. Did you mean 'explain'?" in done.output
    done = CliRunner().invoke(group, ["cache", "frobnicate"])
    assert done.exit_code == 2 and done.output.endswith("No such command 'frobnicate'.\n")


def test_a_word_that_others_use_is_answered_by_ours():
    for word, ours in MOVED.items():
        done = CliRunner().invoke(group, [word, "acme/relu"])
        assert done.exit_code == 2 and f"No such command {word!r}. It is: {ours}\n" in done.output
    assert not MOVED.keys() & COMMANDS.keys()


def test_there_are_28_commands_in_five_sections_each_with_an_example():
    assert len(COMMANDS) == 28 and len(SECTIONS) == 5
    assert sorted(name for names in SECTIONS.values() for name in names) == sorted(COMMANDS)
    context = click.Context(group)
    for name in COMMANDS:
        command = group.get_command(context, name)
        for part in command.commands.values() if isinstance(command, click.Group) else [command]:
            assert f"  opforge {name}" in part.help or "  build-ops" in part.help, (name, part.name)


def test_the_help_of_every_command_lists_its_exit_codes():
    for name in [*COMMANDS, *(f"cache {command}" for command in ("path", "stats", "pin", "explain"))]:
        output = CliRunner().invoke(group, [*name.split(), "--help"]).output
        assert "Exit codes: 0 success" in output


def test_the_help_of_a_group_does_not_shorten_its_lines():
    listed = CliRunner().invoke(group, ["cache", "--help"]).output.partition("Commands:")[2]
    assert "pin      Never evict the entries of these ops or keys." in listed and "..." not in listed


def test_the_version():
    assert CliRunner().invoke(group, ["--version"]).output == f"opforge, version {opforge.__version__}\n"


@pytest.mark.parametrize("arguments", [["--help"], ["ls"], ["cache", "path"], ["build-ops", "--help"]])
def test_light_commands_import_nothing_heavy(arguments):
    code = f"""
import atexit, sys
atexit.register(lambda: print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr))
from opforge.cli import group
group({arguments!r}, prog_name="opforge")
"""
    env = child_processes.environment(PYTHONWARNINGS="error")
    done = subprocess.run([sys.executable, "-S", "-c", code], env=with_packages(env), capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "[]\n"


def with_packages(env):
    """Returns the environment with click importable without `site`, whose .pth files import other modules."""
    return {**env, "PYTHONPATH": os.pathsep.join([env["PYTHONPATH"], os.path.dirname(os.path.dirname(click.__file__))])}


def test_a_system_error_is_one_message():
    done = CliRunner().invoke(command_raising(OSError(28, "No space left on device")), [])
    assert (done.exit_code, done.stdout, done.stderr) == (1, "", "error: [Errno 28] No space left on device\n")


def test_a_name_that_the_output_encoding_lacks_is_escaped(tmp_path):
    folder = f"{tmp_path}/" + os.fsdecode(b"caf\xc3\xa9\xff")
    env = child_processes.environment(PYTHONIOENCODING="utf-8:strict", OPFORGE_CACHE_DIR=folder)
    command = [sys.executable, "-m", "opforge", "cache", "path"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, encoding="utf-8")
    assert (done.stdout, done.stderr) == (f"{tmp_path}/caf\u00e9\\udcff\n", "")


def test_without_standard_output_nothing_is_printed():
    command = ["sh", "-c", 'exec "$0" -m opforge ls >&-', sys.executable]
    done = subprocess.run(command, env=child_processes.environment(), stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_closed_standard_streams_are_not_replaced_by_an_opened_file():
    code = """
import os, subprocess, sys
import opforge.cli
opforge.cli.group = lambda prog_name: sys.stderr.write(open(os.devnull).fileno() > 2 and "apart")
opforge.cli.main()
subprocess.run(["sh", "-c", "echo unread"], check=True)
"""
    done = subprocess.run(
        ["sh", "-c", 'exec "$0" -c "$1" <&- >&-', sys.executable, code],
        env=child_processes.environment(), stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "apart")


def test_a_closed_pipe_is_quiet():
    env = child_processes.environment()
    command = [sys.executable, "-m", "opforge", "cache", "--help"]
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(command, env=env, stdout=writer, stderr=subprocess.PIPE, text=True)
    finally:
        os.close(writer)
    assert done.stderr == "" and "Traceback" not in done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has it")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["cache", "--help"], ["config", "--json"]])
def test_output_that_cannot_be_written_is_one_message(arguments, unbuffered):
    env = child_processes.environment(PYTHONUNBUFFERED=unbuffered)
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "opforge", *arguments]
        done = subprocess.run(command, env=env, stdout=full, stderr=subprocess.PIPE, text=True)
    text = "error: standard output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, text)


def leaves(command=group, path=("opforge",)):
    """Yields the path and the command of each command that can run."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        yield from leaves(command.get_command(context, name), (*path, name))


def test_the_help_has_every_command_in_one_of_five_sections():
    assert len(SECTIONS) == 5 and sorted(sum(SECTIONS.values(), ())) == sorted(COMMANDS)
    lines = CliRunner().invoke(group, ["--help"]).output.splitlines()
    places = [lines.index(f"{title}:") for title in SECTIONS]
    assert places == sorted(places)
    columns = {
        line.index(COMMANDS[name][1][:9]) for name in COMMANDS for line in lines if line.startswith(f"  {name} ")
    }
    assert len(columns) == 1


def test_the_help_of_every_command_has_an_example_that_begins_with_its_name():
    for path, command in leaves():
        name = "build-ops" if path[-1] == "build-ops" else " ".join(path)
        examples = (command.help or "").partition("Example")[2]
        assert name in examples, " ".join(path)
