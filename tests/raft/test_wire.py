"""Messages survive the trip, and nothing but a whole message is ever taken for one."""

from __future__ import annotations

import random
import struct
import zlib
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsched.codec import cbor
from fedsched.raft import messages as m
from fedsched.raft import wire
from fedsched.raft.entry import Entry, EntryKind, pack
from fedsched.raft.membership import Config, ServerInfo
from fedsched.raft.wire import BadMessage, Limits, decode_message, encode_message

CLUSTER = "c-1"

numbers = st.integers(0, wire.INTEGER_MAX)
texts = st.text(st.characters(codec="utf-8"), max_size=40)
digests = st.binary(max_size=wire.DIGEST_BYTES_MAX)


@st.composite
def configs(draw: st.DrawFn) -> Config:
    ids = sorted(draw(st.sets(texts, min_size=1, max_size=6)))
    voters, outgoing, learners = (frozenset(draw(st.sets(st.sampled_from(ids)))) for _ in range(3))
    learners -= voters | outgoing
    members = sorted(voters | outgoing | learners)
    return Config(voters, outgoing, learners, tuple(ServerInfo(id, draw(texts), draw(texts)) for id in members))


metas = st.builds(m.SnapshotMeta, texts, numbers, numbers, configs(), numbers, numbers, digests)


@st.composite
def appends(draw: st.DrawFn) -> m.Append:
    prev_index, prev_term = draw(st.integers(0, 2**40)), draw(st.integers(0, 100))
    steps = draw(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(EntryKind), st.binary(max_size=60)), max_size=6))
    entries, term = [], prev_term
    for offset, (rise, kind, payload) in enumerate(steps):
        term += rise
        entries.append(Entry(prev_index + 1 + offset, term, kind, payload))
    return an_append(prev_index, prev_term, tuple(entries), term=term + draw(st.integers(0, 3)))


def an_append(prev_index: int, prev_term: int, entries: tuple[Entry, ...], term: int = 9) -> m.Append:
    return m.Append(
        sender="a", to="b", term=term, prev_index=prev_index, prev_term=prev_term, commit=prev_index, entries=entries
    )


def built(cls: type[m.Message], **fields: st.SearchStrategy[object]) -> st.SearchStrategy[m.Message]:
    return st.builds(cls, sender=texts, to=texts, term=numbers, **fields)


any_message: st.SearchStrategy[m.Message] = st.one_of(
    built(m.PreVote, last_index=numbers, last_term=numbers),
    built(m.PreVoteReply, granted=st.booleans()),
    built(m.Vote, last_index=numbers, last_term=numbers, force=st.booleans()),
    built(m.VoteReply, granted=st.booleans()),
    appends(),
    built(m.AppendReply, ok=st.booleans(), index=numbers, hint_index=numbers, hint_term=numbers),
    built(m.Heartbeat, commit=numbers, round=numbers),
    built(m.HeartbeatReply, round=numbers, digest_index=numbers, digest=digests),
    built(m.SnapshotOffer, meta=metas),
    built(m.SnapshotDone, index=numbers, ok=st.booleans()),
    built(m.TimeoutNow),
    built(m.ReadIndex, ctx=numbers),
    built(m.ReadIndexReply, ctx=numbers, index=numbers),
    built(m.Diverged, index=numbers, expected=digests),
)


@given(any_message, texts)
def test_every_message_comes_back_as_it_was_sent(message: m.Message, cluster_id: str) -> None:
    assert decode_message(encode_message(message, cluster_id)) == (cluster_id, message)


def test_every_message_class_has_a_wire_form() -> None:
    declared = {
        cls for cls in vars(m).values() if isinstance(cls, type) and issubclass(cls, m.Message) and cls is not m.Message
    }

    assert declared == {kind.cls for kind in wire._KINDS}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unknown(m.Message):
    pass


