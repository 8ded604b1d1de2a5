"""What does the first step of a compiled model take on a second machine, beside torch's warm local cache?"""

from __future__ import annotations

import os
import shutil
import statistics

from benchmarks.scratch import ChildError, Scratch, served
from opforge.bench.harness import Report, scaled

ROUNDS = 3
CHILD = "graphs.child_step"
CEILING = "torch's warm local cache, the same machine"
OWN = "opforge.compiled, another home and torch folder, no compiler, graphs in its store"
FETCHED = "the same, graphs on a server of this machine alone"
AHEAD = "opforge.compile, the same machine as the second: without tracing"
NAMES = {"graphs": ("bench",), "ahead": ("bench-ahead", "ahead")}
COLD = "nothing compiled"


def run(scratch: Scratch) -> Report:
    """Compiles once, then starts the contenders in turns, each in a new process."""
    report = Report("the first training step of the transformer of examples/, from entering the scope", CEILING)
    remote = scratch.path("graphs-remote", "")
    os.makedirs(remote, exist_ok=True)
    first = scratch.new_folder("first")
    settings = {
        "TORCHINDUCTOR_CACHE_DIR": os.path.join(first, "inductor"),
        "OPFORGE_CACHE_DIR": os.path.join(first, "store"),
        "XDG_CONFIG_HOME": os.path.join(first, "config"),
        "XDG_STATE_HOME": os.path.join(first, "state"),
        "XDG_CACHE_HOME": os.path.join(first, "caches"),
    }
    made = scratch.output([scratch.script("opforge"), "key", "new", "bench"], **settings)
    key = next(word for word in made.split() if word.startswith("bench:"))
    scratch.output([scratch.script("opforge"), "key", "trust", key, "--for", "jit:inductor/*"], **settings)
    cold = scratch.run_child(CHILD, *NAMES["graphs"], **settings, OPFORGE_REMOTES=f"file://{remote}?push=1")
    scratch.run_child(CHILD, *NAMES["ahead"], **settings)
    site = _site_with_torch(scratch)
    with served(remote) as url:
        samples, entering = _turns(scratch, settings, first, site, url)
    table = report.table("The first step", "s", against=(CEILING,))
    for name, times in samples.items():
        table.add(name, times, "ceiling" if name == CEILING else "")
    table.add(COLD, [cold["step"]], f"storing and publishing took {cold['leave']:.2f} s more")
    ratios = [one / other for one, other in zip(samples[OWN], samples[CEILING], strict=True)]
    report.figure(f"{OWN}: ratio to the ceiling", statistics.median(ratios), "", 1.15)
    fetched = [one / other for one, other in zip(samples[FETCHED], samples[CEILING], strict=True)]
    report.figure(f"{FETCHED}: ratio to the ceiling", statistics.median(fetched), "", 1.15)
    report.figure(f"{AHEAD}: seconds", statistics.median(samples[AHEAD]), "s", 0.5)
    report.figure("finding, checking and loading a page", statistics.median(scaled(entering, 1e3)), "ms", 150)
    return report


def _turns(
    scratch: Scratch, settings: dict[str, str], first: str, site: str, url: str
) -> tuple[dict[str, list[float]], list[float]]:
    """Returns the seconds of each contender's first step, and those of entering the scope with graphs in the store."""
    samples: dict[str, list[float]] = {CEILING: [], OWN: [], FETCHED: [], AHEAD: []}
    entering: list[float] = []
    for _turn in range(ROUNDS):
        samples[CEILING].append(scratch.run_child(CHILD, **settings)["step"])
        for name, words, stored in ((OWN, "graphs", True), (FETCHED, "graphs", False), (AHEAD, "ahead", True)):
            second = scratch.run_child(CHILD, *NAMES[words], **_second(scratch, first, site, "" if stored else url))
            if second["graphs"]:
                raise ChildError(f"{name}: {second['graphs']} graphs were compiled")
            samples[name].append(second["step"])
            if name == OWN:
                entering.append(second["enter"])
    return samples, entering


def _site_with_torch(scratch: Scratch) -> str:
    """Returns a folder with torch in it, whose files are the same: links if the file system allows them."""
    import torch

    folder = scratch.new_folder("site")
    packages = os.path.dirname(os.path.dirname(torch.__file__))
    for name in ("torch", "torchgen"):
        shutil.copytree(os.path.join(packages, name), os.path.join(folder, name), copy_function=_link)
    return folder


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _second(scratch: Scratch, first: str, site: str, url: str) -> dict[str, str]:
    """Returns the settings of a machine with a new home, torch in another folder, and no compiler on PATH.

    Without a URL, its store has the graphs.
    """
    home = scratch.new_folder("second")
    os.mkdir(os.path.join(home, "bin"))
    shutil.copytree(os.path.join(first, "config"), os.path.join(home, "config"))
    if not url:
        shutil.copytree(os.path.join(first, "store"), os.path.join(home, "store"))
    return {
        "HOME": home,
        "PATH": os.path.join(home, "bin"),
        "PYTHONPATH": site,
        "TORCHINDUCTOR_CACHE_DIR": os.path.join(home, "inductor"),
        "OPFORGE_CACHE_DIR": os.path.join(home, "store"),
        "OPFORGE_REMOTES": url,
        "XDG_CONFIG_HOME": os.path.join(home, "config"),
        "XDG_STATE_HOME": os.path.join(home, "state"),
        "XDG_CACHE_HOME": os.path.join(home, "caches"),
    }
