"""Rotated logs: what is written is there, in order, once; lines stay whole; the disk and planted names do no harm."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsched.drivers.supervisor.log_writer import WINDOW, RotatedLog

KIB = 1 << 10


class Place:
    """A log directory and a log in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = os.open(path, os.O_RDONLY)

    def open(self, max_files: int = 100, max_bytes: int = 64 * KIB) -> RotatedLog:
        return RotatedLog(self.fd, "web.stdout", max_files, max_bytes)

    def indexes(self) -> list[int]:
        return sorted(int(name.rpartition(".")[2]) for name in os.listdir(self.path))

    def file(self, index: int) -> bytes:
        return (self.path / f"web.stdout.{index}").read_bytes()

    def all(self) -> bytes:
        return b"".join(self.file(index) for index in self.indexes())


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    found = Place(tmp_path)
    yield found
    os.close(found.fd)


def test_the_first_file_is_there_before_any_output(place: Place) -> None:
    log = place.open()

    assert place.indexes() == [0]
    log.close(place.fd)


def test_output_is_in_the_file_at_once_while_the_file_has_room(place: Place) -> None:
    log = place.open()
    log.write(place.fd, b"no line end yet")

    assert place.file(0) == b"no line end yet"
    log.close(place.fd)


def test_a_full_file_is_cut_after_the_last_line_end_that_fits(place: Place) -> None:
    log = place.open(max_bytes=100)
    log.write(place.fd, b"a" * 89 + b"\n" + b"b" * 20 + b"\n")
    log.close(place.fd)

    assert place.file(0) == b"a" * 89 + b"\n"
    assert place.file(1) == b"b" * 20 + b"\n"


def test_a_line_end_outside_the_window_does_not_cut_a_file_short(place: Place) -> None:
    size = WINDOW + 1000
    log = place.open(max_bytes=size)
    line = b"early\n" + b"x" * (size + 10)
    log.write(place.fd, line)
    log.close(place.fd)

    assert place.file(0) == line[:size]
    assert place.all() == line


def test_a_line_longer_than_a_file_is_split_at_its_size(place: Place) -> None:
    log = place.open(max_bytes=100)
    log.write(place.fd, b"x" * 250)
    log.close(place.fd)

    assert [len(place.file(index)) for index in place.indexes()] == [100, 100, 50]


def test_an_unfinished_line_near_the_end_waits_for_its_end(place: Place) -> None:
    log = place.open(max_bytes=100)
    log.write(place.fd, b"a" * 60 + b"\n" + b"b" * 30)

    assert place.file(0) == b"a" * 60 + b"\n"
    assert log.has_held

    log.write(place.fd, b"b" * 20 + b"\n")
    log.close(place.fd)

    assert place.file(1) == b"b" * 50 + b"\n"


def test_an_unfinished_line_is_written_by_a_flush(place: Place) -> None:
    log = place.open(max_bytes=100)
    log.write(place.fd, b"prompt> ")
    log.flush(place.fd)

    assert place.file(0) == b"prompt> "
    assert not log.has_held
    log.close(place.fd)


def test_only_the_newest_files_stay(place: Place) -> None:
    log = place.open(max_files=3, max_bytes=10)
    for number in range(8):
        log.write(place.fd, f"line {number:04}\n".encode())
    log.close(place.fd)

    assert place.indexes() == [5, 6, 7]
    assert place.file(7) == b"line 0007\n"


def test_the_newest_file_is_continued_if_it_has_room(place: Place) -> None:
    (place.path / "web.stdout.3").write_bytes(b"before\n")
    log = place.open()
    log.write(place.fd, b"after\n")
    log.close(place.fd)

    assert place.indexes() == [3]
    assert place.file(3) == b"before\nafter\n"


def test_a_full_newest_file_is_not_continued(place: Place) -> None:
    (place.path / "web.stdout.3").write_bytes(b"x" * 100)
    log = place.open(max_bytes=100)
    log.write(place.fd, b"after\n")
    log.close(place.fd)

    assert place.indexes() == [3, 4]
    assert place.file(4) == b"after\n"


