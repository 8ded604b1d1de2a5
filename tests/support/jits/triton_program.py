"""A program that launches a kernel of Triton's on a driver that does nothing. It prints, as JSON, what was compiled.

python triton_program.py LABEL [JIT...]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

STARTED: list[str] = []
BEGUN = subprocess.Popen.__init__


def note(self, args, *others, **named):
    """Notes a process that is started, and starts it."""
    STARTED.append(os.path.basename(args if isinstance(args, str) else str(args[0])))
    BEGUN(self, args, *others, **named)


def main() -> None:
    """Launches the kernel of `kernel.py`, which is in the folder of KERNEL_FOLDER."""
    import torch  # with cuda-bindings it starts ldconfig

    import opforge

    subprocess.Popen.__init__ = note

    label, *jits = sys.argv[1:]
    with opforge.warm(label, jits=jits or None) as scope:
        import triton
        from triton.backends.nvidia.driver import CudaDriver

        class Driver(CudaDriver):
            """Triton's driver without torch's part of CUDA."""

            def __init__(self):
                super().__init__()
                self.get_device_capability = lambda device: (9, 0)
                self.get_current_stream = lambda device: 0
                self.get_current_device = lambda: 0
                self.set_current_device = lambda device: None

        hits = []
        triton.knobs.compilation.listener = lambda **event: hits.append(event["cache_hit"])
        triton.runtime.driver.set_active(Driver())
        sys.path.insert(0, os.environ["KERNEL_FOLDER"])
        import kernel

        x = torch.zeros(128)
        kernel.copy[(1,)](x, torch.zeros(128), BLOCK=128)
    print(json.dumps({"hit": hits, "started": STARTED, "found": scope.hits, "compiled": scope.compiled}))


if __name__ == "__main__":
    main()
