"""Draws docs/pictures/build-ops.svg: what a terminal shows of two runs of `build-ops`.

It builds in a folder of its own. Run it with the environment that has opforge: `python docs/pictures/terminal.py`.
"""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

COMMANDS = ("build-ops PinMemory Utils", "build-ops PinMemory Utils", "opforge ls")
COLUMNS = 80


def printed(command: str, home: str) -> str:
    """Returns what a command prints on a terminal as its result, with the codes of colours."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OPFORGE_")}
    environment |= {"HOME": home, "XDG_CACHE_HOME": f"{home}/.cache", "COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
    environment["PATH"] = f"{os.path.dirname(sys.executable)}:{environment['PATH']}"
    control, terminal = pty.openpty()
    process = subprocess.Popen(
        command.split(), stdin=terminal, stdout=terminal, stderr=subprocess.DEVNULL, env=environment
    )
    os.close(terminal)
    parts = []
    while True:
        try:
            part = os.read(control, 1 << 16)
        except OSError:  # the command has closed the terminal
            break
        if not part:
            break
        parts.append(part)
    os.close(control)
    if process.wait():
        raise SystemExit(f"{command} failed with exit code {process.returncode}")
    return b"".join(parts).decode().replace("\r\n", "\n").replace(home, "~")


def main() -> None:
    """Runs the commands and writes the picture."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    with tempfile.TemporaryDirectory() as home:
        for command in COMMANDS:
            console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
            console.print(Text.from_ansi(printed(command, home)))
    drawing = console.export_svg(title="opforge", unique_id="opforge-terminal")
    # The fonts would come from the network. A browser has a monospace font of its own.
    drawing = re.sub(r"@font-face \{.*?\}\n", "", drawing, flags=re.DOTALL)
    drawing = drawing.replace("Fira Code, monospace", "ui-monospace, Menlo, Consolas, monospace")
    lines = [line.rstrip() for line in drawing.splitlines() if line.strip()]
    (Path(__file__).parent / "build-ops.svg").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
