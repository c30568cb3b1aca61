"""Messages to bytes and back, and what hostile bytes can do: nothing."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsched.codec import cbor
from fedsched.gossip.messages import (
    Ack,
    Alive,
    Compare,
    Dead,
    Difference,
    Message,
    Nack,
    NameTaken,
    Ping,
    PingReq,
    PushPull,
    Row,
    Rows,
    State,
    Summary,
    Suspect,
    UserEvent,
)
from fedsched.gossip.wire import BadPacket, decode_packet, decode_stream, encode, size_bound
from tests.gossip.kit import alive

U32 = st.integers(0, 2**32 - 1)
U63 = st.integers(0, 2**63 - 1)
U64 = st.integers(0, 2**64 - 1)
NAMES = st.from_regex(r"[A-Za-z0-9.\-]{1,40}", fullmatch=True)
ADDRS = st.tuples(st.ip_addresses().map(str), st.integers(0, 65535))
BYTE = st.integers(0, 255)
ALIVE = st.builds(Alive, U32, NAMES, ADDRS, st.binary(max_size=512), st.tuples(*[BYTE] * 6))
EVENT = st.builds(UserEvent, U63, st.text(max_size=60), st.binary(max_size=200), st.booleans())
ROWS = st.lists(st.builds(Row, ALIVE, st.sampled_from(State)), max_size=4).map(tuple)
SMALL = st.one_of(
    st.builds(Ping, U32, NAMES, NAMES, ADDRS, U64),
    st.builds(PingReq, U32, NAMES, ADDRS, NAMES, ADDRS, st.integers(0, 10**6)),
    st.builds(Ack, U32, U64),
    st.builds(Nack, U32),
    st.builds(Suspect, U32, NAMES, NAMES),
    ALIVE,
    st.builds(Dead, U32, NAMES, NAMES),
    EVENT,
    st.builds(NameTaken, NAMES, ADDRS, st.text(max_size=16)),
)
LARGE = st.one_of(
    st.builds(PushPull, NAMES, st.booleans(), ROWS, U63, st.lists(EVENT, max_size=3).map(tuple)),
    st.builds(Compare, NAMES, U64, U63),
    st.builds(Summary, NAMES, st.binary(max_size=5).map(lambda b: b * 13)),
    st.builds(Difference, NAMES, ROWS, st.binary(max_size=5).map(lambda b: b * 8)),
    st.builds(Rows, NAMES, ROWS),
)


@given(st.lists(SMALL, max_size=6))
def test_packets_survive_the_way(messages: list[Message]) -> None:
    assert decode_packet(encode(messages)) == messages


@given(st.lists(st.one_of(SMALL, LARGE), max_size=4))
@settings(max_examples=50)
def test_streams_survive_the_way(messages: list[Message]) -> None:
    assert decode_stream(encode(messages)) == messages


@given(SMALL)
def test_the_size_bound_is_never_too_small(message: Message) -> None:
    assert len(encode([message])) - 1 <= size_bound(message)


@given(st.binary(max_size=300))
def test_random_bytes_are_a_packet_or_refused(data: bytes) -> None:
    for decode in (decode_packet, decode_stream):
        with suppress(BadPacket):
            decode(data)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(max_size=8) | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=7),
    max_leaves=10,
)


@given(st.lists(st.tuples(st.integers(0, 20), st.lists(VALUES, max_size=9)), max_size=3))
@settings(max_examples=80)
def test_random_values_under_real_numbers_are_messages_or_refused(items: list[tuple[int, list[object]]]) -> None:
    data = cbor.dumps([[number, *values] for number, values in items])

    for decode in (decode_packet, decode_stream):
        with suppress(BadPacket):
            decode(data)


def test_messages_and_fields_of_later_versions_are_passed_over() -> None:
    data = cbor.dumps([[99, "whatever"], [11, 7, "a later field"]])

    assert decode_packet(data) == [Nack(7)]


@pytest.mark.parametrize("name", ["", "a/b", "ü", "a b", "x" * 129])
def test_names_are_plain(name: str) -> None:
    with pytest.raises(BadPacket):
        decode_packet(cbor.dumps([[5, 1, name, "x"]]))


def test_a_ping_and_an_announcement_stay_small() -> None:
    ping = Ping(2**31, "server-1.global", "server-2.global", ("10.0.0.1", 4648), 2**63)

    assert len(encode([ping])) <= 62
    assert len(encode([alive("server-1.global", 1)])) <= 100
