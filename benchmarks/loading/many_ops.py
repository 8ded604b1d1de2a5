"""Does a load take longer in a process that has loaded 500 ops?"""

from __future__ import annotations

import os

from benchmarks.scratch import ChildError, Scratch
from opforge.bench.harness import Report, ratio, scaled

FEW, MANY = 1, 500
ROUNDS = 5
CHILD = "loading.child_many"
MODULE = "many_ops"
BUILDERS = f"""\
import ctypes
from opforge import OpBuilder

class AnswerBuilder(OpBuilder):
    name, sources, abi = "answer", ["answer.cpp"], "c"
    signatures = {{"answer": (ctypes.c_int, [])}}

# The same op by {MANY} declarations: it is built once, and each is looked up and loaded by itself.
BUILDERS = [type(f"Answer{{number}}Builder", (AnswerBuilder,), {{"__module__": __name__}}) for number in range({MANY})]
"""
SOURCE = 'extern "C" __attribute__((visibility("default"))) int answer() { return 42; }\n'


def run(scratch: Scratch) -> Report:
    """Processes with few and with many ops in turns. The first round looks up in full, and is not counted."""
    report = Report(
        f"one `.load()` in a process with {MANY} loaded ops of abi c, and without torch: processor time",
        "the same in a process with one op",
    )
    folder = scratch.new_folder("many-ops")
    for name, text in ((f"{MODULE}.py", BUILDERS), ("answer.cpp", SOURCE)):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)
    samples: dict[int, list[dict[str, float]]] = {FEW: [], MANY: []}
    for turn in range(-1, ROUNDS):
        for count in (MANY, FEW):
            result = scratch.run_child(CHILD, folder, MODULE, str(count))
            if result.pop("torch"):
                raise ChildError("torch was imported, which these ops do not need")
            if turn >= 0:
                samples[count].append(result)
    for what, title in (("first", "First load"), ("further", "Further load"), ("fresh", "First load of a new builder")):
        few = f"{FEW} op"
        table = report.table(title, "us", against=(few,))
        for count, name in ((FEW, few), (MANY, f"{MANY} ops")):
            table.add(name, scaled((result[what] for result in samples[count]), 1e6))
    watched = samples[MANY][0]["watched"]
    further = min(result["further"] for result in samples[MANY]) * 1e6
    what = f"a further load among {MANY} ops, which compares {watched:.0f} files and folders"
    report.figure(what, further, "us", 5 + 3 * watched)
    fresh = {count: [result["fresh"] for result in samples[count]] for count in samples}
    report.figure(
        f"a new builder's first load among {MANY} ops", ratio(fresh[MANY], fresh[FEW]), "of one among one", 1.2
    )
    return report
