"""Runs one task: performs what its core asks for, and tells the core what came of it.

The core is told things at once, by whoever they happen to. What it asks for is done in children of the allocation's
nursery, one deed after the other in the same child where one follows from another; what takes no time is done at once.
Its records are written by a `StateWriter`: a start is asked of the driver only when the intent is on disk, and nothing
is shown to servers before it is.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import trio

from fedsched.client import task_events as events
from fedsched.client.context import AllocContext, TaskContext
from fedsched.client.hooks.hook import HookFailed, TaskHook
from fedsched.client.journal_records import StoredNetwork, TaskLocal
from fedsched.client.state_writer import ChangeJournal, StateWriter
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


@dataclass(frozen=True, slots=True)
class Deed:
    """Something that takes a while; what it returns is told to the core."""

    do: Callable[..., Awaitable[TaskInput | None]]
    arguments: tuple[object, ...] = ()
    may_be_called_off: bool = False
    called_off: TaskInput | None = None
    """What the core hears if it was."""


class TaskRunner:
    """One task of an allocation. `published` hears of every state that is safe on disk."""

    def __init__(
        self,
        alloc: AllocContext,
        name: str,
        *,
        dirs: TaskDirs,
        driver: Driver,
        journal: ChangeJournal,
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
        self._published = published
        self.hooks = TaskHooks(self.context, hooks, self._log)
        self._writer: StateWriter[tuple[TaskLocal, TaskState]] = StateWriter(
            journal, alloc.alloc.id, name, self.record, self._publish, self._write_failed
        )
        self._nursery: trio.Nursery | None = None
        self._work: set[trio.CancelScope] = set()
        self._stops: set[trio.Event] = set()
        self._config: TaskConfig | None = None
        self._inputs: deque[TaskInput] = deque()
        self._is_taking = False
        self._next_deeds: list[Deed] | None = None
        """Where deeds go that the child which has just told something can go on with."""
        self._time_moved: trio.Event | None = None
        """Of the child that keeps time; None while there is nothing to wait for."""
        self._over = trio.Event()
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

    @property
    def record(self) -> tuple[TaskLocal, TaskState]:
        """What is kept on disk about it."""
        return self.core.local, self.core.state

    def begin(self, nursery: trio.Nursery) -> None:
        """Take it up. What is done for it runs in `nursery`, until that is cancelled or it is over."""
        self._nursery = nursery
        self._is_taking = True
        self._take(lambda: self.core.begin(self._now()))
        self._take_inputs()
        if self.context.parts.has_contact.is_set():
            self.tell(ContactMade())
        else:
            nursery.start_soon(self._await_contact)

    async def wait_over(self) -> None:
        """Until it is dead for good, its hooks have let go, and all of that is on disk."""
        await self._over.wait()
        await self._writer.wait_settled()

    def end(self) -> None:
        """From here on nothing is heard, and nothing begun."""
        self._nursery = None

    def tell(self, given: TaskInput) -> None:
        """Hand the core an input; one that comes while another is taken up is next. Nothing is heard after the end."""
        self._inputs.append(given)
        if not self._is_taking:
            self._is_taking = True
            self._take_inputs()

    def _take_inputs(self) -> None:
        try:
            while self._inputs:
                following = self._inputs.popleft()
                if self._nursery is not None and not self.core.is_over:
                    self._take(lambda: self.core.handle(following, self._now()))  # noqa: B023 (called at once)
        finally:
            self._is_taking = False

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
        for hook in self.hooks.wanting("update"):
            await self._quietly(hook, hook.update)
            if self._nursery is not None and self.is_running:
                self.hooks.go_on(hook, self._nursery)

    # -- the core

    def _now(self) -> Now:
        return Now(
            trio.current_time(), self.context.parts.now_ns(), self._chance.random(), self._chance.randbytes(4).hex()
        )

    def _take(self, step: Callable[[], list[TaskEffect]]) -> None:
        core = self.core
        before = (core.local, core.state)
        effects = step()
        if core.local is not before[0] or core.state is not before[1]:
            self.context.task_id = core.task_id
            self.context.network = self.network
            self._writer.changed(self.record)
        for effect in effects:
            self._perform(effect)
        self._mind_time()
        if core.is_over:
            self._over.set()

    def _perform(self, effect: TaskEffect) -> None:
        match effect:
            case RunPrestart(is_recovered):
                self._begin(Deed(self._prestart, (is_recovered,), may_be_called_off=True))
            case Start(task_id):
                off = StartFailed("the start was called off")
                self._begin(Deed(self._start, (task_id,), may_be_called_off=True, called_off=off))
            case RunPoststart():
                self._run_poststart()
            case RunPrekill():
                self._run_hooks("prekill", Deed(self._prekill, may_be_called_off=True), PrekillDone())
            case CancelWork():
                for scope in self._work:
                    scope.cancel()
            case Recover(handle):
                self._begin(Deed(self._recover, (handle,)))
            case AwaitExit(handle):
                self._begin(Deed(self._await_exit, (handle,)))
            case Stop(task_id, timeout_s, signal):
                self._begin(Deed(self._stop, (task_id, timeout_s, signal)))
            case RunExited(result):
                self._run_hooks("exited", Deed(self._exited, (result,)), ExitedHooksDone())
            case Clear(handle, is_dead):
                self._begin(Deed(self._clear, (handle, is_dead)))
            case RunStopHooks():
                self.hooks.end_background()
                self._run_hooks("stop", Deed(self._stop_hooks), StopHooksDone())
            case Warn(name, reason):
                self._log.warn(name, reason=reason)

    def _run_hooks(self, method: str, deed: Deed, done: TaskInput) -> None:
        """Have hooks run, or go on at once if there are none for it."""
        if self.hooks.wanting(method):
            self._begin(deed)
        else:
            self.tell(done)

    def _begin(self, deed: Deed) -> None:
        """In a child; in the one that is about to end if there is such a one."""
        assert self._nursery is not None
        if self._next_deeds is not None:
            self._next_deeds.append(deed)
        else:
            self._nursery.start_soon(self._do, deed)

    async def _do(self, deed: Deed) -> None:
        """One deed after the other, as the core answers to what came of the last."""
        while True:
            given = await (self._do_work(deed) if deed.may_be_called_off else deed.do(*deed.arguments))
            if given is None or self._nursery is None:
                return
            following: list[Deed] = []
            self._next_deeds = following
            try:
                self.tell(given)
            finally:
                self._next_deeds = None
            if not following:
                return
            deed = following[0]
            for other in following[1:]:
                self._nursery.start_soon(self._do, other)

    async def _do_work(self, deed: Deed) -> TaskInput | None:
        """Do something that may be called off before it is done; the core hears of that if it has to."""
        scope = trio.CancelScope()
        self._work.add(scope)
        given: TaskInput | None = None
        try:
            with scope:
                given = await deed.do(*deed.arguments)
        finally:
            self._work.discard(scope)
        return deed.called_off if scope.cancelled_caught else given

    # -- towards a start

    async def _prestart(self, is_recovered: bool) -> TaskInput | None:
        nursery = self._nursery
        if nursery is None:
            return None
        try:
            done = await self.hooks.prestart(self.core.local, nursery)
            if not is_recovered:
                self._config = task_config(self.context, "", self.hooks.mounts)
        except HookFailed as failed:
            return PrestartFailed(events.hook_failed(failed.event, str(failed)), failed.is_recoverable)
        except Exception as error:
            self._log.exception("task_prestart_failed", error)
            return PrestartFailed(events.hook_failed("", str(error) or type(error).__name__), is_recoverable=True)
        return done

    async def _start(self, task_id: str) -> TaskInput:
        was_asked = False
        try:
            await self._writer.settled()
            assert self._config is not None
            was_asked = True
            begun = await self.driver.start_task(replace(self._config, id=task_id))
        except FedschedError as error:
            is_recoverable = error.is_recoverable if isinstance(error, DriverError) else True
            return StartFailed(str(error), is_recoverable, was_asked)
        except Exception as error:
            self._log.exception("task_start_failed", error)
            return StartFailed(str(error) or type(error).__name__, is_recoverable=True, was_asked=was_asked)
        return WasStarted(begun.handle, _stored(begun.network))

    def _run_poststart(self) -> None:
        if self.hooks.wanting("poststart"):
            self._begin(Deed(self._poststart, may_be_called_off=True))
        else:
            # The intent is on disk, and its id is enough to find the task: the rest may come along with what is next.
            self._writer.when_settled(self._handle_stored, is_urgent=False)

    def _handle_stored(self, error: FedschedError | None) -> None:
        if error is not None:
            # A task that the next agent would not find must not run.
            self.kill(f"Its handle could not be stored: {error}", is_failure=True)

    async def _poststart(self) -> None:
        try:
            await self._writer.settled()
        except FedschedError as error:
            self._handle_stored(error)
            return
        for hook in self.hooks.wanting("poststart"):
            await self._quietly(hook, hook.poststart)

    # -- while it runs

    async def _recover(self, handle: TaskHandle) -> TaskInput:
        """Look for a task. A driver that is only out of reach is asked again: the task may run on without it."""
        wait_s = REDIAL_FIRST_S
        while True:
            try:
                await self.driver.recover_task(handle)
                seen = await self.driver.inspect_task(handle.task_id)
            except DriverError as error:
                is_unknown = isinstance(error, TaskUnknown)
                if is_unknown or not error.is_recoverable:
                    return RecoverFailed(str(error), is_unknown)
                self._log.warn("driver_unreachable", reason=str(error), again_s=wait_s)
            except Exception as error:
                self._log.exception("task_recover_failed", error)
                return RecoverFailed(str(error) or type(error).__name__)
            else:
                return Recovered(handle, seen.started_at_ns)
            await trio.sleep(wait_s)
            wait_s = min(REDIAL_MAX_S, wait_s * 2)

    async def _await_exit(self, handle: TaskHandle) -> TaskInput | None:
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
        return Exited(result) if self.task_id == handle.task_id else None

    async def _signal_quietly(self, signal: str, reason: str) -> None:
        try:
            await self.send_signal(signal, reason)
        except FedschedError as error:
            self._log.warn("task_signal_failed", signal=signal, reason=str(error))

    # -- towards its end

    async def _prekill(self) -> TaskInput:
        for hook in self.hooks.wanting("prekill"):
            await self._quietly(hook, hook.prekill, limit_s=HOOK_PATIENCE_S)
        return PrekillDone()

    async def _stop(self, task_id: str, timeout_s: float, signal: str) -> TaskInput:
        over = trio.Event()
        self._stops.add(over)
        try:
            await self.driver.stop_task(task_id, timeout_s, signal)
        except TaskUnknown:
            return Stopped(task_id)
        except DriverError as error:
            return StopFailed(task_id, str(error))
        except Exception as error:
            self._log.exception("task_stop_failed", error)
            return StopFailed(task_id, str(error) or type(error).__name__)
        finally:
            self._stops.discard(over)
            over.set()
        return Stopped(task_id)

    async def _exited(self, result: ExitResult) -> TaskInput:
        for hook in self.hooks.wanting("exited"):
            await self._quietly(hook, hook.exited, result, limit_s=HOOK_PATIENCE_S)
        return ExitedHooksDone()

    async def _clear(self, handle: TaskHandle, is_dead: bool) -> TaskInput:
        for over in list(self._stops):
            await over.wait()
        try:
            await self._writer.settled()
            if not is_dead:
                await self._find_quietly(handle)
            await self.driver.destroy_task(handle.task_id, force=True)
        except FedschedError as error:
            return ClearFailed(str(error))
        except Exception as error:
            self._log.exception("task_clear_failed", error)
            return ClearFailed(str(error) or type(error).__name__)
        return Cleared()

    async def _find_quietly(self, handle: TaskHandle) -> None:
        """A driver can only remove what it knows: let it look first."""
        try:
            await self.driver.recover_task(handle)
        except DriverError as error:
            self._log.debug("task_remains_unknown", reason=str(error))

    async def _stop_hooks(self) -> TaskInput:
        for hook in reversed(self.hooks.wanting("stop")):
            await self._quietly(hook, hook.stop, limit_s=HOOK_PATIENCE_S)
        return StopHooksDone()

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

    def _mind_time(self) -> None:
        """Have a child keep time as soon as the core waits for any; most tasks never do."""
        if self._time_moved is not None:
            self._time_moved.set()
        elif self.core.wake_at < math.inf and self._nursery is not None:
            self._time_moved = trio.Event()
            self._nursery.start_soon(self._keep_time)

    async def _keep_time(self) -> None:
        while not self.core.is_over:
            moved = self._time_moved = trio.Event()
            with trio.move_on_at(self.core.wake_at):
                await moved.wait()
            if trio.current_time() >= self.core.wake_at:
                self.tell(Woken())

    async def _await_contact(self) -> None:
        await self.context.parts.has_contact.wait()
        self.tell(ContactMade())

    def _publish(self, record: tuple[TaskLocal, TaskState]) -> None:
        self.context.state = record[1]
        self._published(self)

    def _write_failed(self, error: FedschedError) -> None:
        self._log.error("task_state_not_written", reason=str(error))


def _stored(network: DriverNetwork | None) -> StoredNetwork | None:
    if network is None:
        return None
    return StoredNetwork(ip=network.ip, port_map=dict(network.port_map), auto_advertise=network.auto_advertise)
