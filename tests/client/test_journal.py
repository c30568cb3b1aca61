"""What a client must not forget: written together, found again, and never in the way when it is damaged."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from fedsched.client import journal_store
from fedsched.client.identity import FILE as IDENTITY_FILE
from fedsched.client.identity import id_of_host, open_identity
from fedsched.client.journal import Journal, Refused
from fedsched.client.journal_records import AllocLocal, AllocReport, TaskLocal
from fedsched.client.journal_store import FILE, VERSION, JournalFailed, JournalStore, Put, StateInUse, StateTooNew
from fedsched.client.state_writer import StateWriter
from fedsched.drivers.driver import TaskHandle
from fedsched.env.ids import uuid_text
from fedsched.model.alloc import Allocation, ClientStatus
from fedsched.model.job import Job
from fedsched.model.task_state import TaskState, TaskStatus
from fedsched.telemetry.log import Hub

LOG = Hub().logger("client")


def an_id(number: int) -> str:
    return f"{number:08x}-0000-4000-8000-000000000000"


def an_alloc(number: int = 1, *, job: Job | None = None, **more: object) -> Allocation:
    return Allocation(id=an_id(number), job=job or Job(id="web", name="web"), **more)  # type: ignore[arg-type]


def opened(directory: Path) -> Journal:
    return Journal(directory, LOG).open()


def with_journal(directory: Path, do: Callable[[Journal], Awaitable[None]]) -> None:
    async def main() -> None:
        journal = opened(directory)
        try:
            await do(journal)
        finally:
            journal.close()

    trio.run(main)


async def fill(journal: Journal, count: int = 2) -> None:
    handle = TaskHandle(driver="raw_exec", task_id="t", state=b"\x00\xff")
    for number in range(1, count + 1):
        task = (TaskLocal(handle=handle), TaskState(state=TaskStatus.RUNNING))
        await journal.put_alloc(an_alloc(number), {"main": task})
        await put_alloc_state(journal, an_id(number), AllocLocal(is_stopping=True))


async def put_alloc_state(journal: Journal, alloc_id: str, local: AllocLocal) -> None:
    writer = StateWriter(journal, alloc_id, "", AllocLocal(), lambda _: None, lambda _: None)
    writer.changed(local)
    await writer.settled()


def test_what_was_written_is_found_by_the_next_agent(tmp_path: Path) -> None:
    async def write(journal: Journal) -> None:
        await fill(journal)
        await journal.put_acked({an_id(1): AllocReport(client_status=ClientStatus.RUNNING)})

    with_journal(tmp_path, write)
    journal = opened(tmp_path)
    first, second = journal.load()
    journal.close()

    assert first.alloc == an_alloc(1)
    assert first.local.is_stopping
    assert first.local.acked == AllocReport(client_status=ClientStatus.RUNNING)
    local, state = first.tasks["main"]
    assert local.handle is not None
    assert local.handle.state == b"\x00\xff"
    assert state.state is TaskStatus.RUNNING
    assert second.alloc.id == an_id(2)
    assert second.local.acked is None


def test_the_runner_cannot_overwrite_what_servers_acknowledged(tmp_path: Path) -> None:
    async def write(journal: Journal) -> None:
        await fill(journal, 1)
        await journal.put_acked({an_id(1): AllocReport(client_description="acknowledged")})
        await put_alloc_state(journal, an_id(1), AllocLocal())

    with_journal(tmp_path, write)
    journal = opened(tmp_path)
    (stored,) = journal.load()
    journal.close()

    assert stored.local.acked is not None
    assert stored.local.acked.client_description == "acknowledged"


def test_forgetting_leaves_nothing_of_an_allocation_and_its_job_goes_with_the_last_one(tmp_path: Path) -> None:
    job = Job(id="web", name="web")

    async def write(journal: Journal) -> None:
        await journal.put_alloc(an_alloc(1, job=job), {"main": (TaskLocal(), TaskState())})
        await journal.put_alloc(an_alloc(2, job=job))
        await journal.put_acked({an_id(1): AllocReport()})
        await journal.forget(an_id(1))

    with_journal(tmp_path, write)
    assert kinds_in(tmp_path) == ["alloc", "job", "schema"]

    async def forget_the_last(journal: Journal) -> None:
        assert [one.alloc.job for one in journal.load()] == [job]
        await journal.forget(an_id(2))

    with_journal(tmp_path, forget_the_last)
    assert kinds_in(tmp_path) == ["schema"]


def kinds_in(directory: Path) -> list[str]:
    connection = sqlite3.connect(directory / FILE)
    found = sorted(kind for (kind,) in connection.execute("SELECT kind FROM rows"))
    connection.close()
    return found


def test_allocations_of_one_job_share_its_row_and_an_update_replaces_it(tmp_path: Path) -> None:
    old, new = Job(id="web", name="web", version=0), Job(id="web", name="web", version=1)

    async def write(journal: Journal) -> None:
        for number in (1, 2, 3):
            await journal.put_alloc(an_alloc(number, job=old))
        assert kinds_in(tmp_path).count("job") == 1
        for number in (1, 2, 3):
            await journal.put_alloc(an_alloc(number, job=new))

    with_journal(tmp_path, write)
    journal = opened(tmp_path)
    stored = journal.load()
    journal.close()

    assert kinds_in(tmp_path).count("job") == 1
    assert [one.alloc.job for one in stored] == [new, new, new]


def test_writes_that_are_awaited_together_share_a_commit(tmp_path: Path) -> None:
    async def write(journal: Journal) -> None:
        async with trio.open_nursery() as nursery:
            for number in range(1, 201):
                nursery.start_soon(journal.put_alloc, an_alloc(number))
        assert journal._writer.groups < 50

    with_journal(tmp_path, write)
    journal = opened(tmp_path)
    assert len(journal.load()) == 200
    journal.close()


def test_a_write_that_the_disk_refuses_is_told_to_whoever_waits_and_the_next_one_may_work(tmp_path: Path) -> None:
    async def write(journal: Journal) -> None:
        store = journal._store
        fine = store.write

        def full(puts: object) -> None:
            raise JournalFailed("the disk is full")

        store.write = full  # type: ignore[method-assign]
        with pytest.raises(JournalFailed):
            await journal.put_alloc(an_alloc(1))
        store.write = fine  # type: ignore[method-assign]
        await journal.put_alloc(an_alloc(1))

    with_journal(tmp_path, write)
    journal = opened(tmp_path)
    assert [one.alloc for one in journal.load()] == [an_alloc(1)]
    journal.close()


def test_only_one_agent_may_use_a_state_directory(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    with pytest.raises(StateInUse, match=f"process {os.getpid()}"):
        opened(tmp_path)
    journal.close()

    opened(tmp_path).close()


def test_a_closed_journal_takes_nothing_more(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    journal.close()

    async def write() -> None:
        with pytest.raises(JournalFailed):
            await journal.put_alloc(an_alloc(1))

    trio.run(write)


def test_an_entry_that_cannot_be_decoded_is_kept_aside_and_stops_nobody(tmp_path: Path) -> None:
    with_journal(tmp_path, fill)
    store = JournalStore(tmp_path, LOG)
    store.open()
    store.write([Put("alloc", an_id(1), b"\xff\xff not a record"), Put("task", f"{an_id(2)}/main", b"")])
    store.close()

    journal = opened(tmp_path)
    aside = {(row.kind, row.key): why for row, why in journal.set_aside()}

    assert [one.alloc.id for one in journal.load()] == [an_id(2)]
    assert journal.load()[0].tasks == {}
    assert ("alloc", an_id(1)) in aside
    assert ("task", f"{an_id(2)}/main") in aside
    assert aside["task", f"{an_id(1)}/main"] == "its allocation is missing"
    journal.close()
    again = opened(tmp_path)
    assert len(again.set_aside()) == len(aside)
    again.close()


def test_a_row_whose_checksum_does_not_fit_is_kept_aside(tmp_path: Path) -> None:
    with_journal(tmp_path, fill)
    connection = sqlite3.connect(tmp_path / FILE)
    connection.execute("UPDATE rows SET crc = crc + 1 WHERE kind = 'alloc' AND key = ?", (an_id(1),))
    connection.commit()
    connection.close()

    journal = opened(tmp_path)
    assert [one.alloc.id for one in journal.load()] == [an_id(2)]
    assert "its checksum does not fit" in [why for _, why in journal.set_aside()]
    journal.close()


def test_state_of_the_first_version_is_carried_forward(tmp_path: Path) -> None:
    with_journal(tmp_path, fill)
    connection = sqlite3.connect(tmp_path / FILE)
    connection.execute("DROP TABLE aside")
    body = b"1"
    from fedsched.client.journal_store import checksum

    connection.execute(
        "UPDATE rows SET body = ?, crc = ? WHERE kind = 'schema'", (body, checksum("schema", "version", body))
    )
    connection.commit()
    connection.close()

    journal = opened(tmp_path)
    assert len(journal.load()) == 2
    assert journal.set_aside() == []
    journal.close()


def test_state_of_a_newer_version_is_refused_rather_than_misread(tmp_path: Path) -> None:
    from fedsched.client.journal_store import checksum

    with_journal(tmp_path, fill)
    body = str(VERSION + 1).encode()
    connection = sqlite3.connect(tmp_path / FILE)
    connection.execute(
        "UPDATE rows SET body = ?, crc = ? WHERE kind = 'schema'", (body, checksum("schema", "version", body))
    )
    connection.commit()
    connection.close()

    with pytest.raises(StateTooNew):
        opened(tmp_path)
    assert (tmp_path / FILE).exists()


def test_refusals_and_facts_of_the_node_are_remembered(tmp_path: Path) -> None:
    async def write(journal: Journal) -> None:
        await journal.put_refused(an_id(7), Refused(alloc_modify_index=3, reason="no such driver"))
        await journal.put_node("boot", b"1")

    with_journal(tmp_path, write)
    journal = opened(tmp_path)
    assert journal.refused[an_id(7)].reason == "no such driver"
    assert journal.node == {"boot": b"1"}
    journal.close()


# ---- damage -----------------------------------------------------------------------------------------------------


def a_small_database(directory: Path) -> bytes:
    """One file with everything in it, on small pages, nothing left in the write-ahead log."""
    with_journal(directory, lambda journal: fill(journal, 1))
    connection = sqlite3.connect(directory / FILE, isolation_level=None)
    for line in ("journal_mode = DELETE", "page_size = 512"):
        connection.execute(f"PRAGMA {line}")
    connection.execute("VACUUM")
    connection.close()
    return (directory / FILE).read_bytes()


def what_an_agent_finds(directory: Path, data: bytes) -> set[str]:
    """Open such a file as an agent does, but without its thread: thousands of times."""
    directory.mkdir(exist_ok=True)
    for left in directory.iterdir():
        left.unlink()
    (directory / FILE).write_bytes(data)
    journal = Journal(directory, LOG)
    journal._read(journal._store.open())
    found = {one.alloc.id for one in journal.load()}
    for one in journal.load():
        assert one.alloc == an_alloc(1)
    journal._store.close()
    return found


@pytest.fixture
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that open thousands of files, none of which has to survive a power cut."""
    monkeypatch.setattr(journal_store, "SYNCHRONOUS", "OFF")


