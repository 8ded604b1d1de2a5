"""Loads the op in one of three processes, and compares what it gives with a fresh build."""

from __future__ import annotations

import collections
import os
import shutil
import tempfile
import time

import fresh_build
from hypothesis.stateful import RuleBasedStateMachine
from processes import Loader
from world import World

USERS = "users"
"""A folder that is no store: its `v2` is the user's own."""
LAYERS = ("layer0", "layer1")
HEADER_VARIABLES = ("CPATH", "CPLUS_INCLUDE_PATH")
USER_FLAGS = ("CPPFLAGS", "CXXFLAGS", "LDFLAGS")
counts: collections.Counter[str] = collections.Counter()
"""What the loads of this process were answered by, and how long they took."""
mutant = ""
"""The patch of `mutants.py` with which the loads are made; empty for none."""


def report() -> None:
    """Prints what was done so far."""
    print(time.strftime("%H:%M:%S"), {name: round(count, 1) for name, count in sorted(counts.items())}, flush=True)


class Context:
    """What the maker of a layer's entry had: the variables, and a copy of the machine's own files."""

    def __init__(self, world: World, folder: str) -> None:
        self.environment, self.folder = world.environment(), folder
        for name in fresh_build.FOREIGN:
            if os.path.isdir(world.path(name)) and not os.path.islink(world.path(name)):
                shutil.copytree(world.path(name), os.path.join(folder, name), symlinks=True)
        os.symlink(os.readlink(world.path("current")), os.path.join(folder, "current"))


class Loads(RuleBasedStateMachine):
    """One world and the processes that load its op. Subclasses have the rules that change the world."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(tempfile.mkdtemp(prefix="opforge-model\u00a0\u2028\u0085-"))
        self.again, self.held = Loader(mutant), Loader(mutant)
        self.contexts: dict[str, Context] = {}
        self.stored = self.last = ""
        self.repeated = 0

    def teardown(self) -> None:
        self.again.close()
        self.held.close()
        self.world.close()
        report()

    def load(self, by: str) -> dict:
        """Loads the op in one of the processes and compares it with a fresh build. Returns the process's answer."""
        state = self.world.state()
        self.repeated = self.repeated + 1 if state == self.last else 0
        self.last = state
        if by == "again" and self.repeated > 1:
            return {}  # a third load of one state shows nothing new
        began = time.perf_counter()
        if by == "fresh":
            process = Loader(mutant)
            try:
                answer = process.ask(self.world, by)
            finally:
                process.close()
        else:
            answer = (self.held if by == "held" else self.again).ask(self.world, by)
        counts["seconds in loads"] += time.perf_counter() - began
        counts["steps"] += 1
        began = time.perf_counter()
        self.compare(answer, by)
        counts["seconds in the oracle"] += time.perf_counter() - began
        return answer

    def compare(self, answer: dict, by: str) -> None:
        findings = answer.get("findings")
        assert not findings, f"a load would not notice a change of what the build asked for: {findings}"
        origin = answer.get("origin", answer.get("error"))
        counts[f"{by}: {'layer' if '/' in origin else origin}"] += 1
        # A process that holds a library keeps the object of its first load, although a layer has answered since.
        may_be_layers = os.path.basename(origin) in LAYERS or (by == "held" and self.world.layers)
        context = self.contexts.get(answer.get("key")) if may_be_layers else None
        environment = context.environment if context else self.world.environment()
        # Where a variable is the same as it was for the layer's maker, its headers must be the same too.
        own = [name for name in HEADER_VARIABLES if self.world.variables.get(name) == environment.get(name, "")]
        kept = ("cpath", "cpath2") if own and by != "held" else ()
        try:
            values = fresh_build.expected(self.world, environment, context.folder if context else "", kept)
        except fresh_build.BuildFails as error:
            assert "error" in answer, f"{answer} although the build fails: {error}"
            counts["failing builds"] += 1
            return
        if "error" in answer:
            refused = answer["error"] == "CacheDirError" and self.world.store in {*self.world.read_only, USERS}
            assert refused or answer["error"] == "PrebuiltRequiredError", f"{answer}; a build gives {values}"
            return
        loaded, built = self.dateless(answer["values"], environment), self.dateless(values, environment)
        assert loaded == built, f"{origin} gives\n{loaded}, a build\n{built}"
        if context and by != "held":
            self.check_flags(context)
        state = self.world.state()
        if by in ("again", "fresh"):
            assert origin != "built" or self.stored != state, "the second load of one state builds again"
            self.stored = state

    def check_flags(self, context: Context) -> None:
        """Checks that a layer's entry with other flags than the user's is used only if the user asks for that."""
        here, there = self.world.variables, context.environment
        if not here.get("OPFORGE_PREBUILT"):
            for name in USER_FLAGS:
                assert not here.get(name) or here[name] == there.get(name), f"{name} of the layer's maker is used"

    def dateless(self, values: dict[str, str], environment: dict[str, str]) -> dict[str, str]:
        """Returns the values without a date that depends on when the op was compiled."""
        value = values["value"]
        if "SOURCE_DATE_EPOCH" in environment and "cxx=gcc" in value:
            return values
        return {**values, "value": value.partition(" date=")[0]}
