"""Records that are shown only when they are on disk: what is written together, what is waited for, what fails."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from fedsched.client.journal import Journal
from fedsched.client.journal_records import AllocLocal, TaskLocal
from fedsched.client.journal_store import JournalFailed, JournalStore
from fedsched.client.state_writer import LAZY_S, RETRY_S, RowChange, StateWriter
from fedsched.model.errors import FedschedError
from fedsched.model.task_state import TaskState, TaskStatus
from fedsched.telemetry.log import get_logger
from tests.builders import an_id


class Desk:
    """A journal whose writes are let through by hand, on virtual time."""

    def __init__(self) -> None:
        self.submitted: list[tuple[RowChange, float]] = []
        self.hurried: list[RowChange] = []

    def submit(self, change: RowChange, delay_s: float = 0.0) -> None:
        self.submitted.append((change, delay_s))

    def hurry(self, change: RowChange) -> None:
        self.hurried.append(change)

    def write(self, error: FedschedError | None = None) -> None:
        change, _ = self.submitted.pop(0)
        change.done(*change.take(), error)


class Writing:
    def __init__(self) -> None:
        self.desk = Desk()
        self.shown: list[str] = []
        self.errors: list[FedschedError] = []
        self.writer = StateWriter(self.desk, "alloc", "task", "first", self.shown.append, self.errors.append)
        self.told: list[FedschedError | None] = []


FULL = JournalFailed("the disk is full")


def test_changes_that_nobody_waits_for_go_together_a_moment_later() -> None:
    one = Writing()
    one.writer.changed("second")
    one.writer.changed("third")

    assert [delay_s for _, delay_s in one.desk.submitted] == [LAZY_S]
    assert one.shown == []

    one.desk.write()

    assert one.shown == ["third"]
    assert one.writer.is_settled
    assert one.desk.submitted == []


def test_who_waits_hurries_the_write_and_is_told_after_it_is_shown() -> None:
    one = Writing()
    one.writer.changed("second")
    one.writer.when_settled(one.told.append)

    assert len(one.desk.hurried) == 1
    assert one.told == []

    one.desk.write()

    assert one.told == [None]
    assert one.shown == ["second"]


def test_a_change_during_a_write_is_written_after_it_and_waited_for_on_its_own() -> None:
    one = Writing()
    one.writer.changed("second")
    (change, _) = one.desk.submitted.pop(0)
    taken = change.take()
    one.writer.changed("third")
    one.writer.when_settled(one.told.append)

    change.done(*taken, None)

    assert (one.shown, one.told) == (["second"], [])
    assert [delay_s for _, delay_s in one.desk.submitted] == [0.0]
    one.desk.write()
    assert (one.shown, one.told) == (["second", "third"], [None])


def test_a_failed_write_shows_nothing_is_told_and_tried_again() -> None:
    one = Writing()
    patient: list[FedschedError | None] = []
    one.writer.changed("second")
    one.writer.when_settled(one.told.append)
    one.writer.when_settled(patient.append, is_patient=True)

    one.desk.write(FULL)

    assert (one.shown, one.told, one.errors, patient) == ([], [FULL], [FULL], [])
    assert [delay_s for _, delay_s in one.desk.submitted] == [RETRY_S]
    one.desk.write()
    assert (one.shown, patient) == (["second"], [None])


def test_settled_raises_what_kept_the_record_from_the_disk() -> None:
    async def main() -> None:
        one = Writing()
        one.writer.changed("second")

        async def fail() -> None:
            await wait_all_tasks_blocked()
            one.desk.write(FULL)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)
            with pytest.raises(JournalFailed, match="full"):
                await one.writer.settled()

    trio.run(main, clock=MockClock(autojump_threshold=0))


# With the true journal


def with_journal(directory: Path, do: Callable[[Journal], Awaitable[None]]) -> None:
    async def main() -> None:
        journal = Journal(directory, get_logger("test")).open()
        try:
            with trio.fail_after(30):
                await do(journal)
        finally:
            journal.close()

    trio.run(main)


def task_writer(
    journal: Journal, number: int, shown: list[tuple[TaskLocal, TaskState]]
) -> StateWriter[tuple[TaskLocal, TaskState]]:
    return StateWriter(journal, an_id(number), "main", (TaskLocal(), TaskState()), shown.append, lambda _: None)


def test_a_change_that_nobody_waits_for_reaches_the_disk_by_itself(tmp_path: Path) -> None:
    async def write(journal: Journal) -> None:
        shown: list[tuple[TaskLocal, TaskState]] = []
        task_writer(journal, 1, shown).changed((TaskLocal(), TaskState(state=TaskStatus.RUNNING)))
        while not shown:
            await trio.sleep(0.01)

    with_journal(tmp_path, write)


def test_a_closing_journal_writes_what_it_was_handed(tmp_path: Path) -> None:
    async def write(journal: Journal) -> None:
        task_writer(journal, 1, []).changed((TaskLocal(is_complete=True), TaskState()))

    with_journal(tmp_path, write)
    store = JournalStore(tmp_path, get_logger("test"))
    rows = store.open()
    store.close()

    assert [(row.kind, row.key) for row in rows] == [("task", f"{an_id(1)}/main")]


def test_a_record_that_cannot_be_stored_fails_alone(tmp_path: Path) -> None:
    async def write(journal: Journal) -> None:
        bad = StateWriter(journal, an_id(1), "", AllocLocal(), lambda _: None, lambda _: None)
        good = [task_writer(journal, number, []) for number in range(2, 200)]
        bad.changed(AllocLocal(stop_reason="\ud800"))
        for one in good:
            one.changed((TaskLocal(), TaskState(state=TaskStatus.RUNNING)))

        with pytest.raises(JournalFailed, match="cannot be stored"):
            await bad.settled()
        for one in good:
            await one.settled()

    with_journal(tmp_path, write)
