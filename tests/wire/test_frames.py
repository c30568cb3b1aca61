"""Frames survive the trip, may grow at the end, and everything else is refused with a reason."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsched.codec import dumps
from fedsched.wire import frames
from fedsched.wire.errors import Failure
from fedsched.wire.frames import Frame, FrameError

NUMBER = st.integers(0, 2**40)
WORD = st.text(st.characters(codec="utf-8"), max_size=40)
FRAMES = st.one_of(
    st.builds(frames.Hello, NUMBER, NUMBER, NUMBER, NUMBER, st.binary(max_size=50)),
    st.builds(frames.Call, NUMBER, WORD, NUMBER, NUMBER, NUMBER, st.binary(max_size=50)),
    st.builds(frames.Reply, NUMBER, st.binary(max_size=50)),
    st.builds(frames.Error, NUMBER, WORD, WORD, WORD, NUMBER, st.binary(max_size=50)),
    st.builds(frames.Data, NUMBER, st.binary(max_size=50)),
    st.builds(frames.Credit, NUMBER, NUMBER),
    st.builds(frames.End, NUMBER),
    st.builds(frames.Cancel, NUMBER),
    st.builds(frames.Ping, NUMBER),
    st.builds(frames.Pong, NUMBER),
    st.builds(frames.Goaway, WORD, WORD),
)


def framed(header: object, payload: bytes = b"") -> bytes:
    data = dumps(header)
    return len(data).to_bytes(2, "big") + data + payload


@given(FRAMES)
def test_a_frame_arrives_as_it_was_sent(frame: Frame) -> None:
    assert frames.decode(b"".join(frames.encode(frame))) == frame


@given(st.binary(max_size=200))
def test_random_bytes_raise_only_the_declared_error(data: bytes) -> None:
    with suppress(FrameError):
        frames.decode(data)


@given(FRAMES, st.data())
def test_mutated_frames_raise_only_the_declared_error(frame: Frame, data: st.DataObject) -> None:
    message = bytearray(b"".join(frames.encode(frame)))
    for _ in range(data.draw(st.integers(1, 3))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    with suppress(FrameError):
        frames.decode(bytes(message))


def test_header_fields_of_a_newer_version_are_ignored() -> None:
    assert frames.decode(framed([6, 9, "new", {"a": 1}], b"tail")) == frames.End(9, b"tail")


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"", "0 bytes"),
        (b"\x00\x00", "header alone"),
        (b"\x00\x09abc", "header alone"),
        (b"\x00\x01\xff", "frame header"),
        (framed({}), "not a list"),
        (framed([]), "not a list"),
        (framed([99]), "unknown kind '99'"),
        (framed([-1]), "unknown kind"),
        (framed([True]), "unknown kind"),
        (framed(["call"]), "unknown kind"),
        (framed([2]), "0 of 1 fields"),
        (framed([2, -1]), "int where int"),
        (framed([2, "1"]), "str where int"),
        (framed([2, True]), "bool where int"),
        (framed([10, 1, "x"]), "int where str"),
        (framed([2, 1, "x" * 4000]), "at most"),
    ],
)
def test_what_is_not_a_frame_is_refused_with_a_reason(message: bytes, why: str) -> None:
    with pytest.raises(FrameError, match=why):
        frames.decode(message)


def test_long_texts_of_errors_are_cut_between_characters() -> None:
    frame = frames.error_frame(3, Failure("c" * 100, "ü" * 2000, "h" * 1200, 400, b"d"))

    assert frames.decode(b"".join(frames.encode(frame))) == frame
    assert len(frame.code) == 64
    assert frame.message == "ü" * 598 + "..."
    assert frame.hint == "h" * 1200


def test_a_text_that_is_not_valid_unicode_still_travels() -> None:
    assert frames.cut_text("bad \ud800 text") == "bad ? text"


@pytest.mark.parametrize("number", [0, 1, 23, 24, 255, 256, 65_535, 65_536, (1 << 32) - 1, 1 << 32, 1 << 50])
def test_the_short_way_for_items_writes_and_reads_what_the_long_way_would(number: int) -> None:
    head, payload = frames.encode(frames.Data(number, b"item"))
    header = dumps([4, number])
    assert (head, payload) == (len(header).to_bytes(2, "big") + header, b"item")
    assert frames.decode(head + payload) == frames.Data(number, b"item")