def test_other_limits_hold_from_the_next_output_on(place: Place) -> None:
    log = place.open(max_files=10, max_bytes=1000)
    log.write(place.fd, b"x" * 50 + b"\n")
    log.set_limits(1, 40)
    log.write(place.fd, b"new\n")
    log.close(place.fd)

    assert place.indexes() == [1]
    assert place.file(1) == b"new\n"


def test_other_tasks_and_other_names_are_left_alone(place: Place) -> None:
    others = ["web.stdout.x", "web.stdout.", "web.stdout.-1", "web.stderr.9", "webb.stdout.9", "web.stdout.٣"]
    for name in others:
        (place.path / name).write_bytes(b"mine")
    log = place.open(max_files=1, max_bytes=5)
    for _ in range(4):
        log.write(place.fd, b"1234\n")
    log.close(place.fd)

    assert log.index == 3
    assert all((place.path / name).read_bytes() == b"mine" for name in others)


def test_a_planted_link_is_never_written_through(place: Place, tmp_path_factory: pytest.TempPathFactory) -> None:
    secret = tmp_path_factory.mktemp("elsewhere") / "secret"
    secret.write_bytes(b"keep")
    (place.path / "web.stdout.0").symlink_to(secret)
    (place.path / "web.stdout.2").symlink_to(secret)
    log = place.open(max_bytes=10)
    for _ in range(3):
        log.write(place.fd, b"123456789\n")
    log.close(place.fd)

    assert secret.read_bytes() == b"keep"
    assert log.dropped == 0


def test_a_second_name_of_some_file_is_not_continued(place: Place, tmp_path_factory: pytest.TempPathFactory) -> None:
    target = tmp_path_factory.mktemp("elsewhere") / "target"
    target.write_bytes(b"keep")
    os.link(target, place.path / "web.stdout.0")
    log = place.open()
    log.write(place.fd, b"output\n")
    log.close(place.fd)

    assert target.read_bytes() == b"keep"
    assert place.file(1) == b"output\n"


def test_a_planted_pipe_does_not_block(place: Place) -> None:
    os.mkfifo(place.path / "web.stdout.0")
    log = place.open()
    log.write(place.fd, b"output\n")
    log.close(place.fd)

    assert place.file(1) == b"output\n"


def test_what_no_file_can_take_is_dropped_and_counted(place: Place) -> None:
    log = place.open(max_bytes=10)
    for name in os.listdir(place.path):
        os.unlink(place.path / name)
    os.rmdir(place.path)
    log.write(place.fd, b"123456789\n")
    log.write(place.fd, b"lost\n")
    log.close(place.fd)

    assert log.dropped == 5


@settings(max_examples=150)
@given(
    st.lists(st.binary(max_size=300).map(lambda data: data.replace(b"\x00", b"\n")), max_size=30),
    st.integers(1, 400),
    st.booleans(),
)
def test_nothing_is_lost_doubled_or_reordered(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], size: int, flushes: bool
) -> None:
    place = Place(tmp_path_factory.mktemp("logs"))
    log = place.open(max_files=10_000_000, max_bytes=size)
    for piece in pieces:
        log.write(place.fd, piece)
        if flushes:
            log.flush(place.fd)
    log.close(place.fd)
    os.close(place.fd)

    assert place.all() == b"".join(pieces)
    assert all(len(place.file(index)) <= size for index in place.indexes())
    assert place.indexes() == list(range(log.index + 1))


@settings(max_examples=50)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=60), st.integers(1, 200), st.integers(61, 300))
def test_no_line_is_split_however_it_comes_in_pieces(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], piece: int, size: int
) -> None:
    text = b"".join(b"x" * length + b"\n" for length in lengths)
    place = Place(tmp_path_factory.mktemp("logs"))
    log = place.open(max_files=10_000_000, max_bytes=size)
    for start in range(0, len(text), piece):
        log.write(place.fd, text[start : start + piece])
    log.close(place.fd)
    os.close(place.fd)

    assert place.all() == text
    assert all(place.file(index).endswith(b"\n") for index in place.indexes())
