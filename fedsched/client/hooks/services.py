"""Enters what a group and its tasks offer into the region's registry, and takes it out before they are killed.

A group's services are there from before its tasks start until the allocation is to be stopped; a task's while the task
runs. Which provider a job names makes no difference: there is one registry, and it is built in.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Final

import trio

from fedsched.client.context import AllocContext, TaskContext
from fedsched.client.hooks.hook import AllocHook, HookFailed, TaskHook
from fedsched.client.service_address import NoAddress, service_place
from fedsched.client.task_env import TaskEnvironment, node_values
from fedsched.client.task_env_computed import port_values
from fedsched.drivers.driver import DriverNetwork, ExitResult
from fedsched.model.service import Service, ServiceRegistration
from fedsched.model.task_state import TaskEvent
from fedsched.wire.groups import open_plain_nursery

FAREWELL_S: Final = 2.0
"""How long the end of a task waits for servers to take its services out; they do it themselves when it has ended."""


def owner_of(alloc_id: str, task: str, group: str) -> str:
    """What all ids of one owner's registrations begin with."""
    return f"_nomad-task-{alloc_id}-{task or f'group-{group}'}-"


def registrations(
    alloc: AllocContext,
    services: Iterable[Service],
    environment: TaskEnvironment,
    *,
    task: str = "",
    network: DriverNetwork | None = None,
) -> list[ServiceRegistration]:
    """What is to be registered for these services; raises `NoAddress` naming the one that has none."""
    record, node = alloc.alloc, alloc.parts.node()
    owner = owner_of(record.id, task, record.task_group)
    found = []
    for service in services:
        name, label = environment.text(service.name), environment.text(service.port_label)
        try:
            place = service_place(
                record,
                node,
                mode=service.address_mode,
                label=label,
                address=environment.text(service.address),
                task=task,
                network=network,
            )
        except NoAddress as error:
            raise NoAddress(f"service {name!r}: {error.message}", hint=error.hint) from None
        tags = service.canary_tags if record.is_canary and service.canary_tags else service.tags
        found.append(
            ServiceRegistration(
                id=f"{owner}{name}-{label}",
                service_name=name,
                namespace=record.namespace,
                node_id=node.id,
                datacenter=node.datacenter,
                job_id=record.job_id,
                alloc_id=record.id,
                tags=tuple(environment.text(tag) for tag in tags),
                address=place.address,
                port=place.port,
            )
        )
    return found


def group_environment(alloc: AllocContext) -> TaskEnvironment:
    """What texts of a group's services may refer to: its node, its ports and its names; tasks have more."""
    record = alloc.alloc
    bare = {
        "ALLOC_ID": record.id,
        "ALLOC_NAME": record.name,
        "JOB_ID": record.job_id,
        "JOB_NAME": alloc.job.name,
        "GROUP_NAME": record.task_group,
        "NAMESPACE": record.namespace,
        "DC": alloc.parts.node().datacenter,
        "REGION": alloc.parts.region,
        **port_values(alloc),
    }
    values = {f"{prefix}{name}": value for name, value in bare.items() for prefix in ("NOMAD_", "FEDSCHED_")}
    return TaskEnvironment(values, node_values(alloc.parts.node(), alloc.parts.region))


class GroupServicesHook(AllocHook):
    """The services of a group."""

    name: ClassVar[str] = "group_services"

    def __init__(self, alloc: AllocContext) -> None:
        super().__init__(alloc)
        self._is_up: bool | None = None
        """None: it was idle until now."""
        self._has_offered = False

    @property
    def is_idle(self) -> bool:
        return not self.alloc.group.services and not self._has_offered

    @property
    def _owner(self) -> str:
        return owner_of(self.alloc.alloc.id, "", self.alloc.alloc.task_group)

    async def prerun(self) -> None:
        self._is_up = True
        self._register()

    async def update(self) -> None:
        if self._is_up is not False:
            self._register()

    async def prekill(self) -> None:
        self._is_up = False
        await _leave(self.alloc, self._owner, bool(self.alloc.group.services))

    async def run(self) -> None:
        if self.alloc.group.services:
            await self.alloc.parts.services.drive(self.alloc.parts)

    async def postrun(self) -> None:
        self._is_up = False
        await _gone(self.alloc, self._owner, bool(self.alloc.group.services))

    def _register(self) -> None:
        services = self.alloc.group.services
        try:
            wanted = registrations(self.alloc, services, group_environment(self.alloc))
        except NoAddress as error:
            raise HookFailed(error.message, hint=error.hint) from None
        if services:
            self._has_offered = True
        if self._has_offered:
            self.alloc.parts.services.want(self._owner, wanted)


class TaskServicesHook(TaskHook):
    """The services of a task, while it runs."""

    name: ClassVar[str] = "services"

    def __init__(self, task: TaskContext) -> None:
        super().__init__(task)
        self._is_up: bool | None = None
        """None: it was idle until now."""
        self._has_offered = False

    @property
    def is_idle(self) -> bool:
        return not self.task.task.services and not self._has_offered

    @property
    def _owner(self) -> str:
        return owner_of(self.task.alloc.alloc.id, self.task.name, "")

    async def poststart(self) -> None:
        self._is_up = True
        self._register()

    async def update(self) -> None:
        if self._is_up or (self._is_up is None and self.task.task_id):
            self._register()

    async def prekill(self) -> None:
        self._is_up = False
        await _leave(self.task.alloc, self._owner, bool(self.task.task.services))

    async def exited(self, result: ExitResult) -> None:
        self._is_up = False
        if self.task.task.services:
            self.task.parts.services.want(self._owner, ())

    async def run(self) -> None:
        if self.task.task.services:
            await self.task.parts.services.drive(self.task.parts)

    async def stop(self) -> None:
        self._is_up = False
        await _gone(self.task.alloc, self._owner, bool(self.task.task.services))

    def _register(self) -> None:
        services = self.task.task.services
        try:
            wanted = registrations(
                self.task.alloc,
                services,
                self.task.environment(),
                task=self.task.name,
                network=self.task.network,
            )
        except (NoAddress, HookFailed) as error:  # the task runs already: it is told, and not stopped
            self.task.actions.emit(TaskEvent(type="Task hook failed", message=f"services: {error.message}"))
            return
        if services:
            self._has_offered = True
        if self._has_offered:
            self.task.parts.services.want(self._owner, wanted)


async def _leave(alloc: AllocContext, owner: str, has_services: bool) -> None:
    """Take an owner's services out and wait a little for servers to know: nobody should be sent there any more."""
    if not has_services:
        return
    book = alloc.parts.services
    book.want(owner, ())
    with trio.move_on_after(FAREWELL_S):
        await book.wait_settled()


async def _gone(alloc: AllocContext, owner: str, has_services: bool) -> None:
    """An owner is over, whether it was asked to leave or not. The child that drove the book for it has ended."""
    if not has_services:
        return
    book = alloc.parts.services
    book.drop(owner)
    with trio.move_on_after(FAREWELL_S):
        async with open_plain_nursery() as nursery:
            nursery.start_soon(book.drive, alloc.parts)
            await book.wait_settled()
            nursery.cancel_scope.cancel("servers know")
