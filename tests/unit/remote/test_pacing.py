"""The socket of a connection to a store: what an answer may take of time and of bytes, and when it is closed."""

from __future__ import annotations

import socket
import time

import pytest

from opforge.remote.stores.web import pacing
from opforge.remote.stores.web.pacing import HEADER_BYTES, EndlessAnswerError, PacedSocket
from opforge.remote.stores.web.timing import Timing

SOON = Timing(idle=0.05, grace=0.05, bytes_per_second=1000)


@pytest.fixture
def pair():
    """A paced socket's own socket, and the other end of its connection."""
    own, other = socket.socketpair()
    with own, other:
        yield own, other


class TestClosed:
    """http.client closes a connection while its answer is still read."""

    def test_at_once_without_a_reader(self, pair):
        own, other = pair
        PacedSocket(own, Timing()).close()
        assert other.recv(1) == b""

    def test_once_its_last_reader_is(self, pair):
        own, other = pair
        paced = PacedSocket(own, Timing())
        first, second = paced.makefile("rb"), paced.makefile("rb")
        paced.close()
        first.close()
        first.close()  # a second time counts for nothing
        other.sendall(b"the rest")
        assert second.read(8) == b"the rest"
        assert own.fileno() >= 0
        second.close()
        assert own.fileno() == -1
        assert other.recv(1) == b""

    def test_a_reader_ends_and_the_connection_is_kept(self, pair):
        own, _other = pair
        paced = PacedSocket(own, Timing())
        paced.makefile("rb").close()
        assert own.fileno() >= 0
        paced.close()
        assert own.fileno() == -1

    def test_with_the_object_that_nobody_has_any_more(self, pair):
        own, _other = pair
        paced = PacedSocket(own, Timing())
        del paced
        assert own.fileno() == -1


class TestBytes:
    """An answer has headers of HEADER_BYTES, and what it said that its body has."""

    def _read(self, paced, other, allowed, sent):
        paced.begin()
        if allowed is not None:
            paced.allow(allowed)
        read, buffer = 0, bytearray(1 << 16)
        while sent:
            part = min(sent, 1 << 16)
            other.sendall(bytes(part))
            sent -= part
            while part:
                count = paced.recv_into(buffer)
                part, read = part - count, read + count
        return read

    @pytest.mark.parametrize(
        ("allowed", "most"),
        [(None, HEADER_BYTES), (0, HEADER_BYTES), (100_000, HEADER_BYTES + 200_000)],
    )
    def test_so_many_are_read_and_one_more_ends_the_answer(self, pair, allowed, most):
        own, other = pair
        paced = PacedSocket(own, Timing())
        assert self._read(paced, other, allowed, most) == most
        with pytest.raises(EndlessAnswerError):
            self._read(paced, other, allowed, most + 1)

    def test_the_next_answer_begins_at_zero(self, pair):
        own, other = pair
        paced, buffer = PacedSocket(own, Timing()), bytearray(1 << 16)
        for _ in range(3):
            paced.begin()
            for _ in range(3):
                other.sendall(bytes(1 << 16))
                left = 1 << 16
                while left:
                    left -= paced.recv_into(buffer)

    def test_what_was_read_of_the_headers_is_not_taken_from_the_body(self, pair):
        own, other = pair
        paced = PacedSocket(own, Timing())
        other.sendall(b"12345")
        assert paced.recv_into(bytearray(5)) == 5
        paced.allow(10)
        assert paced._allowed == 5 + HEADER_BYTES + 20


class TestTime:
    def test_a_server_that_sends_nothing(self, pair):
        with pytest.raises(TimeoutError, match=r"^it sent only 0 bytes in the time that is allowed$"):
            PacedSocket(pair[0], SOON._replace(idle=60)).recv_into(bytearray(1))

    def test_one_that_pauses_for_longer_than_it_may_between_two_bytes(self, pair):
        with pytest.raises(TimeoutError, match=r"^timed out$"):
            PacedSocket(pair[0], SOON._replace(grace=60)).recv_into(bytearray(1))

    def test_all_tries_of_a_request_end_at_one_time(self, pair):
        paced = PacedSocket(pair[0], Timing())
        paced.begin(time.monotonic())
        with pytest.raises(TimeoutError, match=r"^it sent only 0 bytes in the time that is allowed$"):
            paced.recv_into(bytearray(1))

    @pytest.mark.parametrize(("received", "expected"), [(0, 5), (10_000, 15), (10**6, 40)])
    def test_what_arrives_adds_to_it(self, monkeypatch, received, expected):
        class Noted:
            def settimeout(self, seconds):
                self.seconds = seconds

            def recv_into(self, _buffer):
                return 1

            def close(self):
                """Closes nothing."""

        monkeypatch.setattr(pacing.time, "monotonic", lambda: 100.0)
        noted = Noted()
        paced = PacedSocket(noted, Timing(idle=40, grace=5, bytes_per_second=1000))
        paced.allow(10**6)
        paced._received = received
        paced.recv_into(bytearray(1))
        assert noted.seconds == expected


def test_a_long_request_is_sent_whole_in_parts_that_have_a_time_each(pair, monkeypatch):
    own, other = pair
    data = bytes(range(256)) * 600
    other.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    monkeypatch.setattr(pacing, "QUICK_ACK", None)  # this socket is none of TCP
    paced = PacedSocket(own, Timing())
    paced._deadline = 0
    paced.sendall(data)
    assert paced._deadline > time.monotonic()  # the answer's time begins with the end of the request
    got = b""
    while len(got) < len(data):
        got += other.recv(1 << 20)
    assert got == data
