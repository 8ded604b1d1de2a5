"""Loads many ops in a fresh process and prints what each load takes: `python -m benchmarks.loading.child_many ...`."""

from __future__ import annotations

import gc
import importlib
import json
import statistics
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opforge import OpBuilder

RACY_SECONDS = 2.1
"""Until no file is younger than two seconds: the ops of such files are looked up at each load."""


def main() -> None:
    """Prints one JSON object: what is loaded -> the median seconds of processor time of a load, without torch."""
    folder, module, count = sys.argv[1:]
    sys.path.insert(0, folder)
    classes = importlib.import_module(module).BUILDERS[: int(count)]
    builders = [builder() for builder in classes]
    gc.disable()
    first = _seconds(builders)
    time.sleep(RACY_SECONDS)
    _seconds(builders)
    further, fresh = _seconds(builders), _seconds([builder() for builder in classes])
    loaded = [builder.current() for builder in builders]
    watched = statistics.median(len(current._often.paths) if current else -1 for current in loaded)
    found = {"first": first, "further": further, "fresh": fresh, "watched": watched}
    print(json.dumps({**found, "torch": "torch" in sys.modules}))


def _seconds(builders: Sequence[OpBuilder]) -> float:
    """Returns the median processor time of one builder's load."""
    samples = []
    for builder in builders:
        began = time.process_time()
        _loaded: Any = builder.load()
        samples.append(time.process_time() - began)
    return statistics.median(samples)


if __name__ == "__main__":
    main()
