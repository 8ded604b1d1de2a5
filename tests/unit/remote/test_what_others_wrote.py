"""What others have written into a remote is shown once, and in printable characters."""

from __future__ import annotations

from opforge.jits import features
from opforge.remote.accepted_statements import MAX_REASONS, counted


def test_255_statements_with_one_fault_are_one_reason():
    assert counted(["it has no signature"] * 255) == "it has no signature (255 times)"


def test_of_many_faults_the_most_frequent_are_named_and_the_others_counted():
    reasons = [f"fault {number}" for number in range(MAX_REASONS + 9) for _ in range(2 if number == 7 else 1)]
    shown = counted(reasons)
    assert shown.startswith("fault 7 (2 times); ") and shown.endswith("; and 9 other reasons")


def test_the_features_of_a_page_are_shown_without_control_characters():
    shown = features.lacking(["\x1b[2Jevil\r\n", "\x00"])
    assert "evil" in shown and shown.isprintable()
