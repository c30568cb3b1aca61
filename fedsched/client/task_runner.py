"""Runs one task: performs what its core asks for, and tells the core what came of it.

The core is told things at once, by whoever they happen to; what it asks for runs in children of one nursery. Its
records are written by a `StateWriter`: a start is asked of the driver only when the intent is on disk, and nothing is
shown to servers before it is.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final, Protocol

import trio

from fedsched.client import task_events as events
from fedsched.client.context import AllocContext, TaskContext
from fedsched.client.hooks.hook import HookFailed, TaskHook
from fedsched.client.journal_records import StoredNetwork, TaskLocal
from fedsched.client.state_writer import StateWriter
from fedsched.client.task_config import task_config, task_rules
from fedsched.client.task_core import TaskCore
from fedsched.client.task_hooks import TaskHooks
from fedsched.client.task_phases import HOOK_PATIENCE_S, Phase
from fedsched.client.task_signals import (
    AwaitExit,
    CancelWork,
    Clear,
    Cleared,
    ClearFailed,
    ContactMade,
    Emitted,
    Exited,
    ExitedHooksDone,
    KillAsked,
    Now,
    PrekillDone,
    PrestartFailed,
    Recover,
    Recovered,
    RecoverFailed,
    RestartAsked,
    RulesChanged,
    RunExited,
    RunPoststart,
    RunPrekill,
    RunPrestart,
    RunStopHooks,
    Start,
    StartFailed,
    Stop,
    StopFailed,
    StopHooksDone,
    Stopped,
    TaskEffect,
    TaskInput,
    Warn,
    WasStarted,
    Woken,
)
from fedsched.drivers.driver import (
    Driver,
    DriverError,
    DriverMessage,
    DriverNetwork,
    ExitResult,
    TaskConfig,
    TaskDirs,
    TaskHandle,
    TaskUnknown,
)
from fedsched.model.errors import Conflict, FedschedError
from fedsched.model.task_state import TaskEvent, TaskState

REDIAL_FIRST_S: Final = 1.0
REDIAL_MAX_S: Final = 30.0
"""Waits between two tries to reach a driver that went away while its task ran."""


class TaskJournal(Protocol):
    async def put_task(self, alloc_id: str, task: str, local: TaskLocal, state: TaskState) -> None: ...


class TaskRunner:
    """One task of an allocation. `published` hears of every state that is safe on disk."""

    def __init__(
        self,
        alloc: AllocContext,
        name: str,
        *,
        dirs: TaskDirs,
        driver: Driver,
        journal: TaskJournal,
        hooks: Sequence[type[TaskHook]],
        stored: tuple[TaskLocal, TaskState] | None,
        published: Callable[[TaskRunner], None],
    ) -> None:
        self.driver = driver
        self.context = TaskContext(alloc, name, dirs, driver, self)
        self._log = alloc.parts.log.bind(alloc_id=alloc.alloc.id, task=name)
        local, state = stored or (None, events.with_event(TaskState(), events.received(), alloc.parts.now_ns()))
        self.core = TaskCore(
            f"{alloc.alloc.id}/{name}", driver.name, task_rules(self.context), local=local, state=state
        )
        self.context.state = state
        self._journal = journal
        self._published = published
        self.hooks = TaskHooks(self.context, hooks, self._log)
        self._writer: StateWriter[tuple[TaskLocal, TaskState]] = StateWriter(
            lambda: (self.core.local, self.core.state), self._put, self._publish, self._write_failed
        )
        self._nursery: trio.Nursery | None = None
        self._work: set[trio.CancelScope] = set()
        self._stops: set[trio.Event] = set()
        self._config: TaskConfig | None = None
        self._moved = trio.Event()
        self._chance = alloc.parts.env.rng("task")

    @property
    def name(self) -> str:
        return self.context.name

    @property
    def task_id(self) -> str:
        """What the driver calls it while it is started, else empty."""
        return self.core.task_id

    @property
    def network(self) -> DriverNetwork | None:
        """Where the driver says that it is reached."""
        stored = self.core.local.network
        return None if stored is None else DriverNetwork(stored.ip, stored.port_map, stored.auto_advertise)

    async def write_first(self) -> None:
        """Put a task that is new on disk, before anything is done for it."""
        await self._put((self.core.local, self.core.state))

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until it is dead for good, its hooks have let go, and all of that is on disk."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                nursery.start_soon(self._writer.run)
                nursery.start_soon(self._keep_time)
                nursery.start_soon(self._await_contact)
                self._take(lambda: self.core.begin(self._now()))
                task_status.started()
                while not self.core.is_over:
                    await self._moved.wait()
                await self._writer.wait_settled()
            finally:
                self._nursery = None  # from here on nothing is heard, and nothing begun
            nursery.cancel_scope.cancel()

    def tell(self, given: TaskInput) -> None:
        """Hand the core an input. Nothing is heard after the end."""
        if self._nursery is not None:
            self._take(lambda: self.core.handle(given, self._now()))

    # -- TaskActions, for hooks

    def emit(self, event: TaskEvent) -> None:
        self.tell(Emitted(event))

    def restart(self, reason: str, *, is_failure: bool = False) -> None:
        self.tell(RestartAsked(reason, is_failure))

    def signal(self, signal: str, reason: str) -> None:
        if self._nursery is not None:
            self._nursery.start_soon(self._signal_quietly, signal, reason)

    def kill(self, reason: str, *, is_failure: bool = False) -> None:
        self.tell(KillAsked(reason=reason, is_failure=is_failure))

    # -- for people

    @property
    def is_running(self) -> bool:
        return self.core.phase is Phase.RUNNING

    async def send_signal(self, signal: str, reason: str) -> None:
        """Signal the task; raises if it does not run or its driver refuses."""
        if not self.is_running:
            raise Conflict(f"task {self.name!r} is not running", hint="only running tasks can be signalled")
        self.emit(events.signaling(signal, reason))
        await self.driver.signal_task(self.task_id, signal)

    def driver_message(self, message: DriverMessage) -> None:
        """The driver tells something about this task while it works."""
        self.emit(events.driver_message(message.message, message.details))

    async def update(self) -> None:
        """The allocation was changed in place: take up the new rules, and have the hooks look."""
        self.tell(RulesChanged(task_rules(self.context)))
        for hook in self.hooks.all:
            await self._quietly(hook, hook.update)

    # -- the core

    def _now(self) -> Now:
        return Now(
            trio.current_time(), self.context.parts.now_ns(), self._chance.random(), self._chance.randbytes(4).hex()
        )

    def _take(self, step: Callable[[], list[TaskEffect]]) -> None:
        before = (self.core.local, self.core.state)
        effects = step()
        self.context.task_id = self.core.task_id
        self.context.network = self.network
        if self.core.local is not before[0] or self.core.state is not before[1]:
            self._writer.changed()
        moved, self._moved = self._moved, trio.Event()
        moved.set()
        for effect in effects:
            self._perform(effect)

    def _perform(self, effect: TaskEffect) -> None:
        match effect:
            case RunPrestart(is_recovered):
                self._begin_work(self._prestart, is_recovered)
            case Start(task_id):
                self._begin_work(self._start, task_id, called_off=StartFailed("the start was called off"))
            case RunPoststart():
                self._begin_work(self._poststart)
            case RunPrekill():
                self._begin_work(self._prekill)
            case CancelWork():
                for scope in self._work:
                    scope.cancel()
            case Recover(handle):
                self._begin(self._recover, handle)
            case AwaitExit(handle):
                self._begin(self._await_exit, handle)
            case Stop(task_id, timeout_s, signal):
                self._begin(self._stop, task_id, timeout_s, signal)
            case RunExited(result):
                self._begin(self._exited, result)
            case Clear(handle, is_dead):
                self._begin(self._clear, handle, is_dead)
            case RunStopHooks():
                self._begin(self._stop_hooks)
            case Warn(name, reason):
                self._log.warn(name, reason=reason)

    def _begin(self, child: Callable[..., Awaitable[None]], *arguments: object) -> None:
        assert self._nursery is not None
        self._nursery.start_soon(child, *arguments)

    def _begin_work(
        self, child: Callable[..., Awaitable[None]], *arguments: object, called_off: TaskInput | None = None
    ) -> None:
        """Begin something that may be called off before it is done; the core hears of that if it has to."""
        scope = trio.CancelScope()
        self._work.add(scope)

        async def within() -> None:
            try:
                with scope:
                    await child(*arguments)
            finally:
                self._work.discard(scope)
            if scope.cancelled_caught and called_off is not None:
                self.tell(called_off)

        self._begin(within)

    # -- towards a start

    async def _prestart(self, is_recovered: bool) -> None:
        nursery = self._nursery
        if nursery is None:
            return
        try:
            done = await self.hooks.prestart(self.core.local, nursery)
            if not is_recovered:
                self._config = task_config(self.context, "", self.hooks.mounts)
        except HookFailed as failed:
            self.tell(PrestartFailed(events.hook_failed(failed.event, str(failed)), failed.is_recoverable))
        except Exception as error:
            self._log.exception("task_prestart_failed", error)
            self.tell(PrestartFailed(events.hook_failed("", str(error) or type(error).__name__), is_recoverable=True))
        else:
            self.tell(done)

    async def _start(self, task_id: str) -> None:
        was_asked = False
        try:
            await self._writer.settled()
            assert self._config is not None
            was_asked = True
            begun = await self.driver.start_task(replace(self._config, id=task_id))
        except FedschedError as error:
            is_recoverable = error.is_recoverable if isinstance(error, DriverError) else True
            self.tell(StartFailed(str(error), is_recoverable, was_asked))
        except Exception as error:
            self._log.exception("task_start_failed", error)
            self.tell(StartFailed(str(error) or type(error).__name__, is_recoverable=True, was_asked=was_asked))
        else:
            self.tell(WasStarted(begun.handle, _stored(begun.network)))

    async def _poststart(self) -> None:
        try:
            await self._writer.settled()
        except FedschedError as error:
            # A task that the next agent would not find must not run.
            self.kill(f"Its handle could not be stored: {error}", is_failure=True)
            return
        for hook in self.hooks.all:
            await self._quietly(hook, hook.poststart)

    # -- while it runs

    async def _recover(self, handle: TaskHandle) -> None:
        """Look for a task. A driver that is only out of reach is asked again: the task may run on without it."""
        wait_s = REDIAL_FIRST_S
        while True:
            try:
                await self.driver.recover_task(handle)
                seen = await self.driver.inspect_task(handle.task_id)
            except DriverError as error:
                is_unknown = isinstance(error, TaskUnknown)
                if is_unknown or not error.is_recoverable:
                    self.tell(RecoverFailed(str(error), is_unknown))
                    return
                self._log.warn("driver_unreachable", reason=str(error), again_s=wait_s)
            except Exception as error:
                self._log.exception("task_recover_failed", error)
                self.tell(RecoverFailed(str(error) or type(error).__name__))
                return
            else:
                self.tell(Recovered(handle, seen.started_at_ns))
                return
            await trio.sleep(wait_s)
            wait_s = min(REDIAL_MAX_S, wait_s * 2)

    async def _await_exit(self, handle: TaskHandle) -> None:
        """Wait for the end. A driver that goes away meanwhile is asked again until it knows."""
        wait_s = REDIAL_FIRST_S
        while True:
            try:
                result = await self.driver.wait_task(handle.task_id)
                break
            except DriverError as error:
                self._log.warn("task_wait_failed", reason=str(error))
            try:
                await self.driver.recover_task(handle)
                continue
            except TaskUnknown as error:
                result = ExitResult(error=str(error), finished_at_ns=self.context.parts.now_ns())
                break
            except DriverError as error:
                self._log.warn("driver_unreachable", reason=str(error), again_s=wait_s)
            await trio.sleep(wait_s)
            wait_s = min(REDIAL_MAX_S, wait_s * 2)
        if self.task_id == handle.task_id:
            self.tell(Exited(result))

    async def _signal_quietly(self, signal: str, reason: str) -> None:
        try:
            await self.send_signal(signal, reason)
        except FedschedError as error:
            self._log.warn("task_signal_failed", signal=signal, reason=str(error))

    # -- towards its end

    async def _prekill(self) -> None:
        for hook in self.hooks.all:
            await self._quietly(hook, hook.prekill, limit_s=HOOK_PATIENCE_S)
        self.tell(PrekillDone())

    async def _stop(self, task_id: str, timeout_s: float, signal: str) -> None:
        over = trio.Event()
        self._stops.add(over)
        try:
            await self.driver.stop_task(task_id, timeout_s, signal)
        except TaskUnknown:
            self.tell(Stopped(task_id))
        except DriverError as error:
            self.tell(StopFailed(task_id, str(error)))
        except Exception as error:
            self._log.exception("task_stop_failed", error)
            self.tell(StopFailed(task_id, str(error) or type(error).__name__))
        else:
            self.tell(Stopped(task_id))
        finally:
            self._stops.discard(over)
            over.set()

    async def _exited(self, result: ExitResult) -> None:
        for hook in self.hooks.all:
            await self._quietly(hook, hook.exited, result, limit_s=HOOK_PATIENCE_S)
        self.tell(ExitedHooksDone())

    async def _clear(self, handle: TaskHandle, is_dead: bool) -> None:
        for over in list(self._stops):
            await over.wait()
        try:
            await self._writer.settled()
            if not is_dead:
                await self._find_quietly(handle)
            await self.driver.destroy_task(handle.task_id, force=True)
        except FedschedError as error:
            self.tell(ClearFailed(str(error)))
        except Exception as error:
            self._log.exception("task_clear_failed", error)
            self.tell(ClearFailed(str(error) or type(error).__name__))
        else:
            self.tell(Cleared())

    async def _find_quietly(self, handle: TaskHandle) -> None:
        """A driver can only remove what it knows: let it look first."""
        try:
            await self.driver.recover_task(handle)
        except DriverError as error:
            self._log.debug("task_remains_unknown", reason=str(error))

    async def _stop_hooks(self) -> None:
        self.hooks.end_background()
        for hook in reversed(self.hooks.all):
            await self._quietly(hook, hook.stop, limit_s=HOOK_PATIENCE_S)
        self.tell(StopHooksDone())

    async def _quietly(
        self, hook: TaskHook, do: Callable[..., Awaitable[None]], *arguments: object, limit_s: float = math.inf
    ) -> None:
        """Hooks around a task that lives or has ended cannot undo that: their trouble is told, not heeded."""
        try:
            with trio.move_on_after(limit_s) as scope:
                await do(*arguments)
            if scope.cancelled_caught:
                self._log.warn("task_hook_too_slow", hook=hook.name, limit_s=limit_s)
        except Exception as error:
            if not isinstance(error, FedschedError):
                self._log.exception("task_hook_failed", error, hook=hook.name)
            self.emit(events.hook_failed("", f"{hook.name}: {error}"))

    # -- time and disk

    async def _keep_time(self) -> None:
        while True:
            moved, wake_at = self._moved, self.core.wake_at
            with trio.move_on_at(wake_at):
                await moved.wait()
            if trio.current_time() >= self.core.wake_at:
                self.tell(Woken())

    async def _await_contact(self) -> None:
        await self.context.parts.has_contact.wait()
        self.tell(ContactMade())

    async def _put(self, record: tuple[TaskLocal, TaskState]) -> None:
        await self._journal.put_task(self.context.alloc.alloc.id, self.name, *record)

    def _publish(self, record: tuple[TaskLocal, TaskState]) -> None:
        self.context.state = record[1]
        self._published(self)

    def _write_failed(self, error: FedschedError) -> None:
        self._log.error("task_state_not_written", reason=str(error))


def _stored(network: DriverNetwork | None) -> StoredNetwork | None:
    if network is None:
        return None
    return StoredNetwork(ip=network.ip, port_map=dict(network.port_map), auto_advertise=network.auto_advertise)
