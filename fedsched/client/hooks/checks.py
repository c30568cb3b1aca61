"""Checks the services of an allocation and its tasks, keeps the results, and restarts tasks whose checks go on failing.

All checks of an allocation belong to one hook, because the tasks that they are about come and go, and their results
together decide about a deployment's health. Each check has a child of its own from before the tasks start.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import ClassVar, Final

import trio

from fedsched.client.checks import Script, Target, run_check, run_script
from fedsched.client.checks_core import CheckCore, CheckKind, CheckRules, Outcome, RestartRule, TaskUp
from fedsched.client.context import AllocContext, TaskContext
from fedsched.client.hooks.hook import AllocHook, HookFailed
from fedsched.client.hooks.services import group_environment
from fedsched.client.service_address import NoAddress, service_place
from fedsched.client.task_env import TaskEnvironment
from fedsched.model.check import CheckStatus
from fedsched.model.service import CheckRestart, Service, ServiceCheck
from fedsched.model.task_state import TaskStatus

INTERVAL_MIN_S: Final = 1.0
"""Jobs with less are refused when they are submitted; a client does not rely on it."""
TIMEOUT_MIN_S: Final = 1.0
GRACE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class PlannedCheck:
    """One check of a job, and whose it is."""

    service: Service
    check: ServiceCheck
    task: str
    """The task whose service it is; empty for the group's."""

    @property
    def restarts(self) -> CheckRestart | None:
        return self.check.check_restart or self.service.check_restart

    @property
    def subject(self) -> str:
        """The task that a script runs in and that a restart hits; empty: all of the allocation's."""
        return self.task or self.check.task_name or self.service.task_name


def planned_checks(alloc: AllocContext) -> Iterator[PlannedCheck]:
    """All checks of an allocation, in the order of its job."""
    for service in alloc.group.services:
        for check in service.checks:
            yield PlannedCheck(service, check, "")
    for task in alloc.group.tasks:
        for service in task.services:
            for check in service.checks:
                yield PlannedCheck(service, check, task.name)


def check_rules(alloc: AllocContext, planned: PlannedCheck) -> CheckRules:
    """What a check of a job means for its schedule and verdicts."""
    record, service, check = alloc.alloc, planned.service, planned.check
    restart = planned.restarts
    grace_s = GRACE_S if restart is None or restart.grace_s is None else restart.grace_s
    parts = (record.id, record.task_group, planned.task, service.name, service.port_label, check.name, check.type)
    return CheckRules(
        id=blake2b("\0".join(parts).encode(), digest_size=16).hexdigest(),
        name=check.name or f'service: "{service.name}" check',
        service=service.name,
        task=planned.task,
        group=record.name,
        interval_s=max(INTERVAL_MIN_S, check.interval_s),
        on_update=check.on_update or service.on_update or "require_healthy",
        initial_status=check.initial_status,
        success_before_passing=check.success_before_passing,
        failures_before_critical=check.failures_before_critical,
        restart=RestartRule(restart.limit, grace_s, restart.ignore_warnings) if restart else None,
    )


