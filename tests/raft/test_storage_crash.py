"""A crash at any point leaves a prefix of the groups, never less than was acknowledged.

The first part runs a workload once, keeps the files as they were after every group, and then builds what a power cut in
the middle of each write could have left: the new bytes up to some point, any one sector missing, any one sector alone.
The second part kills real processes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path

import pytest

from fedsched.model.errors import FedschedError
from fedsched.raft.messages import HardState, Restored
from fedsched.raft.storage import LogStore, StoreWrite
from tests.sizes import size

from .storage_kit import Image, a_mark, a_write, an_entry, entries, memory_directory, recovered

SECTOR = 512
WAL, WAL_HEADER = "log.db-wal", 32
GROUPS = 330
"""About 2,000 entries."""


def a_workload(groups: int) -> Iterator[StoreWrite | int]:
    """Groups of all kinds, large and small, about 6 entries each; a number means: shorten the log to there."""
    last = 0
    for group in range(groups):
        match group % 8:
            case 3:
                yield a_write(hard_state=HardState(group, "b", last))
            case 5:
                yield a_write(*entries(last, last + 2, term=group), hard_state=HardState(group, "a"))
                last += 2
            case 6 if group % 16 == 6:
                yield last - 3
            case 7:
                yield a_write(*(an_entry(last + at, payload=b"x" * 300) for at in range(1, 13)))
                last += 12
            case _:
                yield a_write(*entries(last + 1, last + 5))
                last += 5
    yield a_write(*entries(last + 11, last + 12), reset=a_mark(last + 10))


def history(directory: Path, wal_bytes_max: int, groups: int = GROUPS) -> list[tuple[Image, Restored]]:
    """The files after every group and every checkpoint, and what they hold."""
    store = LogStore(directory / "log.db", page_bytes=512, wal_bytes_max=wal_bytes_max, recycle_wal=True)
    store.recover()
    images = [Image.of(directory)]
    for step in a_workload(groups):
        if isinstance(step, int):
            store.truncate_prefix(step)
        else:
            store.write([step])
        images.append(Image.of(directory))
        before = store.statistics().checkpoints
        store.tidy(is_idle=False)
        if store.statistics().checkpoints != before:
            images.append(Image.of(directory))
    store.close()
    states = []
    for image in images:
        image.put(directory)
        states.append(recovered(directory))
    return list(zip(images, states, strict=True))


def torn_wal(old: bytes, new: bytes) -> Iterator[bytes]:
    """As `torn`, knowing that SQLite syncs a new header (of a recycled WAL) before it writes the first frame."""
    yield from torn(new[:WAL_HEADER] + old[WAL_HEADER:], new)
    yield old


def torn(old: bytes, new: bytes) -> Iterator[bytes]:
    """What may be on disk while `old` is being overwritten by `new`, sector by sector, in any order."""
    size = max(len(old), len(new))
    old, new = old.ljust(size, b"\0"), new.ljust(size, b"\0")
    changed = [at for at in range(0, size, SECTOR) if old[at : at + SECTOR] != new[at : at + SECTOR]]
    for at in changed:  # a prefix arrived, up to a sector's edge and into the middle of one
        for cut in (at, at + 100):
            yield new[:cut] + old[cut:]
    for at in changed:  # all but one arrived, or only one
        yield new[:at] + old[at : at + SECTOR] + new[at + SECTOR :]
        yield old[:at] + new[at : at + SECTOR] + old[at + SECTOR :]


EVERY = size(3, 1)
"""Points of a write that are tried; `just long` tries all."""


def test_a_power_cut_at_any_point_of_any_write_leaves_a_prefix_of_the_groups() -> None:
    """Nothing acknowledged is missing, nothing is half there, and a torn write is never mistaken for damage."""
    points = 0
    with memory_directory() as directory:
        for (before, held), (after, wanted) in _pairs(history(directory, wal_bytes_max=30_000)):
            for name in (WAL, "log.db"):
                tear = torn_wal if name == WAL else torn
                for data in islice(tear(before.files[name], after.files[name]), 0, None, EVERY):
                    # While the WAL is written the database rests, and the other way round.
                    base = before if name == WAL else after.with_file(WAL, before.files[WAL])
                    base.with_file(name, data).with_file("log.db.mark", before.files["log.db.mark"]).put(directory)
                    assert recovered(directory) in (held, wanted)
                    points += 1
    assert points > GROUPS * 10 // EVERY


def _pairs(states: list[tuple[Image, Restored]]) -> Iterator[tuple[tuple[Image, Restored], tuple[Image, Restored]]]:
    return iter(pairwise(states))


def test_an_acknowledged_group_is_there_after_a_crash_at_once_after_it() -> None:
    with memory_directory() as directory:
        states = history(directory, wal_bytes_max=30_000)

        assert len({repr(state) for _, state in states}) > GROUPS
        for (_, earlier), (_, later) in _pairs(states):
            assert later.prev_index >= earlier.prev_index


def test_a_store_recovered_from_a_torn_write_can_be_torn_again() -> None:
    """Leftovers of one crash must not look like damage at the next."""
    with memory_directory() as directory:
        states = history(directory, wal_bytes_max=1 << 20, groups=40)
        for (before, held), (after, _) in list(_pairs(states))[::5]:
            for data in list(torn_wal(before.files[WAL], after.files[WAL]))[::3]:
                before.with_file(WAL, data).put(directory)
                _tear_again(directory, held)


def _tear_again(directory: Path, held: Restored) -> None:
    store = LogStore(directory / "log.db", page_bytes=512, recycle_wal=False)
    found = store.recover()
    before = Image.of(directory)
    last = found.prev_index + len(found.entries)
    store.write([a_write(*entries(last + 1, last + 4, term=99))])
    after = Image.of(directory)
    store.close()
    assert found.hard_state.term >= held.hard_state.term
    for data in list(torn_wal(before.files.get(WAL, b""), after.files[WAL]))[::4]:
        before.with_file(WAL, data).put(directory)
        assert len(recovered(directory).entries) in (len(found.entries), len(found.entries) + 4)


# --- real processes --------------------------------------------------------------------------------------------------

WRITER = textwrap.dedent(
    """
    import sys, threading
    from fedsched.raft.entry import Entry, EntryKind
    from fedsched.raft.messages import HardState
    from fedsched.raft.storage import LogStore, StoreWrite
    from fedsched.raft.store_thread import StoreThread

    store = LogStore(sys.argv[1], wal_bytes_max=200_000)
    found = store.recover()
    last = found.prev_index + len(found.entries)
    room = threading.Semaphore(20)

    def done(number):
        sys.stdout.write(f"{number}\\n")
        sys.stdout.flush()
        room.release()

    thread = StoreThread(store, done, lambda error: sys.exit(3), post=lambda call: call())
    thread.start()
    while True:
        room.acquire(timeout=0.2)
        last += 1
        entry = Entry(last, 1, EntryKind.COMMAND, b"payload %d" % last * 40)
        thread.submit(StoreWrite(last, HardState(last, "a", last), None, (entry,)))
        if last % 300 == 0:
            thread.truncate_prefix(last - 250)
    """
)


@pytest.mark.processes
def test_twenty_kills_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    acknowledged = 0
    for round_ in range(20):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "log.db")], stdout=subprocess.PIPE, text=True, bufsize=1
        )
        assert writer.stdout is not None
        for _ in range(30 + 17 * round_ % 50):
            acknowledged = int(writer.stdout.readline())
        os.kill(writer.pid, signal.SIGKILL)
        tail = writer.stdout.read().split("\n")[:-1]  # what was acknowledged before the kill arrived
        acknowledged = int(tail[-1]) if tail else acknowledged
        assert writer.wait() == -signal.SIGKILL
        writer.stdout.close()

        image = Image.of(tmp_path)
        with memory_directory() as copy:
            image.put(copy)
            found = recovered(copy)
        last = found.prev_index + len(found.entries)
        assert last >= acknowledged
        assert found.hard_state == HardState(last, "a", last)
        assert all(entry.payload == b"payload %d" % entry.index * 40 for entry in found.entries)
    assert acknowledged > 20 * 30


@pytest.mark.processes
def test_a_killed_writers_files_are_free_for_the_next_one(tmp_path: Path) -> None:
    script = WRITER + "\n"
    for _ in range(2):
        writer = subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path / "log.db")], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        assert int(writer.stdout.readline()) > 0
        with pytest.raises(FedschedError, match="locked"):
            recovered(tmp_path)
        writer.kill()
        writer.wait()
        writer.stdout.close()
