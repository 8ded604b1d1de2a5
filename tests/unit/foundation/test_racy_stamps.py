"""Which stamps may hide a change: those of files that changed in the last seconds, by the clock of the system."""

from __future__ import annotations

import re
import time

import pytest
from support import sample_ops, text_files

from opforge.builders.lookup import remembered_lookups
from opforge.builders.lookup.finder import Finder
from opforge.cache.filesystem.disk import Disk
from opforge.foundation import images
from opforge.foundation.remembered_values import RACY_NS, FlatStamps, stamps_of

NOW = 10**18
TEN_YEARS_NS = 3650 * 86400 * 10**9
"""How far the clock is behind: no file here was changed within seconds of that time."""


@pytest.mark.parametrize(
    ("modified", "changed", "is_racy"),
    [
        (NOW - 10 * RACY_NS, NOW - 10 * RACY_NS, False),
        (NOW - 10 * RACY_NS, NOW - 1, True),
        (NOW - 1, NOW - 10 * RACY_NS, True),
        (NOW + 10**15, NOW - 10 * RACY_NS, False),  # a program has set it: the time of change is the system's
        (NOW + 10**15, NOW - 1, True),
        (NOW + 10**15, NOW + 10**15, True),
    ],
)
def test_a_time_of_modification_in_the_future_hides_no_change(modified, changed, is_racy):
    assert FlatStamps(["/a"], [1, modified, changed, 7]).is_racy(NOW) is is_racy


class TestATimeOfChangeInTheFuture:
    """The clock of this machine was wrong, or that of a server is ahead: the file is known by its content."""

    @pytest.fixture(autouse=True)
    def _clock(self, monkeypatch):
        real = time.time_ns
        monkeypatch.setattr(time, "time_ns", lambda: real() - TEN_YEARS_NS)

    def test_it_hides_no_change_and_costs_no_look_up(self, tmp_path):
        path = text_files.write(tmp_path, "a.h", "one")
        stamps = FlatStamps([path], stamps_of([path]))
        assert stamps.ahead() == [path] and not stamps.is_racy(time.time_ns())
        assert stamps_of([path]) == stamps.numbers == [*Disk().stamp(path)]
        text_files.write(tmp_path, "a.h", "two")
        assert stamps_of([path])[3] != stamps.numbers[3] < -1

    def test_a_file_that_is_gone_or_cannot_be_read_is_not_known_by_its_content(self, tmp_path, monkeypatch):
        path = text_files.write(tmp_path, "a.h", "one")
        monkeypatch.setattr(images, "content", lambda *arguments: images.UNREADABLE)
        stamps = FlatStamps([path], stamps_of([path]))
        assert stamps.ahead() == [] and stamps.is_racy(time.time_ns())
        assert FlatStamps(["/none"], stamps_of(["/none"])).ahead() == []

    def test_a_name_in_a_folder_is_noticed(self, tmp_path):
        before = stamps_of([str(tmp_path)])
        text_files.write(tmp_path, "a.h", "")
        assert stamps_of([str(tmp_path)])[3] != before[3] < -1


def test_ops_with_such_files_are_remembered_and_one_warning_says_so(tmp_path, monkeypatch, caplog):
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() - TEN_YEARS_NS)
    monkeypatch.setattr(remembered_lookups, "_code", {})  # which was stamped by the other clock
    cls = sample_ops.plain_op(tmp_path / "op")
    assert [cls().load().value() for _ in range(2)] == [1, 1]
    in_full, find = [], Finder.in_store
    monkeypatch.setattr(Finder, "in_store", lambda finder: in_full.append(finder) or find(finder))
    builder = cls()
    assert builder.load() is builder.load() and builder.load().value() == 1 and in_full == []
    (text,) = [record.getMessage() for record in caplog.records if "in the future" in record.getMessage()]
    assert re.search(r"\S+ and \d+ more are in the future: .* contents are compared .* `touch` sets it", text)