def test_a_message_without_a_number_is_a_bug_of_the_sender() -> None:
    with pytest.raises(TypeError, match="_Unknown has no wire form"):
        encode_message(_Unknown(sender="a", to="b", term=1), CLUSTER)


def test_records_travel_as_the_very_bytes_of_the_log() -> None:
    entry = Entry(8, 2, EntryKind.COMMAND, b"payload")

    assert encode_message(an_append(7, 2, (entry,)), CLUSTER).endswith(pack(entry))


def test_a_memoryview_is_decoded_like_bytes() -> None:
    message = an_append(7, 2, (Entry(8, 2, EntryKind.COMMAND, b"payload"),))

    assert decode_message(memoryview(encode_message(message, CLUSTER))) == (CLUSTER, message)


# --- damage ----------------------------------------------------------------------------------------------------------


def an_example() -> bytes:
    entries = (Entry(8, 2, EntryKind.COMMAND, b"first"), Entry(9, 3, EntryKind.COMMAND, b"second"))
    return encode_message(an_append(7, 2, entries), CLUSTER)


def test_a_flipped_bit_anywhere_is_found() -> None:
    data = an_example()
    for at in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[at] ^= 1 << bit
            with pytest.raises(BadMessage):
                decode_message(bytes(damaged))


def test_a_message_cut_short_or_made_longer_is_found() -> None:
    data = an_example()
    for length in range(len(data)):
        with pytest.raises(BadMessage):
            decode_message(data[:length])
    with pytest.raises(BadMessage):
        decode_message(data + b"\0")


@given(st.binary(max_size=200))
def test_random_bytes_raise_the_declared_error_only(data: bytes) -> None:
    with pytest.raises(BadMessage):
        decode_message(data)


def framed(header: object, records: bytes = b"") -> bytes:
    """A frame with a right CRC around whatever header: what a hostile but careful sender can make."""
    raw = cbor.dumps(header)
    return struct.pack(">II", len(raw), zlib.crc32(raw)) + raw + records


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**64), 2**64 - 1) | st.binary(max_size=8) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=20,
)


@given(plain, st.binary(max_size=40))
def test_any_header_with_a_right_checksum_is_a_message_or_refused(header: object, records: bytes) -> None:
    with pytest.raises(BadMessage):
        decode_message(framed(header, records))


@given(st.integers(0, 16), st.lists(plain, max_size=6), st.binary(max_size=40))
def test_any_fields_of_any_kind_are_a_message_or_refused(kind: int, fields: list[object], records: bytes) -> None:
    data = framed([wire.VERSION, CLUSTER, kind, "a", "b", 1, *fields], records)
    try:
        cluster_id, message = decode_message(data)
    except BadMessage:
        return
    assert encode_message(message, cluster_id) == data


def test_mutated_real_messages_raise_the_declared_error_only() -> None:
    chance = random.Random(7)
    examples = [framed(cbor.loads(_header_of(data)), _records_of(data)) for data in [an_example(), _an_offer()]]
    for _ in range(3000):
        header = bytearray(_header_of(chance.choice(examples)))
        for _ in range(chance.randint(1, 4)):
            header[chance.randrange(len(header))] = chance.randrange(256)
        data = struct.pack(">II", len(header), zlib.crc32(header)) + header
        try:
            decode_message(data)
        except BadMessage:
            continue


def _an_offer() -> bytes:
    config = Config(
        frozenset({"a", "b"}), frozenset({"a"}), frozenset({"c"}), tuple(ServerInfo(id, id, "h:1") for id in "abc")
    )
    meta = m.SnapshotMeta("s-1", 10, 2, config, 4, 1000, b"d" * 32)
    return encode_message(m.SnapshotOffer(sender="a", to="b", term=3, meta=meta), CLUSTER)


def _header_of(data: bytes) -> bytes:
    (length,) = struct.unpack_from(">I", data)
    return data[8 : 8 + length]


def _records_of(data: bytes) -> bytes:
    return data[8 + len(_header_of(data)) :]