class ChecksHook(AllocHook):
    """All checks of one allocation."""

    name: ClassVar[str] = "checks"

    def __init__(self, alloc: AllocContext) -> None:
        super().__init__(alloc)
        self._cores: dict[str, tuple[CheckCore, PlannedCheck]] = {}
        self._changed = trio.Event()

    @property
    def is_idle(self) -> bool:
        if self._cores or self.alloc.parts.checks.of(self.alloc.alloc.id):
            return False
        return next(planned_checks(self.alloc), None) is None

    async def prerun(self) -> None:
        self._plan()

    async def update(self) -> None:
        self._plan()

    async def run(self) -> None:
        while True:
            changed = self._changed
            async with trio.open_nursery() as nursery:
                for core, planned in self._cores.values():
                    nursery.start_soon(self._keep_checking, core, planned)
                await changed.wait()
                nursery.cancel_scope.cancel("the checks changed")

    async def postrun(self) -> None:
        self._cores.clear()

    async def destroy(self) -> None:
        self.alloc.parts.checks.forget(self.alloc.alloc.id)

    def _plan(self) -> None:
        """Take up the checks as the job has them now; one that has not changed goes on where it was."""
        now = trio.current_time()
        fresh: dict[str, tuple[CheckCore, PlannedCheck]] = {}
        for planned in planned_checks(self.alloc):
            rules = check_rules(self.alloc, planned)
            known = self._cores.get(rules.id)
            core = known[0] if known and known[0].rules == rules else CheckCore(rules, now)
            fresh[rules.id] = (core, planned)
        self._cores = fresh
        if fresh or self.alloc.parts.checks.of(self.alloc.alloc.id):
            results = [core.result for core, _ in fresh.values()]
            self.alloc.parts.checks.expect(self.alloc.alloc.id, results, self.alloc.parts.now_ns())
        self._changed.set()
        self._changed = trio.Event()

    async def _keep_checking(self, core: CheckCore, planned: PlannedCheck) -> None:
        while True:
            await trio.sleep_until(core.due_at)
            core.begin(trio.current_time())
            if self._is_over(planned):
                continue
            outcome = await self._run_once(planned)
            judged = core.took(outcome, self._up(planned), self.alloc.parts.now_ns())
            self.alloc.parts.checks.put(self.alloc.alloc.id, judged.result)
            if judged.restart_reason:
                for task in self._subjects(planned):
                    task.actions.restart(judged.restart_reason, is_failure=True)

    async def _run_once(self, planned: PlannedCheck) -> Outcome:
        check = planned.check
        try:
            kind = CheckKind(check.type.lower())
            if kind is CheckKind.SCRIPT:
                return await run_script(self._script(planned))
            return await run_check(kind, self._target(planned), time_limit_s(check))
        except ValueError:
            return Outcome(CheckStatus.FAILURE, f"checks of type {check.type!r} cannot be run")
        except (NoAddress, HookFailed) as error:
            return Outcome(CheckStatus.FAILURE, error.message)

    def _script(self, planned: PlannedCheck) -> Script:
        task = self.alloc.tasks.get(planned.subject)
        if task is None:
            raise NoAddress(f"a script check needs a task to run in, there is no {planned.subject!r}")
        texts = task.environment().text
        argv = (texts(planned.check.command), *map(texts, planned.check.args))
        return Script(task.driver, lambda: task.task_id, argv, time_limit_s(planned.check))

    def _target(self, planned: PlannedCheck) -> Target:
        service, check = planned.service, planned.check
        task = self.alloc.tasks.get(planned.task)
        environment = self._environment(planned)
        mode = check.address_mode or service.address_mode
        place = service_place(
            self.alloc.alloc,
            self.alloc.parts.node(),
            mode=mode,
            label=environment.text(check.port_label or service.port_label),
            address=environment.text(service.address),
            task=planned.task,
            network=task.network if task is not None else None,
        )
        return Target(
            host=place.address,
            port=place.port,
            path=environment.text(check.path) or "/",
            method=check.method or "GET",
            headers={name: tuple(map(environment.text, values)) for name, values in check.header.items()},
            body=environment.text(check.body),
            is_tls=check.protocol == "https" or check.grpc_use_tls,
            skip_verify=check.tls_skip_verify,
            server_name=check.tls_server_name,
            grpc_service=check.grpc_service,
        )

    def _environment(self, planned: PlannedCheck) -> TaskEnvironment:
        task = self.alloc.tasks.get(planned.task)
        return task.environment() if task is not None else group_environment(self.alloc)

    def _subjects(self, planned: PlannedCheck) -> list[TaskContext]:
        """The tasks that a restart hits, as far as they run."""
        tasks = self.alloc.tasks
        named = [tasks[planned.subject]] if planned.subject in tasks else list(tasks.values())
        return [task for task in named if task.state.state is TaskStatus.RUNNING]

    def _up(self, planned: PlannedCheck) -> TaskUp:
        running = self._subjects(planned)
        since = max((task.state.started_at_ns for task in running), default=0)
        return TaskUp(bool(running), since)

    def _is_over(self, planned: PlannedCheck) -> bool:
        """Whether the task that offers the service has ended: then there is nothing to ask."""
        task = self.alloc.tasks.get(planned.task)
        return task is not None and task.state.state is TaskStatus.DEAD


def time_limit_s(check: ServiceCheck) -> float:
    """How long one run may take: its timeout, an interval if it has none."""
    return max(TIMEOUT_MIN_S, check.timeout_s or check.interval_s)
