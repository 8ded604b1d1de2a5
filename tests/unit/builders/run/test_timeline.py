"""The trace of a build: every step of ninja's log is an event, and no two events of a row overlap."""

from __future__ import annotations

import itertools
import threading

from opforge.builders.run import timeline

ROWS = ("0 100 1 libtorch_cpu.so ab", "0 400 2 0.a.o cd", "100 900 3 1.b.o ef", "900 1000 4 a.so 01")
LOG = "# ninja log v7\n" + "".join(row.replace(" ", "\t") + "\n" for row in ROWS)


def test_steps_that_ran_at_the_same_time_have_different_rows(tmp_path):
    (tmp_path / ".ninja_log").write_text(LOG)
    line = timeline.Timeline()
    line.add_steps("a", str(tmp_path), {"0.a.o": "compile a.cpp", "a.so": "link a"}, 0, line.began + 5)
    steps = [event for event in line.to_json()["traceEvents"] if event["ph"] == "X"]
    assert [(step["name"], step["ts"], step["dur"]) for step in steps] == [
        ("a: libtorch_cpu.so", 4_000_000, 100_000),
        ("a: compile a.cpp", 4_000_000, 400_000),
        ("a: 1.b.o", 4_100_000, 800_000),
        ("a: link a", 4_900_000, 100_000),
    ]
    ends: dict[int, int] = {}
    for step in steps:
        assert step["ts"] >= ends.get(step["tid"], 0)
        ends[step["tid"]] = step["ts"] + step["dur"]
    assert sorted(ends) == [1, 2]
    assert steps[0]["args"] == {"op": "a", "output": "libtorch_cpu.so"}


def test_only_what_was_added_to_the_log_is_read(tmp_path):
    assert timeline.read_log(str(tmp_path)) == [] and timeline.log_size(str(tmp_path)) == 0
    (tmp_path / ".ninja_log").write_text(LOG)
    size = timeline.log_size(str(tmp_path))
    with open(tmp_path / ".ninja_log", "a") as file:
        file.write("0\t7\t5\tb.o\t02\n")
    assert timeline.read_log(str(tmp_path), size) == [(0, 7, "b.o")]


def test_a_span_belongs_to_the_timeline_of_its_thread():
    line = timeline.Timeline()

    def work():
        timeline.use(line)
        with timeline.span("plan"):
            pass

    thread = threading.Thread(target=work, name="other")
    thread.start()
    thread.join()
    with timeline.span("not recorded"):
        pass
    events = {event["name"]: event for event in line.to_json()["traceEvents"]}
    assert events["plan"]["cat"] == "op" and events["plan"]["dur"] >= 0
    assert events["thread_name"]["args"] == {"name": "builds 1"} and "not recorded" not in events


def test_rounding_makes_no_event_overlap_the_next(tmp_path):
    line = timeline.Timeline()
    for first in range(40):
        line.add(str(first), line.began + first / 3e6, line.began + (first + 1) / 3e6)
    events = [event for event in line.to_json()["traceEvents"] if event["ph"] == "X"]
    assert all(event["ts"] + event["dur"] <= after["ts"] for event, after in itertools.pairwise(events))
