"""Sealing, labels and the replacement of keys."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsched.gossip.keyring import SEAL_OVERHEAD, BadKey, Keyring, Unreadable, read_key, strip_label

OLD, NEW = bytes(range(32)), bytes(range(32, 64))
NONCE = b"n" * 12


@given(st.binary(max_size=1500), st.sampled_from([16, 24, 32]), st.binary(max_size=20))
def test_what_is_sealed_opens_again(data: bytes, size: int, label: bytes) -> None:
    ring = Keyring([OLD[:size]], label)

    sealed = ring.seal(data, NONCE)

    assert ring.open(sealed) == data
    assert len(sealed) == len(data) + SEAL_OVERHEAD + (2 + len(label) if label else 0)


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(Unreadable):
        Keyring([OLD]).open(data)


@given(st.integers(min_value=0), st.integers(1, 255))
def test_one_changed_byte_anywhere_is_noticed_or_harmless(place: int, change: int) -> None:
    ring = Keyring([OLD], b"prod")
    sealed = bytearray(ring.seal(b"hello", NONCE))
    at = place % len(sealed)
    sealed[at] ^= change

    if at == 2 + len(b"prod") + 1:  # the hint: a wrong one costs time, nothing else
        assert ring.open(bytes(sealed)) == b"hello"
    else:
        with pytest.raises(Unreadable):
            ring.open(bytes(sealed))


def test_keys_are_replaced_in_three_steps_without_a_gap() -> None:
    one, other = Keyring([OLD]), Keyring([OLD])

    for ring in (one, other):
        ring.install(NEW)
    one.use(NEW)
    assert other.open(one.seal(b"new", NONCE)) == b"new"
    assert one.open(other.seal(b"old", NONCE)) == b"old"
    other.use(NEW)
    for ring in (one, other):
        ring.remove(OLD)

    assert one.keys == other.keys == (NEW,)
    with pytest.raises(Unreadable):
        one.open(Keyring([OLD]).seal(b"late", NONCE))


def test_the_primary_key_cannot_be_removed_nor_an_unknown_one_used() -> None:
    ring = Keyring([OLD])

    with pytest.raises(BadKey):
        ring.remove(OLD)
    with pytest.raises(BadKey):
        ring.use(NEW)


def test_another_pools_label_is_refused_with_the_right_key_too() -> None:
    sealed = Keyring([OLD], b"test").seal(b"x", NONCE)

    for ring in (Keyring([OLD], b"prod"), Keyring([OLD])):
        with pytest.raises(Unreadable):
            ring.open(sealed)
    forged = Keyring([OLD], b"prod").seal(b"x", NONCE).replace(b"prod", b"test")
    with pytest.raises(Unreadable):
        Keyring([OLD], b"test").open(forged)
    with pytest.raises(Unreadable):
        strip_label(b"plain", b"prod")


def test_keys_come_as_base64_of_the_right_size() -> None:
    assert read_key(base64.b64encode(OLD).decode()) == OLD
    for text in ("", "###", base64.b64encode(b"short").decode()):
        with pytest.raises(BadKey):
            read_key(text)
