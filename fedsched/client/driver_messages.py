"""Brings what drivers say about their tasks (progress of a pull, and the like) into the stories of those tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import trio

from fedsched.client.alloc_runner import AllocRunner
from fedsched.drivers.driver import Driver
from fedsched.telemetry.log import Logger


async def hear_drivers(drivers: Iterable[Driver], runner_of: Callable[[str], object], log: Logger) -> None:
    """Listen to all of them, until cancelled or none has anything more to say."""
    async with trio.open_nursery() as nursery:
        for driver in drivers:
            nursery.start_soon(_hear, driver, runner_of, log)


async def _hear(driver: Driver, runner_of: Callable[[str], object], log: Logger) -> None:
    try:
        async for message in driver.messages():
            runner = runner_of(message.task_id.partition("/")[0])
            if isinstance(runner, AllocRunner):
                runner.driver_message(message)
    except Exception as error:
        # What a driver says is for people; that it cannot be heard any more ends nothing else.
        log.exception("driver_not_heard", error, driver=driver.name)
