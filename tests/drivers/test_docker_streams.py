"""Streams of an engine are taken apart the same way however they are cut, and nonsense is called that."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsched.drivers.docker.faults import EngineFault, Fault
from fedsched.drivers.docker.streams import (
    STDERR,
    STDOUT,
    Demultiplexer,
    FileLog,
    FramedLog,
    JsonLines,
    LogPiece,
    PlainLog,
    time_ns,
)
from tests.drivers.fake_engine import frame

SECOND = 1_000_000_000
T0 = "2026-01-01T00:00:00Z"
T0_NS = 1_767_225_600 * SECOND


def cut(data: bytes, places: list[int]) -> list[bytes]:
    marks = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[start:end] for start, end in itertools.pairwise(marks)]


def together(pieces: list[LogPiece]) -> list[LogPiece]:
    """Neighbours of the same output and time as one."""
    found: list[LogPiece] = []
    for piece in pieces:
        if found and found[-1][:2] == piece[:2]:
            found[-1] = found[-1]._replace(data=found[-1].data + piece.data)
        else:
            found.append(piece)
    return found


CUTS = st.lists(st.integers(0, 10_000), max_size=12)


@given(CUTS)
def test_lines_of_json_come_whole_however_they_are_cut(cuts: list[int]) -> None:
    lines = JsonLines()

    found = [one for part in cut(b'{"a":1}\n\r\n{"b":[2]}\n{"c":"\\n"}', cuts) for one in lines.feed(part)]

    assert found + lines.finish() == [{"a": 1}, {"b": [2]}, {"c": "\n"}]


@pytest.mark.parametrize("line", [b"nonsense\n", b"[1]\n", b'"text"\n', b"\xff\xfe\n", b'{"a":\n'])
def test_lines_that_are_no_objects_are_garbled(line: bytes) -> None:
    with pytest.raises(EngineFault) as caught:
        JsonLines().feed(line)
    assert caught.value.kind is Fault.GARBLED


def test_a_line_without_end_is_refused_before_it_fills_the_memory() -> None:
    lines = JsonLines(bytes_max=100)
    lines.feed(b"x" * 100)

    with pytest.raises(EngineFault) as caught:
        lines.feed(b"x")
    assert caught.value.kind is Fault.TOO_LARGE


FRAMES = st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=40)), max_size=10)


@given(FRAMES, CUTS)
def test_the_two_outputs_are_told_apart_however_they_are_cut(frames: list[tuple[int, bytes]], cuts: list[int]) -> None:
    data = b"".join(bytes([stream, 0, 0, 0]) + len(text).to_bytes(4, "big") + text for stream, text in frames)
    split = Demultiplexer()

    pieces = [piece for part in cut(data, cuts) for piece in split.feed(part)]

    for wanted in (STDOUT, STDERR):
        found = b"".join(piece.data for piece in pieces if piece.stream == wanted)
        assert found == b"".join(text for stream, text in frames if stream == wanted)
    assert split.is_between_frames


@pytest.mark.parametrize("head", [b"\x07\0\0\0\0\0\0\1", b"\1\0\0\1\0\0\0\1", b"HTTP/1.1 200"])
def test_bytes_that_are_no_frame_are_garbled(head: bytes) -> None:
    with pytest.raises(EngineFault, match="frame"):
        Demultiplexer().feed(head)


def test_a_frame_of_four_gigabytes_is_passed_on_and_not_kept() -> None:
    split = Demultiplexer()
    split.feed(b"\1\0\0\0\xff\xff\xff\xff")

    assert [piece.data for piece in split.feed(b"x" * 1000)] == [b"x" * 1000]


@given(CUTS)
def test_log_entries_have_their_times_however_they_are_cut(cuts: list[int]) -> None:
    data = (
        frame(1, T0, b"one\n")
        + frame(2, "2026-01-01T00:00:00.000000005Z", b"two\n")
        + frame(1, "2026-01-01T01:00:01.5+01:00", b"thr")
        + frame(1, "2026-01-01T00:00:02-00:00", b"\n")
    )
    log = FramedLog()

    found = together([piece for part in cut(data, cuts) for piece in log.feed(part)])

    assert found == [
        (1, T0_NS, b"one\n"),
        (2, T0_NS + 5, b"two\n"),
        (1, T0_NS + SECOND + SECOND // 2, b"thr"),
        (1, T0_NS + 2 * SECOND, b"\n"),
    ]


@pytest.mark.parametrize("text", [b"no time at all, but long enough to have one", b"2026-99-01T00:00:00Z x"])
def test_an_entry_without_a_time_is_garbled(text: bytes) -> None:
    data = b"\1\0\0\0" + len(text).to_bytes(4, "big") + text
    with pytest.raises(EngineFault) as caught:
        FramedLog().feed(data + data)
    assert caught.value.kind is Fault.GARBLED


def test_an_entry_too_short_for_a_time_is_noticed_at_the_next() -> None:
    with pytest.raises(EngineFault, match="without a time"):
        FramedLog().feed(b"\1\0\0\0\0\0\0\1x" + frame(1, T0, b"y"))


@given(CUTS)
def test_lines_of_a_terminal_have_their_times_however_they_are_cut(cuts: list[int]) -> None:
    long = b"x" * 16384
    data = b"%s one\r\n%s %s%s %s\r\n%s three" % (T0.encode(), T0.encode(), long, T0.encode(), b"rest", T0.encode())
    log = PlainLog()

    found = b"".join(piece.data for part in cut(data, cuts) for piece in log.feed(part))

    assert found == b"one\r\n" + long + b"rest\r\nthree"


def test_a_line_of_a_terminal_without_a_time_is_garbled() -> None:
    with pytest.raises(EngineFault, match="without a time"):
        PlainLog().feed(b"just text\n")


def test_a_long_line_without_a_time_inside_is_one_line() -> None:
    found = PlainLog().feed(T0.encode() + b" " + b"y" * 20000 + b"\n")
    assert b"".join(piece.data for piece in found) == b"y" * 20000 + b"\n"


@given(CUTS)
def test_podmans_file_is_read_however_it_is_cut(cuts: list[int]) -> None:
    data = b"2026-01-01T00:00:00.25+00:00 stdout P one\n2026-01-01T00:00:00Z stdout F \n"
    data += b"2026-01-01T00:00:01Z stderr F a b\n"
    log = FileLog()

    found = [piece for part in cut(data + b"2026-01-01T00", cuts) for piece in log.feed(part)]

    assert [piece.data for piece in found] == [b"one", b"\n", b"a b\n"]
    assert [piece.stream for piece in found] == [STDOUT, STDOUT, STDERR]
    assert found[0].at_ns == T0_NS + SECOND // 4
    assert log.taken == len(data)


@pytest.mark.parametrize("line", [b"x\n", b"2026-01-01T00:00:00Z other F x\n", b"2026-01-01T00:00:00Z stdout Q x\n"])
def test_lines_of_another_kind_are_garbled(line: bytes) -> None:
    with pytest.raises(EngineFault, match="another kind"):
        FileLog().feed(line)


def test_a_file_without_line_ends_is_refused() -> None:
    with pytest.raises(EngineFault, match="more than"):
        FileLog().feed(b"x" * (2 << 20))


@pytest.mark.parametrize(
    ("text", "ns"),
    [(T0, T0_NS), ("0001-01-01T00:00:00Z", 0), ("", 0), ("soon", 0), ("2026-77-01T00:00:00Z", 0)],
)
def test_moments_are_read_and_never_is_zero(text: str, ns: int) -> None:
    assert time_ns(text) == ns
