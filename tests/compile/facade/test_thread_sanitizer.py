"""A facade module's functions, classes and autograd Functions in threads, under the thread sanitizer."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from facade.compiling import compile_library

SOURCE = Path(__file__).parents[2] / "support" / "facade" / "threads_source.cpp"
USES = """
import sys, threading
import torch
sys.path.insert(0, sys.argv[1])
import facade_threads as m

torch.set_num_threads(1)  # the tool does not see how OpenMP's threads wait for each other
x = torch.arange(256.0)

def in_threads(use):
    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

def plain():
    for _ in range(10):
        y = x.clone().requires_grad_()
        m.squared(y).sum().backward()
        assert torch.equal(y.grad, 2 * x)
        assert torch.equal(m.halved(x), x / 2)
        node = m.Node()
        node.n = 5
        assert m.same(node) is node

if sys.argv[2] == "race":
    in_threads(m.counted)
else:
    in_threads(plain)
    shared = x.clone().requires_grad_()
    total = m.squared(shared).sum()
    in_threads(lambda: torch.autograd.grad(total, shared, retain_graph=True))
print("done")
"""


@pytest.mark.long("it runs Python with torch under the thread sanitizer")
def test_threads_share_nothing_of_a_module_without_a_lock(tmp_path: Path) -> None:
    tool = subprocess.run(["g++", "-print-file-name=libtsan.so"], capture_output=True, text=True).stdout.strip()
    if not os.path.isabs(tool):
        pytest.skip("g++ has no thread sanitizer")
    library = tmp_path / "facade_threads.so"
    compile_library("facade", "facade_threads", [SOURCE], library, ["-O1", "-g1", "-fsanitize=thread"])
    # What is not compiled with it, Python and torch, is left out: their locks are not seen.
    tool_environment = {"LD_PRELOAD": tool, "TSAN_OPTIONS": "ignore_noninstrumented_modules=1 exitcode=66"}
    ended = {
        use: subprocess.run(
            [sys.executable, "-c", USES, str(tmp_path), use],
            capture_output=True,
            text=True,
            env=os.environ | tool_environment,
        )
        for use in ("race", "plain")
    }
    assert ended["race"].returncode == 66 and "counted()" in ended["race"].stderr
    assert (ended["plain"].returncode, ended["plain"].stdout) == (0, "done\n"), ended["plain"].stderr[-4000:]
