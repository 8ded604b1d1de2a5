"""The tracebacks of opforge's errors: the caller's line is followed by the error, wherever it is printed."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from support import child_processes, sample_ops, text_files

BROKEN = """
#include <cstdint>
int value() { retrun 1; }
"""
"""A plain function: a process that loads it imports no torch."""
SCRIPT = """\
import threading
import opforge

class Broken(opforge.OpBuilder):
    name, sources, abi = "broken", ["broken.cpp"], "c"

def train():
    CALL

WAY
"""
CALL = "opforge.load('broken', 'broken.cpp', abi='c')"
CALLS = {
    "load_inline": "opforge.load_inline('broken', 'int value() { retrun 1; }', abi='c')",
    "declaration": "opforge.load('broken', [], abi='c')",
    "build": "Broken().build()",
    "get_kernel": "opforge.get_kernel('acme/none')",
    "accelerator": "os.environ['OPFORGE_ACCELERATOR'] = 'cudda'; opforge.get_accelerator()",
    "load_op": "del os.environ['OPFORGE_ACCELERATOR']; opforge.get_accelerator().load_op('CPUAdm')",
    "gate": "Broken.gate = lambda self, capabilities: 1 // 0; Broken().load()",
    "nested": f"Broken.gate = lambda self, capabilities: [{CALL}]; Broken().load()",
}
END = "-- the next call --"
SEVERAL = """\
import os, sys
import opforge

class Broken(opforge.OpBuilder):
    name, sources, abi = "broken", ["broken.cpp"], "c"

FUNCTIONS
for call in CALLS:
    try:
        call()
    except Exception:
        sys.excepthook(*sys.exc_info())
    print("END", file=sys.stderr)
"""
"""Shows each error as the interpreter does that ends by it: what some calls import takes two seconds."""


@pytest.fixture
def script(tmp_path):
    """A function that writes the script with a call in it, and runs it; returns its path and what it printed."""
    text_files.write(tmp_path, "broken.cpp", BROKEN)

    def run(call, way="train()", text=SCRIPT, **env):
        path = text_files.write(tmp_path, "script.py", text.replace("CALL", call).replace("WAY", way))
        process = subprocess.run(
            [sys.executable, path], cwd=tmp_path, env=child_processes.environment(**env), capture_output=True, text=True
        )
        return path, process.stderr

    return run


def check_frames(path, printed, call, line, function="train", caller="train()"):
    """Checks that the caller's lines are shown, and then the error."""
    lines = [line for line in printed.splitlines() if not line.strip() or set(line.strip()) - {"^", "~"}]
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1].startswith(f'  File "{path}", line ') and lines[1].endswith(", in <module>")
    assert lines[2:5] == [f"    {caller}", f'  File "{path}", line {line}, in {function}', f"    {call}"]
    assert lines[5].startswith("opforge.errors."), printed
    assert printed.count("File ") == 2


def test_a_script_shows_its_own_lines_and_the_error(script):
    check_frames(*script(CALL), CALL, 8)


def test_each_function_shows_the_callers_lines_and_a_users_own_frames_are_kept(script):
    functions = "".join(f"def {name}():\n    {call}\n\n" for name, call in CALLS.items())
    text = SEVERAL.replace("FUNCTIONS", functions).replace("CALLS", f"({', '.join(CALLS)})").replace("END", END)
    path, printed = script("", text=text)
    printed = dict(zip(CALLS, printed.split(f"{END}\n"), strict=False))
    nested, gate = printed.pop("nested"), printed.pop("gate")
    for number, (name, text) in enumerate(printed.items()):
        check_frames(path, text, CALLS[name], 8 + 3 * number, name, "call()")
    assert gate.endswith("ZeroDivisionError: integer division or modulo by zero\n")
    assert "/base.py" in gate, "the cause of another exception has to be found"
    assert "in <lambda>" in nested and nested.count(f'File "{path}"') == nested.count("File ") == 3


def test_a_thread_shows_its_own_lines_and_the_error(script):
    path, printed = script(CALL, "threading.Thread(target=train).start()")
    assert "site-packages" not in printed.partition("opforge.errors.")[0]
    assert f'  File "{path}", line 8, in train\n    opforge.load' in printed
    assert "/opforge/" not in printed.partition("opforge.errors.")[0]


def test_a_variable_brings_the_frames_back(script):
    _, printed = script(CALL, OPFORGE_FULL_TRACEBACK="1")
    assert "/executor.py" in printed and "/planned_build.py" in printed


def test_the_users_own_error_is_still_the_context(script):
    way = "try:\n    {}['x']\nexcept KeyError:\n    train()"
    path, printed = script(CALL, way)
    assert "KeyError: 'x'\n\nDuring handling of the above exception, another exception occurred:" in printed
    assert printed.count(f'File "{path}"') == 3 and "/opforge/" not in printed.partition("opforge.errors.")[0]


