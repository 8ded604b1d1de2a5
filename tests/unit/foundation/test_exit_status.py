"""Exit statuses of programs where the process ignores SIGCHLD: the system keeps none, and programs inherit that."""

from __future__ import annotations

from support import child_processes

CODE = """
import ctypes, signal, subprocess
libc = ctypes.CDLL(None)
libc.signal.argtypes = ctypes.c_int, ctypes.c_void_p
libc.signal(signal.SIGCHLD, 1)  # SIG_IGN, and Python's `signal` does not know
from opforge.foundation import exit_status
done = exit_status.run(["sh", "-c", "cat; (exit 3); exit $?"], 60, input="printed", capture_output=True, text=True)
print(done.returncode, done.stdout)
print(exit_status.run(["sh", "-c", "kill -9 $$"], 60).returncode)
for command in (["/no/such/program"], ["sleep", "60"]):
    try:
        exit_status.run(command, 0.2)
    except (OSError, subprocess.TimeoutExpired) as error:
        print(error)
from opforge.builders.toolchains.discovery import probe
print(probe.try_run(["sh"], "-c", "exit 4")[0])
"""


def test_they_are_those_of_a_process_that_does_not_ignore_it():
    assert child_processes.run_python(CODE).splitlines() == [
        "3 printed",
        "-9",
        "[Errno 2] No such file or directory: '/no/such/program'",
        "Command '['sleep', '60']' timed out after 0.2 seconds",
        "4",
    ]
