"""The trace of a build: every step of ninja's log as an event, and no two on one row at one time."""

from __future__ import annotations

import itertools
import threading

from opforge.builders.run import timeline

ROWS = ("0 100 1 libtorch_cpu.so ab", "0 400 2 0.a.o cd", "100 900 3 1.b.o ef", "900 1000 4 a.so 01")
LOG = "# ninja log v7\n" + "".join(row.replace(" ", "\t") + "\n" for row in ROWS)


def test_steps_that_ran_at_once_stand_in_rows_of_their_own(tmp_path):
    (tmp_path / ".ninja_log").write_text(LOG)
    line = timeline.Timeline()
    line.add_steps("a", str(tmp_path), {"0.a.o": "compile a.cpp", "a.so": "link a"}, 0, line._began + 5)
    steps = [one for one in line.to_json()["traceEvents"] if one["ph"] == "X"]
    assert [(one["name"], one["ts"], one["dur"]) for one in steps] == [
        ("a: libtorch_cpu.so", 4_000_000, 100_000),
        ("a: compile a.cpp", 4_000_000, 400_000),
        ("a: 1.b.o", 4_100_000, 800_000),
        ("a: link a", 4_900_000, 100_000),
    ]
    by_row: dict[int, int] = {}
    for one in steps:
        assert one["ts"] >= by_row.get(one["tid"], 0)
        by_row[one["tid"]] = one["ts"] + one["dur"]
    assert sorted(by_row) == [1, 2]
    assert steps[0]["args"] == {"op": "a", "output": "libtorch_cpu.so"}


def test_only_what_the_log_gained_is_read(tmp_path):
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
    with timeline.span("nobody asked"):
        pass
    named = {one["name"]: one for one in line.to_json()["traceEvents"]}
    assert named["plan"]["cat"] == "op" and named["plan"]["dur"] >= 0
    assert named["thread_name"]["args"] == {"name": "builds 1"} and "nobody asked" not in named


def test_rounding_lets_no_event_overlap_the_next(tmp_path):
    line = timeline.Timeline()
    for first in range(40):
        line.add(str(first), line._began + first / 3e6, line._began + (first + 1) / 3e6)
    found = [one for one in line.to_json()["traceEvents"] if one["ph"] == "X"]
    assert all(one["ts"] + one["dur"] <= after["ts"] for one, after in itertools.pairwise(found))
