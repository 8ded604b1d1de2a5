"""Remembers what a look-up came to, so that the next one need not make a plan to arrive there.

A plan is a pure function of what a builder declares, of the environment's variables, of the compiler, and of opforge's
own code. An answer is filed under the first two and where the roots lie, and holds the stamps of the others, of the
folders on PATH where an earlier compiler would appear, and the ticket of the entry. Any stamp that differs sends the
look-up the long way.

    v1/answers/QUESTION.json
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from opforge.builders import planner, toolchains
from opforge.builders.spec import abi, build_plan, kernel_roots
from opforge.builders.toolchains import host, probe
from opforge.cache.filesystem.disk import ABSENT, Disk
from opforge.cache.keys import KEY_LENGTH
from opforge.cache.layout import UNREADABLE, make_folder, read_json, write_file
from opforge.cache.records import stat_record
from opforge.cache.records.entry import Entry
from opforge.cache.store import is_ticket

if TYPE_CHECKING:
    from opforge.builders.base import OpBuilder
    from opforge.builders.toolchains.toolchain import Toolchain
    from opforge.cache.store import Store

FORMAT = 2
CODE = Disk().flat_stamps(
    [
        *(str(module.__file__) for module in (abi, build_plan, planner, kernel_roots, host, probe)),
        # base.py imports this module, so it is named by its path.
        os.path.join(os.path.dirname(os.path.dirname(str(build_plan.__file__))), "base.py"),
    ]
)
"""The stamps of our own code that shapes plans, as it was when this process imported it: that is the code that runs."""


class Surroundings(NamedTuple):
    """What a plan depends on besides its question, as it was before the plan was made."""

    at: int
    """When this was looked at, in the disk's nanoseconds."""
    stamps: Mapping[str, list[int]]
    absent: list[str]


def recall(builder: OpBuilder, store: Store, places: Mapping[str, str]) -> Entry | None:
    """The entry that this question led to before, checked, if nothing that led there has changed; otherwise None."""
    path = _file(builder, store, places)
    if path is None:
        return None
    try:
        answer = read_json(path)
        ticket, looked = answer["ticket"], _watched()
        if answer["format"] != FORMAT or not is_ticket(ticket) or not path.endswith(f"/{answer['question']}.json"):
            return None
        if answer["code"] != _code(builder) or answer["looked"] != looked:
            return None
        if store.disk.flat_stamps([*answer["programs"], *looked, *answer["inputs"]]) != answer["stamps"]:
            return None
        if any(os.path.exists(one) for one in answer["absent"]):
            return None
        return store.take(ticket, (path, answer["filed"]))
    except UNREADABLE:
        return None


def look_around(builder: OpBuilder, store: Store, places: Mapping[str, str]) -> Surroundings:
    """What an answer is to hold, looked at before the plan is made: what changes after that is not vouched for."""
    at = store.disk.now_ns()
    return Surroundings(at, {one: _stamp(store.disk, one) for one in _watched()}, _absent(builder, places))


def remember(
    builder: OpBuilder,
    store: Store,
    places: Mapping[str, str],
    toolchain: Toolchain,
    plan_key: str,
    entry: Entry,
    seen: Surroundings,
) -> None:
    """File an answer. Failing to costs the next look-up a plan, nothing else."""
    path = _file(builder, store, places)
    if path is None or not entry.ticket:
        return
    ticket = entry.ticket
    if not stat_record.holds_by_stamps(ticket, places, store.disk):
        return  # an input is young: it could change again and keep its stamp
    programs = toolchain.programs()
    looked, code = list(seen.stamps), _code(builder)
    around = [*programs.values(), *seen.stamps.values()]
    times = [*code[1::4], *code[2::4], *(time for stamp in around for time in stamp[1:3])]
    if any(time > seen.at - stat_record.YOUNG_NS for time in times):
        return  # so could our code, a program, or a folder that it was found in
    inputs = [one[-6:] for one in (*ticket["open"], *ticket["folders"], *ticket["seals"])]
    answer = {
        "format": FORMAT,
        "question": os.path.basename(path)[: -len(".json")],
        "code": code,
        "programs": list(programs),
        "looked": looked,
        "inputs": [f"{places[root]}/{below}" for root, below, *_stamp in inputs],
        "stamps": [number for stamp in (*around, *(one[2:] for one in inputs)) for number in stamp or ABSENT],
        "absent": seen.absent,
        "ticket": {
            **ticket,
            "open": [one for one in ticket["open"] if kernel_roots.is_own(one[0])],
            "folders": [],
            "seals": [],
        },
        "filed": store.ticket_path(plan_key, entry.result, places),
    }
    try:
        make_folder(store.layout.path("answers"))
        write_file(path, json.dumps(answer).encode())
    except OSError:
        return


def _file(builder: OpBuilder, store: Store, places: Mapping[str, str]) -> str | None:
    """Where the answer to this builder's question lies; None where the builder makes its plans in its own way."""
    question = builder.question()
    if question is None:
        return None
    variables = [os.environ.get(name) for name in (*host.PLAN_ENV, *_device_reads(builder))]
    asked = [FORMAT, question, variables, _working_folder(), sorted(places.items())]
    # Plain strings and lists have one repr; it takes a third of the time that canonical JSON does.
    name = hashlib.sha256(repr(asked).encode("utf-8", "surrogateescape")).hexdigest()[:KEY_LENGTH]
    return f"{store.layout.path('answers')}/{name}.json"


def _working_folder() -> str:
    """The working folder, where PATH or CXX start from it; otherwise empty."""
    compiler = os.environ.get("CXX", "")
    started = [*_folders("PATH", os.defpath), *([compiler] if "/" in compiler else [])]
    return "" if all(one.startswith("/") for one in started) else os.getcwd()


def _folders(variable: str, default: str = "") -> list[str]:
    value = os.environ.get(variable, default)
    return [one or "." for one in value.split(os.pathsep)] if value else []


def _watched() -> list[str]:
    """The paths whose stamps an answer holds besides the compiler's programs': where they would be found."""
    return list(dict.fromkeys([*_folders("PATH", os.defpath), *_folders("COMPILER_PATH")]))


def _code(builder: OpBuilder) -> list[int]:
    """The stamps of our own code that shapes plans for the builder's device, as they were when it was first asked."""
    device, portable = builder.target.device, builder.portable
    if device == "cpu" and not portable:
        return CODE
    if (device, portable) not in _other_code:
        _other_code[device, portable] = [*CODE, *Disk().flat_stamps(toolchains.code_files(device, portable))]
    return _other_code[device, portable]


_other_code: dict[tuple[str, bool], list[int]] = {}


def _device_reads(builder: OpBuilder) -> tuple[str, ...]:
    device = builder.target.device
    return () if device == "cpu" else toolchains.plan_env(device)


def _stamp(disk: Disk, path: str) -> list[int]:
    return list(disk.stamp(path) or ())


def _absent(builder: OpBuilder, places: Mapping[str, str]) -> list[str]:
    """The paths at which an earlier root would answer for a source or a folder, or add a folder of its own."""
    found = []
    search = builder.search_roots()
    for name in (*builder.sources, *builder.include_dirs):
        if not os.path.isabs(name):
            for root in search:
                path = os.path.join(root.path, name)
                if os.path.exists(path):
                    break
                found.append(path)
    own = [os.path.join(root.path, root.include) for root in search if root.include]
    return [*found, *(folder for folder in own if not os.path.isdir(folder))]
