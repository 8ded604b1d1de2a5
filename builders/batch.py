"""Builds many ops in one run: stored ops are not built again, and the others share one budget of compilers."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import Any

from opforge.accelerator import Accelerator
from opforge.accelerator.select import get_accelerator
from opforge.cache.current_store import current_store
from opforge.errors import OpIncompatibleError, OpNotFoundError, SettingError, ToolchainNotFoundError
from opforge.fast_path.library import Entry
from opforge.foundation.tracebacks import shorten

from .base import OpBuilder
from .declaration.build_plan import BuildPlan
from .load_op import gate_problems, stored_entry
from .lookup.finder import Finder
from .planner import make_plan
from .resources import exhausted_resource
from .run import jobserver, timeline
from .toolchains import find_toolchain
from .waiting.expected_time import weights as weights

SHUTDOWN_SECONDS = 5.0
"""How long a run that was interrupted waits for its builds to clear up after their compilers are gone."""


def look_up(builder: OpBuilder, force: bool, any_machine: bool) -> Entry | BuildPlan:
    """Returns the stored entry that fits the builder's op, or the plan of the build that is needed.

    With `any_machine`, that this machine cannot run the op is no problem. Raises OpIncompatibleError if it cannot,
    PrebuiltRequiredError if building is forbidden, and what `find` and `make_plan` raise.
    """
    spec, store = builder.spec(), current_store()
    if not any_machine and (problems := gate_problems(builder, spec)):
        raise OpIncompatibleError(spec.name, str(spec.target), problems)
    found = Finder(spec, store, exact=True, asks=True)
    entry = stored_entry(found, force, counts=False)  # `build` looks it up again
    if entry:
        return entry
    try:
        return make_plan(spec, find_toolchain(spec, store))
    except ToolchainNotFoundError as error:
        raise error.after([*map(str, found.rejected)]) from None


def prepare(ops: Iterable[str | type[OpBuilder] | OpBuilder]) -> None:
    """Builds ops that are not stored yet, and loads none: before training starts, say, when no other rank waits.

    Several processes may do this at the same time: each op is built once, and the others wait for it.

    Args:
        ops: Names as `create_op_builder` takes them, with or without "Builder"; builder classes; or builders.

    Raises:
        OpNotFoundError: The accelerator in use offers no op of that name.
        SettingError: `ops` is one op, and no list.
        BuildError: A build failed. So do the other errors of `OpBuilder.build`.
    """
    try:
        if isinstance(ops, str) or not hasattr(ops, "__iter__"):  # a text's letters would be taken for ops
            raise SettingError("ops", ops, f"a list of ops: [{ops!r}]")
        for op in ops:
            builder: Any = op() if isinstance(op, type) else op
            if isinstance(op, str):
                builder = _builder_of(get_accelerator(), op)
            if not hasattr(builder, "build"):
                raise SettingError("ops", op, "names of ops, builder classes, or builders in the list")
            builder.build()
    except BaseException as error:
        shorten(error)
        raise


def _builder_of(accelerator: Accelerator, name: str) -> Any:
    """Returns the builder of an op's name, in any letter case, with or without "Builder". Raises OpNotFoundError."""
    plain = name.lower().replace("_", "").removesuffix("builder")
    for offered in accelerator.op_builders():
        if offered.lower().removesuffix("builder") == plain:
            return accelerator.create_op_builder(offered)
    raise OpNotFoundError(name, accelerator.name, dict.fromkeys(accelerator.op_builders(), "offered"))


def in_parallel(
    work: Mapping[int, Callable[[], None]],
    order: Sequence[int],
    shared: jobserver.Jobserver,
    line: timeline.Timeline | None,
) -> Iterator[int]:
    """Runs each piece of work in a thread, beginning in `order`; yields the number of each as it ends.

    One build more than there are compilers is under way, so that a compiler has work while another build reads what it
    was built from. Left by an exception, such as Ctrl-C, it ends every compiler and waits for the builds to clear up.
    """
    waiting: SimpleQueue[int] = SimpleQueue()
    ended: SimpleQueue[int | BaseException] = SimpleQueue()
    for number in order:
        waiting.put(number)

    def builds() -> None:
        jobserver.use(shared)
        timeline.use(line)
        while not shared.stopped:
            try:
                number = waiting.get_nowait()
            except Empty:
                return
            try:
                work[number]()
                ended.put(number)
            except BaseException as error:
                ended.put(error)
                return

    threads = [threading.Thread(target=builds, daemon=True) for _ in range(min(len(order), shared.slots + 1))]
    try:
        for thread in threads:
            try:
                thread.start()
            except RuntimeError as error:  # no more can be started; one does all the work
                if thread is threads[0]:
                    ended.put(exhausted_resource("build-ops", OSError(errno.EAGAIN, "")) or error)
                break
        for _ in order:
            outcome = ended.get()
            if isinstance(outcome, BaseException):
                raise outcome
            yield outcome
    finally:
        shared.stop()
        deadline = time.monotonic() + SHUTDOWN_SECONDS
        for thread in threads:
            if thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))
