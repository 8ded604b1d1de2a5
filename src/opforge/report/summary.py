"""The summary of a report: usable parts, and parts that need attention with advice. Nothing here prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opforge.accelerator.interface.deepspeed_names import DEVICE_BUILDERS
from opforge.builders.no_builds import no_builds
from opforge.foundation.settings import misspelt

USABLE = ("ready", "cached", "fetchable", "buildable")
BUILT = ("ready", "cached")


def attention(report: Mapping[str, Any]) -> list[str]:
    """Returns the problems that need attention, each with its hint, and each reason once."""
    problems = [report["torch"].get("problem", ""), report["cache"]["problem"], report["ops_problem"]]
    problems += [*report["ops_left_out"], *report["accelerators"]["problems"], *report["accelerators"]["ignored"]]
    problems += [compiler["problem"] for compiler in report["compilers"]]
    problems += [f"{', '.join(names)}: {reason}" for reason, names in reasons(report).items()]
    for layer in report["cache"]["layers"]:
        if state := misspelt.layer_problem(layer):
            problems.append(f"the layer {layer} {state}. Correct OPFORGE_CACHE_LAYERS, or make it: build-ops --out")
    problems += [f"remote {remote['url']}: {remote['problem']}" for remote in report["remotes"] if remote["problem"]]
    if report["aio"].get("problem"):
        problems.append(f"asynchronous files: {report['aio']['problem']}")
    return list(dict.fromkeys(filter(None, problems)))


def reasons(report: Mapping[str, Any]) -> dict[str, list[str]]:
    """Returns each reason why ops are unusable, with the names of these ops."""
    names: dict[str, list[str]] = {}
    for op in report["ops"]:
        if op["state"] == "unusable":
            for reason in op["reasons"] or ["it is unusable"]:
                names.setdefault(reason, []).append(op["name"])
    return names


def states(report: Mapping[str, Any]) -> str:
    """Returns how many ops can be loaded, by state: "3 of 4 usable: 2 cached, 1 buildable"."""
    counts = {state: sum(op["state"] == state for op in report["ops"]) for state in USABLE}
    listed = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    usable = f"{sum(counts.values())} of {len(report['ops'])} usable"
    return f"{usable}: {listed}" if listed else usable


def host_only(report: Mapping[str, Any]) -> list[str]:
    """Returns the ops that compute on a GPU in DeepSpeed, and that opforge has for the host alone on this machine.

    Every accelerator offers the host's ops, so their builders exist; they take no tensor of the device.
    """
    in_use = (report["accelerators"]["in_use"] or {"name": "cpu"})["name"]
    own = {op["name"] for op in report["ops"] if op["accelerator"] == in_use}
    return [op["name"] for op in report["ops"] if op["name"] in DEVICE_BUILDERS and op["name"] not in own]


def aio_engines(ops: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the engines of AsyncIO, each with the reason why it cannot be used or an empty text.

    Keys: `engines`, empty if the op is not built here, and `problem`, why that could not be found out. Builds nothing.
    """
    record: dict[str, Any] = {"engines": {}, "problem": ""}
    if not any(op["name"] == "AsyncIOBuilder" and op["state"] in BUILT for op in ops):
        return record
    try:
        from opforge.ops import aio

        with no_builds():
            record["engines"] = aio.report()
    except Exception as error:  # the report must not end here
        record["problem"] = f"{type(error).__name__}: {error}"
    return record