def test_an_interrupt_of_a_build_shows_the_users_line(tmp_path):
    source = "#include <torch/csrc/stable/library.h>\n#include <torch/csrc/stable/ops.h>\n"
    text_files.write(tmp_path, "slow.cpp", source + 'STABLE_TORCH_LIBRARY(slow, m) { m.def("f() -> ()"); }\n')
    code = "import opforge\nprint('go', flush=True)\nopforge.load('slow', 'slow.cpp', extra_cflags=['-DNUMBER=1'])\n"
    path = text_files.write(tmp_path, "script.py", code)
    process = subprocess.Popen(
        [sys.executable, path],
        cwd=tmp_path,
        env=child_processes.environment(),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout and process.stdout.readline() == "go\n"
    time.sleep(0.7)
    process.send_signal(signal.SIGINT)
    _, printed = process.communicate(timeout=60)
    assert printed.splitlines()[0] == "Traceback (most recent call last):" and printed.endswith("KeyboardInterrupt\n")
    assert printed.count("File ") == 1 and f'File "{path}", line 3' in printed


def frames(shown):
    """Returns the place of each frame of a traceback as a notebook shows it, whatever file it is of."""
    return re.findall(r"^(?:File )?(\S.*(?::\d+(?=, in )|, line \d+$|, line \d+(?=, in )))", shown, re.MULTILINE)


def test_ipython_shows_the_cell_and_the_error(tmp_path):
    text_files.write(tmp_path, "broken.cpp", BROKEN)
    code = (
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance(colors='NoColor')\n"
        "shell.run_cell('import opforge')\n"
        "shell.run_cell(\"opforge.load('broken', 'broken.cpp', abi='c')\")\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=child_processes.environment(), capture_output=True, text=True
    )
    assert "----> 1 opforge.load('broken', 'broken.cpp', abi='c')" in process.stdout
    assert "CompileError: broken: compile broken.cpp failed" in process.stdout
    assert "jit.py" not in process.stdout and "base.py" not in process.stdout


@pytest.fixture(scope="module")
def cell(tmp_path_factory):
    """A function that runs a cell in a notebook; returns its number, its folder, and the reply."""
    from jupyter_client.manager import start_new_kernel

    folder, numbers = tmp_path_factory.mktemp("notebook"), itertools.count(1)
    manager, client = start_new_kernel(cwd=str(folder), env=child_processes.environment())

    def run(text):
        reply = client.execute_interactive(text, timeout=120, output_hook=lambda message: None)
        return next(numbers), reply["content"]

    text_files.write(folder, "broken.cpp", BROKEN)
    text_files.write(folder, "value.cpp", VALUE)
    try:
        yield run
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_a_notebook_shows_the_cell_and_the_error(cell):
    assert cell("import opforge")[1]["status"] == "ok"
    number, content = cell(CALL)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(content["traceback"]))
    assert content["ename"] == "CompileError"
    assert f"----> 1 {CALL}" in shown and "broken.cpp:3:" in shown
    assert shown.count("----> ") == 1 and frames(shown) == [f"Cell In[{number}], line 1"]


@pytest.mark.parametrize("variable", ["", "NO_COLOR"])
def test_the_interpreter_prints_colours_on_a_terminal_and_nobody_else_gets_them(tmp_path, variable):
    text_files.write(tmp_path, "broken.cpp", BROKEN)
    code = (
        "import opforge, traceback\n"
        "try: opforge.load('broken', 'broken.cpp', abi='c')\n"
        "except opforge.errors.CompileError as error:\n"
        "    assert '\\x1b' not in str(error) + traceback.format_exc() + repr(error)\n"
        "    raise\n"
    )
    reader, writer = os.openpty()
    env = child_processes.environment(TERM="xterm", **({variable: "1"} if variable else {"NO_COLOR": None}))
    process = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env=env, stdout=writer, stderr=writer)
    os.close(writer)
    printed = b""
    try:
        while part := os.read(reader, 4096):
            printed += part
    except OSError:  # Linux: the other end is closed
        pass
    os.close(reader)
    assert process.wait(timeout=60) == 1 and b"AssertionError" not in printed, printed
    assert b"'retrun'" in printed and (b"\x1b[1;31merror:\x1b[0m" in printed) is not bool(variable)
    assert (b"\x1b[1;32m" in printed) is not bool(variable)


VALUE = sample_ops.EXPORT + " int value() { return 7; }\n"
WRONG_CALLS = [
    ("opforge.load('value', source='value.cpp')", "TypeError", "Did you mean 'sources'?"),
    ("opforge.load_inline('value', cpp_source='')", "TypeError", "Did you mean 'cpp_sources'?"),
    ("opforge.load('value')", "TypeError", "missing 1 required positional argument: 'sources'"),
    ("opforge.load('value', 'value.cpp', abi='c').valeu", "AttributeError", "Did you mean 'value'?"),
]


def test_a_wrong_name_has_the_one_that_is_meant_in_its_text_and_no_frame_of_opforge(script, cell, tmp_path):
    text_files.write(tmp_path, "value.cpp", VALUE)
    functions = "".join(f"def f{number}():\n    {call}\n\n" for number, (call, *_) in enumerate(WRONG_CALLS))
    calls = ", ".join(f"f{number}" for number in range(len(WRONG_CALLS)))
    text = SEVERAL.replace("FUNCTIONS", functions).replace("CALLS", f"({calls})").replace("END", END)
    _, printed = script("", text=text)
    for (call, kind, text), shown in zip(WRONG_CALLS, printed.split(f"{END}\n"), strict=False):
        *_, error = shown.splitlines()
        assert error.startswith(f"{kind}: ") and error.endswith(text), shown
        assert shown.count("File ") == 2 and shown.count("Did you mean") <= 1, shown
        number, content = cell(f"import opforge\n{call}")
        shown = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(content["traceback"]))
        assert content["ename"] == kind and content["evalue"].endswith(text)
        assert shown.count("----> ") == 1 and frames(shown) == [f"Cell In[{number}], line 2"], shown


def test_a_type_error_from_within_keeps_its_text_and_frames():
    from opforge.builders import jit

    def broken(source=1):
        return f(sources=source)

    def f():
        return None

    with pytest.raises(TypeError) as error:
        jit._public(broken)()
    assert str(error.value).endswith("f() got an unexpected keyword argument 'sources'")
    assert [entry.name for entry in error.traceback][-1] == "broken"