@pytest.mark.usefixtures("no_sync")
def test_an_agent_starts_whatever_byte_of_its_state_is_damaged(tmp_path: Path) -> None:
    data = a_small_database(tmp_path / "whole")
    kept = 0
    for at in range(len(data)):
        spoilt = data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]
        found = what_an_agent_finds(tmp_path / "spoilt", spoilt)
        assert found <= {an_id(1)}
        kept += bool(found)
    assert kept > len(data) / 4  # most of it is not about the allocation, and then that is still there


@pytest.mark.usefixtures("no_sync")
def test_an_agent_starts_wherever_its_state_is_cut_off(tmp_path: Path) -> None:
    data = a_small_database(tmp_path / "whole")
    for at in range(len(data)):
        assert what_an_agent_finds(tmp_path / "cut", data[:at]) <= {an_id(1)}


def test_an_agent_starts_whatever_becomes_of_its_write_ahead_log(tmp_path: Path) -> None:
    async def crash(journal: Journal) -> None:
        await fill(journal, 1)
        (tmp_path / "wal").write_bytes((tmp_path / "live" / f"{FILE}-wal").read_bytes())
        (tmp_path / "db").write_bytes((tmp_path / "live" / FILE).read_bytes())

    with_journal(tmp_path / "live", crash)
    wal, database = (tmp_path / "wal").read_bytes(), (tmp_path / "db").read_bytes()
    assert wal
    for number, at in enumerate(range(0, len(wal), 97)):
        for spoilt in (wal[:at], wal[:at] + bytes([wal[at] ^ 0x55]) + wal[at + 1 :]):
            directory = tmp_path / f"wal-{number}-{len(spoilt)}"
            directory.mkdir()
            (directory / FILE).write_bytes(database)
            (directory / f"{FILE}-wal").write_bytes(spoilt)
            opened(directory).close()