# --- each refusal says what is wrong ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ({"a": 1}, "not an array"),
        ([], "protocol version None"),
        ([2, CLUSTER, 7, "a", "b", 1, 1, 1], "protocol version 2"),
        ([1, CLUSTER], "protocol version 1"),
        ([1, CLUSTER, 99, "a", "b", 1], "kind 99"),
        ([1, CLUSTER, "7", "a", "b", 1], "kind '7'"),
        ([1, 5, 11, "a", "b", 1], "cluster id"),
        ([1, CLUSTER, 11, b"a", "b", 1], "sender"),
        ([1, CLUSTER, 11, "a", "b" * 256, 1], "to"),
        ([1, CLUSTER, 11, "a", "b", -1], "term"),
        ([1, CLUSTER, 11, "a", "b", True], "term"),
        ([1, CLUSTER, 11, "a", "b", 2**63], "term"),
        ([1, CLUSTER, 11, "a", "b", 1, 1], "TimeoutNow has 0 fields"),
        ([1, CLUSTER, 7, "a", "b", 1, 1], "Heartbeat has 2 fields"),
        ([1, CLUSTER, 4, "a", "b", 1, 1], "granted"),
        ([1, CLUSTER, 14, "a", "b", 1, 1, b"x" * 65], "expected"),
        ([1, CLUSTER, 9, "a", "b", 1, [1, 2]], "meta"),
        ([1, CLUSTER, 9, "a", "b", 1, ["s", 1, 1, [], 1, 1, b""]], "no encoded config"),
        ([1, CLUSTER, 9, "a", "b", 1, ["s", 1, 1, b"\xff", 1, 1, b""]], "config: "),
    ],
)
def test_a_header_of_the_wrong_shape_is_refused_by_name(header: object, says: str) -> None:
    with pytest.raises(BadMessage, match=says):
        decode_message(framed(header))


def test_records_behind_a_message_that_has_none_are_refused() -> None:
    with pytest.raises(BadMessage, match="carries no records"):
        decode_message(framed([1, CLUSTER, 11, "a", "b", 1], b"x"))


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ((Entry(9, 2, EntryKind.COMMAND, b""),), "cannot stand at index 8"),
        ((Entry(8, 1, EntryKind.COMMAND, b""),), "between terms 2 and 9"),
        ((Entry(8, 10, EntryKind.COMMAND, b""),), "between terms 2 and 9"),
        ((Entry(8, 5, EntryKind.COMMAND, b""), Entry(9, 4, EntryKind.COMMAND, b"")), "between terms 5 and 9"),
    ],
)
def test_entries_that_cannot_follow_each_other_are_refused(entries: tuple[Entry, ...], says: str) -> None:
    with pytest.raises(BadMessage, match=says):
        decode_message(encode_message(an_append(7, 2, entries), CLUSTER))


def test_a_record_too_few_is_refused() -> None:
    with pytest.raises(BadMessage, match="2 records promised, 1"):
        decode_message(framed([1, CLUSTER, 5, "a", "b", 9, 7, 2, 7, 2], pack(Entry(8, 2, EntryKind.EMPTY, b""))))


def test_limits_hold_before_anything_is_decoded() -> None:
    data = an_example()

    with pytest.raises(BadMessage, match="the limit is 10"):
        decode_message(data, Limits(message_bytes_max=10))
    with pytest.raises(BadMessage, match="4 allowed"):
        decode_message(data, Limits(header_bytes_max=4))


@given(metas)
def test_a_snapshots_name_comes_back_from_its_bytes(meta: m.SnapshotMeta) -> None:
    assert wire.meta_from_bytes(wire.meta_to_bytes(meta)) == meta


def test_bytes_that_name_no_snapshot_are_refused() -> None:
    with pytest.raises(BadMessage, match="not CBOR"):
        wire.meta_from_bytes(b"\xff")
    with pytest.raises(BadMessage, match="does not name a snapshot"):
        wire.meta_from_bytes(cbor.dumps([1]))
