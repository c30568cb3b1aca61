"""A torn tail is left to SQLite; damage before it is named. The store's own tests do this on whole files."""

from __future__ import annotations

import struct

from fedsched.raft.wal_check import WalFindings, _chain, check_wal

PAGE = 512
STRIDE = PAGE + 24


def a_wal(groups: list[int], order: str = ">") -> bytes:
    """A WAL of groups with so many frames each, as SQLite would write it."""
    magic = 0x377F0683 if order == ">" else 0x377F0682
    head = struct.pack(">IIIIII", magic, 3007000, PAGE, 0, 7, 9)
    sums = _chain(head, order, (0, 0))
    data = head + struct.pack(">II", *sums)
    page = 0
    for frames in groups:
        for frame in range(frames):
            page += 1
            begin = struct.pack(">II", page, page if frame == frames - 1 else 0)
            content = bytes([page % 256]) * PAGE
            sums = _chain(begin + content, order, sums)
            data += begin + struct.pack(">II", 7, 9) + struct.pack(">II", *sums) + content
    return data


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def frame_at(number: int) -> int:
    return 32 + number * STRIDE


def test_a_whole_wal_is_whole_in_either_byte_order() -> None:
    assert check_wal(a_wal([2, 1, 3])) == WalFindings(6)
    assert check_wal(a_wal([2, 1, 3], order="<")) == WalFindings(6)


def test_no_file_to_speak_of_is_an_empty_one() -> None:
    assert check_wal(b"") == WalFindings()
    assert check_wal(b"x" * 2000) == WalFindings()
    assert check_wal(flipped(a_wal([2]), 9)) == WalFindings()
    assert check_wal(flipped(a_wal([2]), 25)) == WalFindings()


def test_a_bad_frame_in_the_last_group_is_a_torn_write() -> None:
    data = a_wal([2, 1, 3])

    assert check_wal(flipped(data, frame_at(4) + 100)) == WalFindings(4)
    assert check_wal(data[: frame_at(5) + 80]) == WalFindings(5)


def test_a_bad_frame_with_a_later_group_behind_it_is_damage() -> None:
    data = a_wal([2, 1, 3])

    assert check_wal(flipped(data, frame_at(0) + 100)) == WalFindings(0, frame_at(0))
    assert check_wal(flipped(data, frame_at(2) + 100)) == WalFindings(2, frame_at(2))
    assert check_wal(flipped(data, frame_at(1) + 9)) == WalFindings(1, frame_at(1))  # a salt


def test_frames_of_an_earlier_generation_count_as_absent() -> None:
    data = a_wal([2])
    old = bytearray(a_wal([2, 1, 3])[frame_at(2) :])
    for at in range(0, len(old), STRIDE):
        old[at + 8] ^= 0xFF

    assert check_wal(data + bytes(old)) == WalFindings(2)
