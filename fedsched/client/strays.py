"""Ends tasks that run on this host although nobody here knows of them.

A task whose record was damaged or lost may run on. Servers will have its allocation started again, so what is left of
the old one goes before that: a task never runs beside itself.
"""

from __future__ import annotations

from collections.abc import Iterable

from fedsched.client.journal_records import StoredAlloc
from fedsched.drivers.driver import Driver, DriverError, FindsTasks, TaskHandle
from fedsched.telemetry.log import Logger


async def end_strays(drivers: Iterable[Driver], stored: Iterable[StoredAlloc], log: Logger) -> list[str]:
    """Ask every driver that can tell what it finds here, and end what no allocation of ours speaks of; which ones."""
    known = known_ids(stored)
    strays = [
        (driver, task_id)
        for driver in drivers
        if isinstance(driver, FindsTasks)
        for task_id in await _found(driver, log)
        if task_id not in known
    ]
    return [task_id for driver, task_id in strays if await _end(driver, task_id, log)]


def known_ids(stored: Iterable[StoredAlloc]) -> set[str]:
    """Ids of all starts that may have something alive, or something left, on this host."""
    known: set[str] = set()
    for alloc in stored:
        for local, _ in alloc.tasks.values():
            known.update(handle.task_id for handle in (local.handle, local.leftover) if handle is not None)
            known.add(local.intended_id)
    return known


async def _found(driver: Driver, log: Logger) -> list[str]:
    assert isinstance(driver, FindsTasks)
    try:
        return await driver.found_tasks()
    except (DriverError, OSError) as error:
        log.error("strays_not_looked_for", driver=driver.name, why=str(error))
        return []


async def _end(driver: Driver, task_id: str, log: Logger) -> bool:
    try:
        await driver.recover_task(TaskHandle(driver=driver.name, task_id=task_id))
    except DriverError as error:
        log.debug("stray_not_recovered", task_id=task_id, why=str(error))
    try:
        await driver.destroy_task(task_id, force=True)
    except DriverError as error:
        log.error("stray_not_ended", driver=driver.name, task_id=task_id, why=str(error))
        return False
    log.warn("stray_ended", driver=driver.name, task_id=task_id)
    return True
