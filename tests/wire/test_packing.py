"""Frames behind their lengths."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsched.wire.errors import ProtocolViolation
from fedsched.wire.packing import batches, pack, unpack

PARTS = st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=60)), max_size=20)


@given(PARTS, st.integers(0, 60))
def test_whole_frames_come_back_and_a_cut_one_waits(parts: list[tuple[bytes, bytes]], cut: int) -> None:
    frames = [head + payload for head, payload in parts]
    data = pack(parts)

    assert unpack(data, 1000) == (frames, len(data))
    some, size = unpack(data[: max(0, len(data) - cut)], 1000)
    assert frames[: len(some)] == some
    assert pack([(frame, b"") for frame in some]) == data[:size]


@given(PARTS, st.integers(1, 200))
def test_batches_keep_order_and_stay_under_their_limit(parts: list[tuple[bytes, bytes]], bytes_max: int) -> None:
    pieces = batches(parts, bytes_max)

    assert b"".join(pieces) == pack(parts)
    for piece in pieces:
        assert len(piece) <= bytes_max or len(unpack(piece, 1000)[0]) == 1


def test_a_frame_over_the_limit_is_refused_only_once_it_is_first() -> None:
    data = pack([(b"ok", b""), (b"x" * 50, b"")])

    assert unpack(data, 10) == ([b"ok"], 6)
    with pytest.raises(ProtocolViolation, match="frame of 50 bytes, at most 10"):
        unpack(data[6:], 10)
