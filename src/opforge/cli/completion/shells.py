"""Completion in bash, zsh and fish: `opforge completion SHELL`, and the values of arguments. It imports no torch."""

from __future__ import annotations

import os

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class, get_completion_class

from opforge.cli.guard import Guarded

SHELLS = ("bash", "zsh", "fish")
PROGRAMS = ("opforge", "build-ops")
PLACES = {
    "bash": "~/.local/share/bash-completion/completions/opforge",
    "zsh": "a file _opforge in a folder of $fpath",
    "fish": "~/.config/fish/completions/opforge.fish",
}
BASH = """\
%(complete_func)s() {
    local IFS=$'\\n' completion kind value
    COMPREPLY=()
    for completion in $(_OPFORGE_LINE="${COMP_LINE:0:COMP_POINT}" _OPFORGE_BREAKS="$COMP_WORDBREAKS" \\
            %(complete_var)s=bash_complete "$1"); do
        IFS=',' read -r kind value <<<"$completion"
        case "$kind" in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            *) COMPREPLY+=("$value") ;;
        esac
    done
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""
"""Bash divides words at colons too, which targets and the names of classes have: so it passes the line as typed."""


class Bash(BashComplete):
    """Completion for bash, for words with colons."""

    source_template = BASH

    def get_completion_args(self) -> tuple[list[str], str]:
        """Returns the words before the one that is being typed, and that one."""
        from click.shell_completion import split_arg_string

        line = os.environ.get("_OPFORGE_LINE", "")
        words = split_arg_string(line)[1:]
        incomplete = words.pop() if words and not line[-1:].isspace() else ""
        return words, incomplete

    def format_completion(self, item: CompletionItem) -> str:
        """Returns a completion as one line: only what follows the last colon, if bash takes that for the word."""
        value = str(item.value)
        _words, incomplete = self.get_completion_args()
        if ":" in os.environ.get("_OPFORGE_BREAKS", "") and ":" in incomplete:
            value = value[incomplete.rindex(":") + 1 :]
        return f"{item.type},{value}"

    @staticmethod
    def _check_version() -> None:
        """Does nothing: click's own would start bash, to warn of versions before 4.4."""


add_completion_class(Bash)


@click.command("completion", cls=Guarded)
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> None:
    """Print the script that completes commands, options, ops, keys, targets and layers in a shell.

    \b
    bash:  opforge completion bash > ~/.local/share/bash-completion/completions/opforge
    zsh:   opforge completion zsh > ~/.zfunc/_opforge     (with fpath+=~/.zfunc before compinit)
    fish:  opforge completion fish > ~/.config/fish/completions/opforge.fish

    \b
    Example, for this shell alone:
      eval "$(opforge completion bash)"
    """
    from opforge.cli import group

    kind = get_completion_class(shell)
    assert kind is not None
    for program in PROGRAMS:
        variable = f"_{program.replace('-', '_').upper()}_COMPLETE"
        click.echo(kind(group, {}, program, variable).source())