def test_a_damaged_file_is_set_aside_and_what_can_be_read_of_it_is_carried_over(tmp_path: Path) -> None:
    with_journal(tmp_path, lambda journal: fill(journal, 40))
    connection = sqlite3.connect(tmp_path / FILE)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    data = bytearray((tmp_path / FILE).read_bytes())
    middle = len(data) // 2 // 4096 * 4096
    data[middle : middle + 4096] = b"\xa5" * 4096
    (tmp_path / FILE).write_bytes(data)

    journal = opened(tmp_path)
    found = journal.load()
    journal.close()

    assert (tmp_path / f"{FILE}.damaged-1").read_bytes() == bytes(data)
    assert 0 < len(found) < 40
    again = opened(tmp_path)
    assert [one.alloc.id for one in again.load()] == [one.alloc.id for one in found]
    again.close()


# ---- identity ---------------------------------------------------------------------------------------------------


def test_a_node_keeps_its_identity_and_nobody_else_may_read_it(tmp_path: Path) -> None:
    first = open_identity(tmp_path, lambda: uuid_text(os.urandom(16)), LOG)
    again = open_identity(tmp_path, lambda: uuid_text(os.urandom(16)), LOG)

    assert first == again
    assert (tmp_path / IDENTITY_FILE).stat().st_mode & 0o777 == 0o600
    assert first.secret_id not in repr(first)


def test_a_damaged_identity_comes_from_the_journal_or_else_the_node_is_a_new_one(tmp_path: Path) -> None:
    def new_id() -> str:
        return uuid_text(os.urandom(16))

    first = open_identity(tmp_path, new_id, LOG)
    data = (tmp_path / IDENTITY_FILE).read_bytes()
    for at in range(len(data)):
        (tmp_path / IDENTITY_FILE).write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert open_identity(tmp_path, new_id, LOG, kept=first.to_bytes()) == first
    (tmp_path / IDENTITY_FILE).write_bytes(data[:-5])

    assert open_identity(tmp_path, new_id, LOG) != first


def test_a_host_s_own_id_is_used_only_when_it_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "machine-id").write_text("0123456789abcdef0123456789abcdef\n")
    host_id = id_of_host((str(tmp_path / "none"), str(tmp_path / "machine-id")))

    assert host_id == "01234567-89ab-cdef-0123-456789abcdef"
    assert open_identity(tmp_path, lambda: uuid_text(os.urandom(16)), LOG, host_id=host_id).node_id == host_id
    assert id_of_host(()) == ""
