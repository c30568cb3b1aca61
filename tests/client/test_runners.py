"""The runners of a client: what is taken up again, refused, dismissed, updated and removed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import trio

from fedsched.client.context import ClientParts
from fedsched.client.desired import Step, What
from fedsched.client.journal import Journal, Refused
from fedsched.client.journal_records import AllocReport, TaskLocal
from fedsched.client.runners import Runners
from fedsched.client.settings import ClientSettings
from fedsched.model.alloc import Allocation, ClientStatus, DesiredStatus
from fedsched.model.task_state import TaskState
from fedsched.telemetry.log import Hub
from fedsched.telemetry.metrics import Registry
from tests.builders import a_job, an_id
from tests.client.client_kit import PretendedRunner, some_settings, until


class Link:
    """Stands in for the uplink: notes what is to be said."""

    def __init__(self) -> None:
        self.changes: list[str] = []
        self.forgotten: list[str] = []

    def changed(self, alloc_id: str) -> None:
        self.changes.append(alloc_id)

    def forget(self, alloc_id: str) -> None:
        self.forgotten.append(alloc_id)


class Parts:
    """As much of a client's parts as pretended runners need."""

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self.has_contact = trio.Event()

    def now_ns(self) -> int:
        return 1


class House:
    def __init__(self, directory: Path, nursery: trio.Nursery) -> None:
        self.link = Link()
        self.journal = Journal(directory / "client", Hub().logger("test")).open()
        self.parts = Parts(some_settings(directory))
        self.removed: list[str] = []
        self._nursery = nursery
        self.runners = Runners(
            PretendedRunner,
            self.journal,
            node_id=an_id(1),
            node_name="n1",
            log=Hub().logger("test"),
            metrics=Registry(),
        )

    async def start(self) -> None:
        parts, link = cast(ClientParts, self.parts), cast(Any, self.link)
        await self.runners.start(parts, link, self._nursery, lambda: None, self.remove)

    def remove(self, alloc_id: str) -> None:
        self.removed.append(alloc_id)
        self._nursery.start_soon(self.runners.destroy, alloc_id)

    def do(self, what: What, alloc: Allocation) -> None:
        self.runners._do(Step(what, alloc.id, None if what is What.REMOVE else alloc))

    def runner(self, alloc: Allocation) -> PretendedRunner:
        return cast(PretendedRunner, self.runners.get(alloc.id))


def an_alloc(number: int = 1, index: int = 5, **fields: Any) -> Allocation:
    fields.setdefault("job", a_job())
    return Allocation(id=an_id(number), alloc_modify_index=index, task_group="group", job_id="web", **fields)


def in_house(directory: Path, story: Callable[[House], Awaitable[None]], *, starts: bool = True) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            house = House(directory, nursery)
            try:
                if starts:
                    await house.start()
                await story(house)
            finally:
                nursery.cancel_scope.cancel("done")
                house.journal.close()

    trio.run(main)


def test_what_never_started_is_forgotten_and_what_ran_is_taken_up(tmp_path: Path) -> None:
    async def before(house: House) -> None:
        await house.journal.put_alloc(an_alloc(1))
        await house.journal.put_alloc(an_alloc(2), {"main": (TaskLocal(), TaskState())})
        await house.journal.put_refused(an_id(3), Refused(alloc_modify_index=5, reason="no"))
        await house.journal.put_refused(an_id(4), Refused(alloc_modify_index=5, reason="no", is_acked=True))

    async def after(house: House) -> None:
        assert list(house.runners.all) == [an_id(2)]
        assert house.runner(an_alloc(2)).was_restored
        said = house.runners.report_of(an_id(3))
        assert said is not None
        assert said.client_status is ClientStatus.FAILED
        assert house.runners.report_of(an_id(4)) is None
        assert house.runners.other(an_id(2)) is house.runner(an_alloc(2)).context
        assert house.runners.other(an_id(9)) is None

    in_house(tmp_path, before, starts=False)
    in_house(tmp_path, after)


def test_what_cannot_be_is_refused_with_the_reason_and_acknowledged_once(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        house.do(What.START, an_alloc(1, job=None))
        house.do(What.START, an_alloc(2, job=a_job("impossible")))
        said = house.runners.report_of(an_id(1))
        assert said is not None
        assert "its job has no group" in said.client_description
        await until("it is remembered", lambda: an_id(1) in house.journal.refused)

        await house.runners.save_acked({an_id(1): said})

        assert house.journal.refused[an_id(1)].is_acked
        assert house.runners.report_of(an_id(1)) is None

    in_house(tmp_path, story)


def test_one_that_is_stopped_before_it_came_is_reported_over_without_ever_running(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        house.do(What.DISMISS, an_alloc(1, desired_status=DesiredStatus.STOP))
        said = house.runners.report_of(an_id(1))
        assert said is not None
        assert said.client_status is ClientStatus.COMPLETE
        assert house.link.changes == [an_id(1)]
        await house.runners.save_acked({an_id(1): said})
        assert house.runners.report_of(an_id(1)) is None

    in_house(tmp_path, story)


def test_updates_and_stops_reach_the_runner(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        alloc = an_alloc(1)
        house.do(What.START, alloc)
        house.do(What.UPDATE, an_alloc(1, 6))
        house.do(What.UPDATE, an_alloc(9, 6))  # not here
        assert [one.alloc_modify_index for one in house.runner(alloc).updates] == [6]
        house.do(What.STOP, an_alloc(1, 7, desired_status=DesiredStatus.STOP))
        await until("it is over", lambda: house.runner(alloc).is_terminal)
        assert house.runners.live() == []
        assert house.runners.finished() == {}  # servers do not know of it yet

        await house.runners.save_acked({an_id(1): house.runner(alloc).report()})
        assert list(house.runners.finished()) == [an_id(1)]

    in_house(tmp_path, story)


def test_what_servers_have_forgotten_ends_and_goes(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        live, over = an_alloc(1), an_alloc(2)
        house.do(What.START, live)
        house.do(What.START, over)
        runner = house.runner(over)
        runner.end()
        await until("it is over", lambda: runner.is_terminal and house.runners._done[over.id].is_set())
        last = house.runner(live)

        house.do(What.REMOVE, over)
        house.do(What.REMOVE, live)
        house.do(What.REMOVE, an_alloc(9))

        await until("both are gone", lambda: not house.runners.all)
        assert sorted(house.removed) == [an_id(1), an_id(2)]
        assert runner.is_destroyed
        assert last.is_destroyed
        assert {an_id(1), an_id(2), an_id(9)} <= set(house.link.forgotten)

    in_house(tmp_path, story)


def test_what_still_runs_is_not_destroyed(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        house.do(What.START, an_alloc(1))
        await house.runners.destroy(an_id(1))
        await house.runners.destroy(an_id(9))
        assert not house.runner(an_alloc(1)).is_destroyed
        assert house.runners.report_of(an_id(1)) == AllocReport(task_states={"main": TaskState()})

    in_house(tmp_path, story)
