"""The servers of a region as hooks of a client see them: variables, services, queries that wait, and bad weather."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import trio
from msgspec.structs import replace

from fedsched.client.alloc_dirs import AllocDirs
from fedsched.client.check_book import CheckBook
from fedsched.client.context import AllocContext, ClientParts, TaskContext
from fedsched.client.settings import ClientSettings, TemplateSettings
from fedsched.drivers.driver import Capabilities, Driver, ExecCommand, ExecResult
from fedsched.env.fixed import FixedEnv
from fedsched.model.errors import FedschedError, Unavailable
from fedsched.model.group import TaskGroup
from fedsched.model.service import ServiceRegistration
from fedsched.model.task import Task
from fedsched.model.task_state import TaskEvent
from fedsched.model.variable import Variable
from fedsched.rpc.caller import NO_META
from fedsched.rpc.context import CallMeta, ReplyMeta
from fedsched.rpc.methods import service as services
from fedsched.rpc.methods import variable as variables
from fedsched.telemetry.log import get_logger
from fedsched.telemetry.metrics import Registry
from tests.builders import a_group, a_job, a_node, a_task, an_alloc

START_NS = 1_700_000_000 * 10**9
SECRET = "s"


class FakeRegion:
    """Answers calls from its tables. `refusing` is raised instead, `weather` makes servers unreachable."""

    def __init__(self, secret: str = SECRET) -> None:
        self._secret = secret
        self.index = 10
        self.variables: dict[str, dict[str, str]] = {}
        self.services: dict[str, ServiceRegistration] = {}
        self.passed_over: set[str] = set()
        self.calls: list[Any] = []
        self.refusing: FedschedError | None = None
        self.is_connected = True
        self.last_contact = 0.0
        self._changed = trio.Event()

    def set_variable(self, path: str, **items: str) -> None:
        self.variables[path] = items
        self.touch()

    def set_services(self, *found: ServiceRegistration) -> None:
        self.services = {one.id: one for one in found}
        self.touch()

    def touch(self) -> None:
        self.index += 1
        event, self._changed = self._changed, trio.Event()
        event.set()

    async def caller(self) -> FakeRegion:
        await trio.lowlevel.checkpoint()
        return self

    async def call(self, method: Any, request: Any, meta: CallMeta = NO_META) -> tuple[Any, ReplyMeta]:
        self.calls.append(request)
        assert getattr(request, "secret_id", self._secret) == self._secret
        await trio.lowlevel.checkpoint()
        if not self.is_connected:
            raise Unavailable("the link is lost")
        if self.refusing is not None:
            raise self.refusing
        if 0 < meta.min_index >= self.index:
            with trio.move_on_after(meta.max_wait_s):
                await self._changed.wait()
            if not self.is_connected:
                raise Unavailable("the link is lost")
        return self._answer(method, request), ReplyMeta(index=self.index)

    def _answer(self, method: Any, request: Any) -> Any:
        match method:
            case variables.VAR_OF_TASK:
                known = [Variable(path=path, items=items) for path, items in sorted(self.variables.items())]
                if request.is_list:
                    listed = [one.metadata for one in known if one.path.startswith(request.path)]
                    return variables.VarOfTaskReply(listed=tuple(listed))
                found = next((one for one in known if one.path == request.path), None)
                return variables.VarOfTaskReply(variable=found)
            case services.SERVICE_GET:
                named = [one for one in self.services.values() if one.service_name == request.name]
                return services.ServiceGetReply(services=tuple(named))
            case services.SERVICE_LIST:
                names = sorted({one.service_name for one in self.services.values()})
                inside = services.NamespaceServices(
                    namespace="default", services=tuple(services.ServiceName(service_name=name) for name in names)
                )
                return services.ServiceListReply(namespaces=(inside,))
            case services.SERVICE_OF_NODE:
                stamped = [_stamped(one) for one in self.services.values()]
                return services.ServiceGetReply(services=tuple(stamped))
            case services.SERVICE_REGISTER:
                taken = {one.id: one for one in request.services if one.id not in self.passed_over}
                self.services |= taken
                return services.ServiceRegisterReply(passed_over=tuple(self.passed_over))
            case services.SERVICE_DEREGISTER:
                for identity in request.ids:
                    self.services.pop(identity, None)
                return services.ServiceWriteReply()
        raise AssertionError(method.name)


def _stamped(one: ServiceRegistration) -> ServiceRegistration:
    return replace(one, create_index=7, modify_index=9)


class FakeDriver:
    """A driver that runs commands as the test says."""

    name = "fake"
    capabilities = Capabilities(takes_host_env=False)

    def __init__(self) -> None:
        self.commands: list[tuple[str, ...]] = []
        self.result: ExecResult | Exception = ExecResult(0)
        self.takes_s = 0.0

    async def exec_task(self, task_id: str, command: ExecCommand, timeout_s: float) -> ExecResult:
        self.commands.append(command.argv)
        await trio.sleep(self.takes_s)
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


class Asked:
    """What hooks asked of a task's runner."""

    def __init__(self) -> None:
        self.events: list[TaskEvent] = []
        self.restarts: list[tuple[str, bool]] = []
        self.signals: list[tuple[str, str]] = []
        self.kills: list[tuple[str, bool]] = []

    def emit(self, event: TaskEvent) -> None:
        self.events.append(event)

    def restart(self, reason: str, *, is_failure: bool = False) -> None:
        self.restarts.append((reason, is_failure))

    def signal(self, signal: str, reason: str) -> None:
        self.signals.append((signal, reason))

    def kill(self, reason: str, *, is_failure: bool = False) -> None:
        self.kills.append((reason, is_failure))


def client_parts(root: Path, region: FakeRegion, **template: Any) -> ClientParts:
    node = a_node(attributes={"unique.network.ip-address": "10.9.9.9", "kernel.name": "linux"})
    return ClientParts(
        settings=ClientSettings(
            state_dir=root / "state", alloc_dir=root / "allocs", template=TemplateSettings(**template)
        ),
        env=FixedEnv(),
        log=get_logger("test"),
        metrics=Registry(),
        node=lambda: node,
        region="earth",
        servers=cast(Any, region),
        drivers=lambda name: cast(Driver, FakeDriver()),
        checks=CheckBook(),
        has_contact=trio.Event(),
        other_alloc=lambda _: None,
        now_ns=lambda: START_NS + round(trio.current_time() * 1e9),
        secret_id=SECRET,
    )


def an_alloc_context(
    root: Path, region: FakeRegion, *, group: TaskGroup | None = None, tasks: list[Task] | None = None, **fields: Any
) -> AllocContext:
    """An allocation whose tasks have directories and a driver that only runs commands."""
    template = fields.pop("template", {})
    group = group or a_group("group", tasks=tasks or [a_task("main")])
    alloc = an_alloc(job=a_job("shop", groups=[group]), **fields)
    context = AllocContext(client_parts(root, region, **template), alloc, root / "allocs" / alloc.id)
    for task in group.tasks:
        dirs = AllocDirs(context.root).task(task.name)
        for path in (dirs.local, dirs.secrets, dirs.shared):
            path.mkdir(parents=True, exist_ok=True)
        found = TaskContext(context, task.name, dirs, cast(Driver, FakeDriver()), Asked())
        context.tasks[task.name] = found
    return context


def asked(task: TaskContext) -> Asked:
    return cast(Asked, task.actions)


def driver_of(task: TaskContext) -> FakeDriver:
    return cast(FakeDriver, task.driver)
