"""A flipped bit in any byte of a log: the store refuses, or what it gives back is exactly what was written.

Every byte of every file is tried: of a log of 200 entries closed in good order, and of smaller ones as a crash leaves
them. FEDSCHED_FULL=1 does the crashed ones with 200 entries too, which takes a few minutes.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from fedsched.model.errors import FedschedError
from fedsched.raft.messages import HardState, Restored
from fedsched.raft.storage import DamagedStore, LogStore
from tests.sizes import size

from .storage_kit import Image, a_mark, a_write, an_entry, entries, memory_directory, recovered

LARGE, SMALL = 66, 8
CRASHED = LARGE if os.environ.get("FEDSCHED_FULL") else SMALL


def a_life(directory: Path, groups: int = SMALL) -> tuple[Image, Image, Image, Restored]:
    """Images of one log: fresh from a crash, from a crash after a checkpoint, and closed; and what they all hold."""
    store = LogStore(directory / "log.db", page_bytes=512, recycle_wal=False)
    store.recover()
    store.write([a_write(*entries(1, 3), hard_state=HardState(1, "a"))])
    for group in range(1, groups):
        first = 1 + 3 * group
        store.write([a_write(*entries(first, first + 2))])
    store.write([a_write(an_entry(first + 2, term=2), hard_state=HardState(2, "b", first))])
    store.truncate_prefix(2, a_mark(2))
    found = Restored(HardState(2, "b", first), (*entries(3, first + 1), an_entry(first + 2, term=2)), a_mark(2), 2, 1)
    crashed = Image.of(directory)
    store._checkpoint("PASSIVE")
    store.write([a_write(hard_state=HardState(2, "b", first + 1))])
    folded = Image.of(directory)
    store.write([a_write(hard_state=HardState(2, "b", first))])
    store.close()
    return crashed, folded, Image.of(directory), found


EVERY = size(3, 1)
"""No divisor of a page or a record, so that each kind of place is met; `just long` takes every byte."""


@pytest.mark.parametrize("state", ["crashed", "folded", "closed"])
def test_a_flipped_bit_in_any_byte_is_refused_or_harmless(state: str) -> None:
    outcomes: Counter[str] = Counter()
    with memory_directory() as directory:
        crashed, folded, closed, expected = a_life(directory, LARGE if state == "closed" else CRASHED)
        image = {"crashed": crashed, "folded": folded, "closed": closed}[state]
        if state == "folded":
            expected = Restored(
                HardState(2, "b", expected.hard_state.commit + 1), expected.entries, expected.snapshot, 2, 1
            )
        image.put(directory)
        assert recovered(directory) == expected
        for name, data in image.files.items():
            for at in range(len(data)):
                if name.endswith(".mark") and at >= 64:
                    break  # padding up to a page, never looked at
                if state == "folded" and at > 2500 and at % 11:
                    continue  # recycled frames, harmless whatever they hold: a sample will do
                if at % EVERY:
                    continue
                damaged = bytearray(data)
                damaged[at] ^= 1 << (at % 8)
                image.with_file(name, bytes(damaged)).put(directory)
                outcomes[outcome(directory, expected)] += 1

    assert outcomes["refused"] > outcomes["identical"] / 20
    assert set(outcomes) <= {"refused", "identical"}, f"a damaged log was taken for good: {outcomes}"


def outcome(directory: Path, expected: Restored) -> str:
    try:
        found = recovered(directory)
    except FedschedError:
        return "refused"
    return "identical" if found == expected else "wrong"


def test_a_refusal_stays_a_refusal() -> None:
    with memory_directory() as directory:
        crashed, _, closed, expected = a_life(directory)
        for image in (crashed, closed):
            for name, data in image.files.items():
                for at in range(0, min(len(data), 8192), 61):
                    damaged = bytearray(data)
                    damaged[at] ^= 0x40
                    image.with_file(name, bytes(damaged)).put(directory)
                    first = outcome(directory, expected)
                    assert outcome(directory, expected) == first


def test_a_harmless_flip_stays_harmless_while_the_log_goes_on() -> None:
    with memory_directory() as directory:
        crashed, _, closed, expected = a_life(directory)
        for image in (crashed, closed):
            for name, data in image.files.items():
                for at in range(0, min(len(data), 8192), 37):
                    damaged = bytearray(data)
                    damaged[at] ^= 0x04
                    image.with_file(name, bytes(damaged)).put(directory)
                    goes_on(directory, expected)


def goes_on(directory: Path, expected: Restored) -> None:
    """Either refused at once, or as good as new after fifty more entries and two restarts."""
    store = LogStore(directory / "log.db", page_bytes=512, recycle_wal=False)
    try:
        found = store.recover()
    except FedschedError:
        return
    assert found == expected
    last = found.entries[-1].index
    store.write([a_write(*entries(last + 1, last + 50, term=3))])
    store.close()
    assert recovered(directory).entries == (*expected.entries, *entries(last + 1, last + 50, term=3))


@pytest.mark.parametrize("state", ["crashed", "closed"])
def test_a_log_cut_short_anywhere_is_refused_or_whole(state: str) -> None:
    with memory_directory() as directory:
        crashed, _, closed, expected = a_life(directory)
        image = crashed if state == "crashed" else closed
        for name, data in image.files.items():
            for length in range(0, len(data), 97):
                image.with_file(name, data[:length]).put(directory)
                allowed = {"refused"} if name.endswith("-wal") else {"identical", "refused"}
                assert outcome(directory, expected) in allowed, (name, length)


def test_a_missing_write_ahead_log_is_noticed() -> None:
    with memory_directory() as directory:
        crashed, _, _, _ = a_life(directory)
        Image({name: data for name, data in crashed.files.items() if not name.endswith("-wal")}).put(directory)

        with pytest.raises(DamagedStore):
            recovered(directory)


def test_damage_inside_the_write_ahead_log_is_noticed_even_without_the_mark() -> None:
    """After a power cut the mark may be old. What lies before the last group is still safe from silent cuts."""
    with memory_directory() as directory:
        crashed, _, _, expected = a_life(directory)
        wal = crashed.files["log.db-wal"]
        image = Image({name: data for name, data in crashed.files.items() if not name.endswith(".mark")})
        image.put(directory)
        assert recovered(directory) == expected
        stride = 512 + 24
        last_group_begins = len(wal) - 6 * stride

        for at in range(32 + 24, last_group_begins, 101):
            damaged = bytearray(wal)
            damaged[at] ^= 0x10
            image.with_file("log.db-wal", bytes(damaged)).put(directory)
            with pytest.raises(DamagedStore, match="write-ahead log lies in an acknowledged write"):
                recovered(directory)
