"""Completion of words in real shells: commands, options, ops, keys, targets and layers, without an import of torch."""

from __future__ import annotations

import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time

import pytest
from support import child_processes, sample_ops, text_files

TIMEOUT = 60
PROGRAM = "import sys\nfrom opforge.cli import {main}\nsys.argv[0] = {name!r}\n{main}()\n"
START = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], "bind 'set bell-style none'; "),
    "zsh": (["zsh", "-f", "-i"], "autoload -Uz compinit; compinit -D -u; unsetopt beep zle_bracketed_paste; "),
}
"""Shell -> its command, and what it runs before it reads the script."""


@pytest.fixture
def programs(tmp_path):
    """The environment of a shell whose PATH has `opforge` and `build-ops`."""
    for name, main in (("opforge", "main"), ("build-ops", "build_ops")):
        code = text_files.write(tmp_path / "code", f"{main}.py", PROGRAM.format(main=main, name=name))
        text_files.write_script(tmp_path / "bin", name, f'exec "{sys.executable}" "{code}" "$@"')
    path = os.pathsep.join([str(tmp_path / "bin"), os.environ["PATH"]])
    return child_processes.environment(PATH=path, HOME=str(tmp_path), TERM="dumb", PS1="$ ", INPUTRC="/dev/null")


def skip_without(shell):
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell} (apt install {shell})")


def read_until(terminal, text, seconds=TIMEOUT):
    """Returns what a terminal shows, as soon as it has `text` in it."""
    shown, end = "", time.monotonic() + seconds
    while text not in shown:
        assert time.monotonic() < end, f"{text!r} is not in {shown!r}"
        if select.select([terminal], [], [], 0.2)[0]:
            shown += os.read(terminal, 65536).decode(errors="replace")
    return shown


def completed(shell, env, typed, expected):
    """Types a line and a tab into an interactive shell. Returns what it shows, which has `expected` in it."""
    command, prepare = START[shell]
    process, terminal = pty.fork()
    if process == 0:
        os.execvpe(command[0], command, env)
    try:
        # The marker is put together by the shell: the line as it is typed does not hold it.
        line = f'{prepare}source <(opforge completion {shell}); echo re""ady\n'
        os.write(terminal, line.encode())
        read_until(terminal, "ready")
        os.write(terminal, f"{typed}\t".encode())
        return read_until(terminal, expected)
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(terminal)


@pytest.mark.parametrize("shell", START)
def test_a_shell_completes_commands_ops_and_targets(shell, programs):
    skip_without(shell)
    for typed, expected in (
        ("opforge compl", "opforge completion"),
        ("build-ops CPUAdagr", "CPUAdagrad"),
        ("opforge build-ops CPUAdam --target cuda:sm_80+sm_12", "cuda:sm_80+sm_120"),
    ):
        completed(shell, programs, typed, expected)


def test_fish_completes_commands_ops_and_targets(programs):
    skip_without("fish")
    for typed, expected in (
        ("opforge compl", "completion\tPrint the script"),
        ("build-ops CPUAda", "CPUAdam\tan op for cpu"),
        ("opforge build-ops CPUAdam --target cuda:sm_80+sm_12", "cuda:sm_80+sm_120"),
    ):
        code = f"opforge completion fish | source; complete -C {typed!r}"
        output = subprocess.run(["fish", "--no-config", "-c", code], env=programs, capture_output=True, text=True)
        assert expected in output.stdout, output.stderr


def answers(line, breaks=" \t:", **env):
    """Returns what bash gets to complete, and whether torch was imported."""
    code = (
        "import sys\nfrom opforge.cli import main\nsys.argv[0] = 'opforge'\n"
        "try:\n    main()\nfinally:\n    print('torch' in sys.modules)\n"
    )
    names = {"_OPFORGE_LINE": line, "_OPFORGE_BREAKS": breaks, "_OPFORGE_COMPLETE": "bash_complete", **env}
    *lines, has_torch = child_processes.run_python(code, env=names).split()
    return [value.removeprefix("plain,") for value in lines], has_torch == "True"


def test_ops_and_keys_of_the_store_are_completed_without_torch_or_a_write(tmp_path):
    entry = sample_ops.plain_op(tmp_path / "op", name="my_own")().build()
    before = text_files.tree(os.path.join(os.environ["OPFORGE_CACHE_DIR"], "v2"))
    assert answers("opforge cache pin my") == (["my_own"], False)
    assert answers(f"opforge rm {entry.key[:3]}") == ([os.path.basename(os.path.dirname(entry.library))], False)
    words, has_torch = answers("opforge inspect ", OPFORGE_CACHE_LAYERS="/opt/ops")
    assert {"CPUAdam", "my_own", "/opt/ops", "file,"} <= set(words) and not has_torch
    assert "my_own" in answers("opforge cache explain MY")[0], "letter case does not matter"
    assert text_files.tree(os.path.join(os.environ["OPFORGE_CACHE_DIR"], "v2")) == before


@pytest.mark.parametrize("wrong", ["cache", "settings"])
def test_what_cannot_be_read_is_not_completed_and_nothing_is_printed(tmp_path, wrong):
    env = {"OPFORGE_CACHE_DIR": text_files.write(tmp_path, "file", ""), "XDG_CONFIG_HOME": str(tmp_path)}
    if wrong == "settings":
        text_files.write(tmp_path, "opforge/config.toml", "jbos = 1")
        env["OPFORGE_CACHE_DIR"] = None
    for line, words in (
        ("opforge rm ", []),
        ("opforge inspect ", ["file,"]),
        ("opforge cache expl", ["explain"]),
    ):
        completions = answers(line, **env)[0]  # fails if the command does
        assert completions == words if wrong == "settings" else set(words) <= set(completions)


def test_bash_gets_what_follows_a_colon_only_if_it_divides_words_there():
    line = "opforge build-ops CPUAdam --target cpu:x86-64-v"
    assert answers(line)[0] == ["x86-64-v2", "x86-64-v3", "x86-64-v4"]
    assert answers(line, breaks=" \t")[0] == ["cpu:x86-64-v2", "cpu:x86-64-v3", "cpu:x86-64-v4"]


def test_the_names_of_commands_are_completed_without_importing_the_commands():
    code = (
        "import os, sys\nos.environ.update(_OPFORGE_LINE='opforge c', _OPFORGE_COMPLETE='bash_complete')\n"
        "from opforge.cli import main\nsys.argv[0] = 'opforge'\ntry:\n    main()\nfinally:\n"
        "    print(*[name for name in sys.modules if name.startswith('opforge.cli.') or name == 'rich'])\n"
    )
    *lines, modules = child_processes.run_python(code).splitlines()
    assert lines == ["plain,cache", "plain,check", "plain,compile-commands", "plain,completion", "plain,config"]
    assert set(modules.split()) <= {
        "opforge.cli.guard",
        "opforge.cli.messages",
        "opforge.cli.completion",
        "opforge.cli.completion.shells",
    }


def test_another_shell_is_refused_with_those_that_there_are():
    process = child_processes.run_command("completion", "tcsh")
    assert process.returncode == 2 and "'bash', 'zsh', 'fish'" in process.stderr
