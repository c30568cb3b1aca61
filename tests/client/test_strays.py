"""Tasks that nobody knows of any more are ended before their allocation can be started again."""

from __future__ import annotations

from pathlib import Path

import trio
from trio.testing import MockClock

from fedsched.client.journal_records import StoredAlloc, TaskLocal
from fedsched.client.strays import end_strays, known_ids
from fedsched.drivers.driver import Driver, DriverError, TaskHandle
from fedsched.drivers.mock import MockDriver
from fedsched.drivers.mock_places import MemoryPlace
from fedsched.model.task_state import TaskState
from fedsched.telemetry.log import get_logger
from tests.client.alloc_world import World, an_allocation
from tests.drivers.test_mock import WORDS

LOG = get_logger("client")


def test_every_start_that_a_record_speaks_of_is_known() -> None:
    def local(name: str, **fields: object) -> TaskLocal:
        return TaskLocal(**fields)  # type: ignore[arg-type]

    stored = StoredAlloc(
        alloc=an_allocation(),
        tasks={
            "a": (local("a", handle=TaskHandle(driver="m", task_id="1")), TaskState()),
            "b": (local("b", intended_id="2"), TaskState()),
            "c": (local("c", leftover=TaskHandle(driver="m", task_id="3")), TaskState()),
        },
    )

    assert known_ids([stored]) >= {"1", "2", "3"}


def test_a_task_whose_record_was_lost_is_ended_and_the_others_are_not(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path)
        async with world.agent() as first:
            runner = first.take_up(an_allocation(number=8))
            lost = first.take_up(an_allocation(number=9))
            await trio.sleep(1)
            kept_id, lost_id = runner.tasks["web"].task_id, lost.tasks["web"].task_id
        world.journal.tasks.pop(lost.alloc_id)
        async with world.agent() as second:
            ended = await end_strays([second.driver], world.journal.load(), LOG)
            assert ended == [lost_id]
            assert list(world.place.tasks) == [kept_id]
            again = second.take_up(an_allocation(number=9))
            await trio.sleep(1)
            assert again.tasks["web"].is_running
        world.place.check_no_overlap()

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_drivers_in_trouble_stop_nobody(tmp_path: Path) -> None:
    class Mute(MockDriver):
        async def found_tasks(self) -> list[str]:
            raise DriverError("no engine")

    class Stuck(MockDriver):
        async def destroy_task(self, task_id: str, *, force: bool = False) -> None:
            raise DriverError("busy")

    async def main() -> None:
        place = MemoryPlace()
        task = WORDS.task(tmp_path, {"run_for": "1h"})
        await MockDriver(place=place).start_task(task)
        drivers: list[Driver] = [Mute(), Stuck(place=place), MockDriver(place=place)]

        assert await end_strays(drivers, [], LOG) == [task.id]
        assert place.tasks == {}

    trio.run(main, clock=MockClock(autojump_threshold=0))
