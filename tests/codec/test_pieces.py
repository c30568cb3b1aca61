"""What is put together from encoded pieces is what encoding the whole would have made."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fedsched.codec import dumps, loads
from fedsched.codec.pieces import array, byte_string, head, mapping, text, uint

SIZES = (0, 1, 23, 24, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, 2**64 - 1)


@given(st.one_of(st.sampled_from(SIZES), st.integers(0, 2**64 - 1)))
def test_numbers(number: int) -> None:
    assert uint(number) == dumps(number)


@given(st.one_of(st.binary(max_size=300), st.sampled_from((0, 23, 24, 255, 256, 65_535, 65_536)).map(bytes)))
def test_bytes(data: bytes) -> None:
    assert byte_string(data) == dumps(data)


@given(st.one_of(st.text(max_size=100), st.sampled_from((23, 24, 255, 256, 65_536)).map(lambda size: "x" * size)))
def test_texts(value: str) -> None:
    assert text(value) == dumps(value)


@given(st.lists(st.one_of(st.text(max_size=5), st.integers(0, 2**64 - 1), st.binary(max_size=5)), max_size=40))
def test_arrays(values: list[object]) -> None:
    assert array([dumps(value) for value in values]) == dumps(values)


@given(st.dictionaries(st.text(max_size=8), st.lists(st.integers(0, 1000), max_size=3), max_size=40))
def test_mappings(values: dict[str, list[int]]) -> None:
    made = mapping((text(key), dumps(value)) for key, value in values.items())
    assert loads(made) == values
    assert len(made) == len(dumps(values))


def test_a_head_takes_the_shortest_form() -> None:
    lengths = [len(head(0x40, size)) for size in SIZES]
    assert lengths == [1, 1, 1, 2, 2, 3, 3, 5, 5, 9, 9]
