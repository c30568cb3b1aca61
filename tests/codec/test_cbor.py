"""Plain values survive the trip; everything else is refused with the one declared error."""

from __future__ import annotations

import math
import struct
import tracemalloc
from contextlib import suppress

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsched.codec import STORED_LIMITS, CodecError, Limits, dumps, dumps_sorted, dumps_stored, loads

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8"))
    | st.binary(max_size=300),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=8) | st.binary(max_size=8), inner),
    max_leaves=40,
)


@given(PLAIN)
def test_what_was_written_is_what_is_read(value: object) -> None:
    assert loads(dumps(value)) == value
    assert loads(bytearray(dumps(value))) == value
    assert loads(memoryview(dumps_stored(value))) == value


@given(st.dictionaries(st.text(max_size=8), st.integers()))
def test_sorted_bytes_do_not_show_how_a_map_was_filled(value: dict[str, int]) -> None:
    value = {key: number & 0xFFFF for key, number in value.items()}
    other = dict(reversed(value.items()))

    assert dumps_sorted(value) == dumps_sorted(other)


@given(st.binary(max_size=400), st.integers(1, 64))
def test_random_bytes_raise_only_the_declared_error(data: bytes, depth_max: int) -> None:
    with suppress(CodecError):
        loads(data, Limits(depth_max=depth_max))


@given(PLAIN, st.data())
def test_mutated_bytes_raise_only_the_declared_error(value: object, data: st.DataObject) -> None:
    encoded = bytearray(dumps(value))
    for _ in range(data.draw(st.integers(1, 4))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    with suppress(CodecError):
        loads(encoded)


def tag_head(tag: int) -> bytes:
    if tag < 24:
        return bytes([0xC0 | tag])
    if tag < 256:
        return b"\xd8" + bytes([tag])
    if tag < 65536:
        return b"\xd9" + struct.pack(">H", tag)
    return b"\xdb" + struct.pack(">Q", tag)


@pytest.mark.parametrize("padding", [b"", b"x" * 5000], ids=["short", "long"])
def test_every_tag_is_refused_known_to_the_library_or_not(padding: bytes) -> None:
    for tag in [*range(300), 1004, 43000, 55799, 2**32, 2**64 - 1]:
        for inner in (b"\x01", b"\x41a", b"\x61a", b"\x80", b"\xa0"):
            with pytest.raises(CodecError, match="tagged"):
                loads(b"\x82" + cbor2.dumps(padding) + tag_head(tag) + inner)


def test_the_decoder_itself_refuses_tags_should_the_scan_ever_miss_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedsched.codec.cbor._check_heads", lambda data, nodes_max: None)

    for tag in [*range(300), 55799, 2**64 - 1]:
        with pytest.raises(CodecError):
            loads(tag_head(tag) + b"\x80")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "premature"),
        (b"\xf7", "undefined"),
        (b"\xe0", "simple"),
        (b"\xf8\x20", "simple"),
        (b"\x5f\x41a\xff", "indefinite"),
        (b"\x7f\x61a\xff", "indefinite"),
        (b"\x9f\xff", "indefinite"),
        (b"\xbf\xff", "indefinite"),
        (b"\xff", "break"),
        (b"\x1c", "unknown"),
        (b"\x01\x02", "1 bytes left over"),
        (b"\xa2\x61a\x01\x61a\x02", "Duplicate"),
        (b"\xa1\x01\x02", "map key"),
        (b"\xa1\x80\x02", "map key"),
        (b"\x61\xff", "text"),
        (b"\x9b\x7f\xff\xff\xff\xff\xff\xff\xff", "premature"),
        (b"\xbb\x7f\xff\xff\xff\xff\xff\xff\xff", "premature"),
        (b"\x5b\x7f\xff\xff\xff\xff\xff\xff\xff", "premature"),
        (b"\x7a\xff\xff\xff\xff", "premature"),
    ],
)
def test_bytes_that_are_no_plain_value_are_refused_with_a_reason(data: bytes, why: str) -> None:
    with pytest.raises(CodecError, match=why):
        loads(data)


def test_refused_bytes_inside_strings_do_no_harm() -> None:
    hostile_looking = bytes(range(256))

    assert loads(dumps([hostile_looking, "größe \x7f", hostile_looking * 40])) == [
        hostile_looking,
        "größe \x7f",
        hostile_looking * 40,
    ]


def test_nesting_is_cut_exactly_at_the_limit() -> None:
    assert loads(b"\x81" * 32 + b"\x00")
    with pytest.raises(CodecError, match="nesting"):
        loads(b"\x81" * 33 + b"\x00")


def test_size_is_cut_exactly_at_the_limit() -> None:
    data = dumps(b"x" * 10)

    assert loads(data, Limits(bytes_max=len(data)))
    with pytest.raises(CodecError, match="at most 10"):
        loads(data, Limits(bytes_max=10))


@pytest.mark.parametrize("count", [10, 6000])
def test_the_number_of_values_is_cut_exactly_at_the_limit(count: int) -> None:
    data = dumps([0] * count)

    assert len(loads(data, Limits(nodes_max=count + 1))) == count
    with pytest.raises(CodecError, match=f"more than {count} values"):
        loads(data, Limits(nodes_max=count))


def test_a_megabyte_of_empty_containers_costs_next_to_nothing_to_refuse() -> None:
    bomb = b"\x9a\x00\x0f\xff\xfb" + b"\x80" * (1024 * 1024 - 5)
    tracemalloc.start()

    with pytest.raises(CodecError, match="more than"):
        loads(bomb)

    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1024 * 1024


def cyclic() -> list[object]:
    value: list[object] = []
    value.append(value)
    return value


@pytest.mark.parametrize("value", [{1, 2}, 2**64, -(2**64) - 1, "\ud800", object(), cyclic(), 1j])
def test_values_that_are_not_plain_are_not_written(value: object) -> None:
    with pytest.raises(CodecError):
        dumps(value)
    with pytest.raises(CodecError):
        dumps(["x" * 5000, value])


def test_what_is_stored_can_always_be_read() -> None:
    deep: object = 0
    for _ in range(STORED_LIMITS.depth_max):
        deep = [deep]

    assert loads(dumps_stored(deep), STORED_LIMITS) == deep
    with pytest.raises(CodecError, match="nesting"):
        dumps_stored([deep])
    with pytest.raises(CodecError, match="map key"):
        dumps_stored({1: 2})


def test_floats_keep_their_oddities() -> None:
    assert math.isnan(loads(dumps(math.nan)))
    assert loads(dumps([math.inf, -0.0])) == [math.inf, -0.0]
