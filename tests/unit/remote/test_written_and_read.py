"""What is written can be read: each writer of what travels, or of whom to trust, refuses what its reader would."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opforge.builders.lookup import tuning_results as tuned_records
from opforge.errors import OpforgeError
from opforge.remote import statements, topics, withdrawal_lists
from opforge.remote.signatures import signing, trust_file
from opforge.remote.statements import Signed, Statement
from opforge.remote.topics import ListedStatement, Listing
from opforge.remote.withdrawal_lists import LOADING, Withdrawal, Withdrawals

ODD = ["", "a" * 500, "a\nb", "\x00", "\ud800", "op:x", '"],"signatures":[']
TEXT = st.one_of(st.text(max_size=30), st.sampled_from(ODD))
NUMBER = st.one_of(st.integers(), st.sampled_from([0, 1 << 59, 1 << 62, 1 << 63, 10**30, -1]))
SIGNATURE = signing.Named("ci", bytes(64))
KEY = signing.Named("ci", bytes(32))
few = settings(max_examples=150, deadline=None)


def check(write, read):
    """Fails unless the reader takes what the writer returns for what was written, or the writer refuses it."""
    try:
        data, value = write()
    except (ValueError, OpforgeError, OverflowError):  # with words, as each writer's own tests show
        return
    assert read(data) == value


@few
@given(key=TEXT, name=TEXT, reason=TEXT, date=st.integers(0, 1 << 40), number=NUMBER)
def test_lists_of_withdrawals(key, name, reason, date, number):
    listed = Withdrawals(key, float(date), {name: Withdrawal(LOADING, reason, float(date))}, number=number)
    check(
        lambda: (withdrawal_lists.to_bytes(listed), listed._replace(number=max(0, number))),
        lambda data: withdrawal_lists.parse(data)._replace(
            digest="", withdrawn={**withdrawal_lists.parse(data).withdrawn}
        ),
    )


@few
@given(kind=TEXT, topic=TEXT, fact=TEXT, count=st.integers(0, 12), trailing=TEXT)
def test_topics_that_hold_statements(kind, topic, fact, count, trailing):
    def write():
        data = Statement(kind, topic, (), {"x": fact}).data() + trailing.encode()
        items = [Signed(data, (SIGNATURE,) * count)]
        return topics.frame(items), items

    check(write, topics.read_frame)


@few
@given(kind=TEXT, topic=TEXT, label=TEXT, digest=TEXT, sequence=NUMBER)
def test_topics_that_name_statements(kind, topic, label, digest, sequence):
    listing = Listing(kind, topic, sequence, {label: ListedStatement(digest)})
    check(lambda: (listing.data(), listing), topics.any_listing)


@few
@given(op=TEXT, size=NUMBER, value=NUMBER, cores=NUMBER, name=TEXT)
def test_tuning_results(tmp_path_factory, op, size, value, cores, name):
    root = str(tmp_path_factory.mktemp("store"))
    row = {"what": "", "dtype": "any", "size": size, "config": {name: value}, "ratio": 0.5, "low": 0.5, "high": 0.5}
    row |= {"rounds": 1, "why": "", "others": []}
    result = {"format": 1, "op": op, "kernel": "0" * 32, "target": "cpu:x", "cores": cores, "rows": [row]}

    def write():
        with open(tuned_records.write(root, result), "rb") as file:
            return file.read(), result

    check(write, tuned_records.parse)


@few
@given(scope=TEXT, until=TEXT, days=st.floats())
def test_the_trust_file(tmp_path_factory, scope, until, days):
    path = str(tmp_path_factory.mktemp("config") / "trust.json")
    content = trust_file.Trust(path, (trust_file.TrustedKey(KEY, (scope,), until),), days, True)

    def write():
        trust_file.write(content)
        with open(path, "rb") as file:
            return file.read(), content

    check(write, lambda data: trust_file.parse(path, data))


def test_a_withdrawal_of_a_name_that_no_list_can_hold_is_refused():
    """Such a list would be signed, and then stop all who read it."""
    listed = Withdrawals("ci", 1.7e9, {"op:" + "x" * 400: Withdrawal(LOADING)})
    with pytest.raises(ValueError, match="the list of withdrawals is damaged"):
        withdrawal_lists.to_bytes(listed)


def test_a_statement_of_its_own_file():
    signed = Signed(Statement("op", "x", (), {}).data(), (SIGNATURE,))
    assert statements.read_file(signed.file(), signed.digest) == signed
