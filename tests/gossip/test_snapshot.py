"""What is kept on disk."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsched.gossip.snapshot import (
    EPOCH_S,
    BadSnapshot,
    Snapshot,
    decode_snapshot,
    encode_snapshot,
    first_incarnation,
)
from tests.gossip.kit import a_core, addr

KEPT = Snapshot(7, 42, False, (("a", addr(2), False), ("b", addr(3), True)))


def test_a_snapshot_survives_the_disk_and_names_the_living_first() -> None:
    assert decode_snapshot(encode_snapshot(KEPT)) == KEPT
    assert KEPT.addresses() == (addr(3), addr(2))


@given(st.integers(min_value=0), st.integers(1, 255))
def test_damage_is_noticed(place: int, change: int) -> None:
    data = bytearray(encode_snapshot(KEPT))
    data[place % len(data)] ^= change

    with pytest.raises(BadSnapshot):
        decode_snapshot(bytes(data))


@given(st.binary(max_size=60))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(BadSnapshot):
        decode_snapshot(data)


def test_a_start_outranks_everything_said_before() -> None:
    assert first_incarnation(900, EPOCH_S + 10.0) == 901
    assert first_incarnation(5, EPOCH_S + 1000.0) == 1000
    assert first_incarnation(None, EPOCH_S + 1000.0) == 1000
    assert first_incarnation(None, 0.0) == 1


def test_what_was_remembered_is_kept_until_the_pool_is_found_again() -> None:
    core = a_core()
    core._remembered = KEPT.members

    assert {line[0] for line in core.snapshot().members} == {"a", "b", "me"}
