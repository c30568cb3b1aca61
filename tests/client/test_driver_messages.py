"""What drivers say reaches the stories of their tasks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import trio
from trio.testing import MockClock

from fedsched.client.driver_messages import hear_drivers
from fedsched.drivers.driver import DriverMessage
from fedsched.drivers.mock import MockDriver
from fedsched.telemetry.log import get_logger
from tests.builders import a_group, a_task
from tests.client.alloc_world import World, an_allocation


class Talking(MockDriver):
    """Says something about each task id it is given, then breaks."""

    def __init__(self, *task_ids: str) -> None:
        super().__init__()
        self._about = task_ids

    async def messages(self) -> AsyncIterator[DriverMessage]:
        for task_id in self._about:
            yield DriverMessage(task_id, "Downloading image")
        raise RuntimeError("no more words")


def test_a_message_is_told_by_its_task_and_trouble_ends_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with World(tmp_path).agent() as agent:
            task = a_task(config={"run_for": "1h", "start_block_for": "10s"})
            runner = agent.take_up(an_allocation(a_group(tasks=[task])))
            await trio.sleep(1)
            task_id = runner.tasks["web"].core.local.intended_id
            runners = {runner.alloc_id: runner}

            await hear_drivers([Talking("nobody/x/1", task_id), MockDriver()], runners.get, get_logger("client"))
            await trio.sleep(1)

            assert [event.message for event in runner.task_states["web"].events if event.type == "Driver"] == [
                "Downloading image"
            ]

    trio.run(main, clock=MockClock(autojump_threshold=0))
