"""Runs one allocation: its hooks, its tasks, its health, its end. What it decides is in `alloc_core`.

Everything lives in one nursery, in `run`. Cancelling that leaves the tasks running for the next agent; ending it
properly takes `stop`, which returns at once while the tasks end in their order.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

import trio
from msgspec import structs

from fedsched.client import task_events as events
from fedsched.client.alloc_core import AllocCore, AllocEffect, Finish, RunAllocPrekill, Tell, describe, group_rules
from fedsched.client.alloc_dirs import AllocDirs
from fedsched.client.context import AllocContext, ClientParts
from fedsched.client.health_watch import HealthWatch
from fedsched.client.hooks.hook import AllocHook, TaskHook, overrides
from fedsched.client.journal_records import AllocLocal, AllocReport, StoredAlloc, TaskLocal
from fedsched.client.state_writer import RETRY_S, ChangeJournal, StateWriter
from fedsched.client.task_phases import HOOK_PATIENCE_S, Phase
from fedsched.client.task_runner import TaskRunner
from fedsched.client.task_signals import Emitted
from fedsched.drivers.driver import DriverMessage
from fedsched.model.alloc import Allocation, AllocDeploymentStatus, ClientStatus, client_status_of
from fedsched.model.errors import Conflict, FedschedError, NotFound
from fedsched.model.network import AllocNetworkStatus
from fedsched.model.task_state import TaskState, TaskStatus


class AllocJournal(ChangeJournal, Protocol):
    """Where allocations are kept over a restart; `journal.Journal` is it."""

    async def put_alloc(self, alloc: Allocation, tasks: Mapping[str, tuple[TaskLocal, TaskState]] = ...) -> None: ...

    async def forget(self, alloc_id: str) -> None: ...


class AllocRunner:
    """One allocation on this host. `on_change` hears its id whenever `report` has something new."""

    def __init__(
        self,
        parts: ClientParts,
        alloc: Allocation,
        journal: AllocJournal,
        *,
        stored: StoredAlloc | None,
        on_change: Callable[[str], None],
        task_hooks: Sequence[type[TaskHook]] | None = None,
        alloc_hooks: Sequence[type[AllocHook]] | None = None,
    ) -> None:
        if task_hooks is None or alloc_hooks is None:
            from fedsched.client.hooks.order import ALLOC_HOOKS, TASK_HOOKS

            task_hooks = TASK_HOOKS if task_hooks is None else task_hooks
            alloc_hooks = ALLOC_HOOKS if alloc_hooks is None else alloc_hooks
        self._dirs = AllocDirs(parts.settings.alloc_dir / alloc.id, parts.disk)
        self.context = AllocContext(parts, alloc, self._dirs.root)
        self._parts = parts
        self._journal = journal
        self._on_change = on_change
        self._log = parts.log.bind(alloc_id=alloc.id, job_id=alloc.job_id)
        self._is_restored = stored is not None
        self._local = self._shown = stored.local if stored else AllocLocal()
        self.context.alloc = structs.replace(alloc, network_status=self._local.network_status)
        self.context.keep_network = self._keep_network
        self.tasks: dict[str, TaskRunner] = {}
        for task in self.context.group.tasks:
            self.tasks[task.name] = runner = TaskRunner(
                self.context,
                task.name,
                dirs=self._dirs.task(task.name),
                driver=parts.drivers(task.driver),
                journal=journal,
                hooks=task_hooks,
                stored=stored.tasks.get(task.name) if stored else None,
                published=self._published,
            )
            self.context.tasks[task.name] = runner.context
        self._hooks = [kind(self.context) for kind in alloc_hooks]
        self._core = AllocCore(
            group_rules(self.context.group, self.context.job.type),
            {name: task.core.state for name, task in self.tasks.items()},
            is_restored=self._is_restored,
        )
        self._writer: StateWriter[AllocLocal] = StateWriter(
            journal, alloc.id, "", self._local, self._show_local, self._write_failed
        )
        self._health = HealthWatch(self)
        self._nursery: trio.Nursery | None = None
        self._time_moved: trio.Event | None = None
        """Of the child that keeps time; None while there is nothing to wait for."""
        self._background: dict[str, trio.CancelScope] = {}
        """What goes on beside the tasks, by name: hooks, the watch over its health."""
        self._background_over = trio.Event()
        self._over = trio.Event()
        self._finishing = trio.Event()
        self._prerun = trio.CancelScope()
        self._newest: Allocation | None = None
        """An update that nobody has taken up yet; only the newest counts."""
        self._is_taking_updates = False
        self._are_tasks_up = False
        self._stop_asked = False
        """Before there was anybody to tell."""
        if self._local.is_over:
            self._over.set()
            self.context.terminal.set()

    # -- what is known

    @property
    def alloc_id(self) -> str:
        return self.context.alloc.id

    @property
    def is_terminal(self) -> bool:
        """All tasks are over, and so is everything that comes after them."""
        return self._over.is_set()

    @property
    def is_stopping(self) -> bool:
        return self._core.is_stopping

    @property
    def local(self) -> AllocLocal:
        """As it is on disk."""
        return self._shown

    @property
    def task_states(self) -> dict[str, TaskState]:
        """As they are on disk, and as servers may know them."""
        return {name: task.context.state for name, task in self.tasks.items()}

    def report(self) -> AllocReport:
        """What servers may know."""
        states = self.task_states
        status = client_status_of(states.values())
        return AllocReport(
            client_status=status,
            client_description=describe(status),
            task_states=states,
            deployment_status=self._shown.deployment_status,
            network_status=self._shown.network_status,
        )

    # -- what is asked

    async def run(self) -> None:
        """Until all tasks are over and what comes after them is done. Cancelled, it leaves the tasks alone."""
        if self._local.is_over:
            return
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                self._mind_updates()
                if not self._is_restored:
                    await self._write_first()
                await self._run_tasks(nursery)
            finally:
                self._nursery = None  # from here on nothing is begun
                self._parts.starts.leave(self.alloc_id)
                for task in self.tasks.values():
                    task.end()
            nursery.cancel_scope.cancel()
        self._over.set()
        self._on_change(self.alloc_id)

    def update(self, alloc: Allocation) -> None:
        """Servers have changed it. Never waits: of several updates only the newest is taken up."""
        self._newest = alloc
        self._mind_updates()

    def stop(self, reason: str = "") -> None:
        """It is to end. Never waits; asking again changes nothing."""
        alloc = self._newest or self.context.alloc
        self._prerun.cancel()
        if self._are_tasks_up:
            skips = alloc.desired_transition.no_shutdown_delay is True
            self._do(self._core.stop(reason, skips_delay=skips))
        else:
            self._stop_asked = True

    async def restart(self, task: str = "", *, all_tasks: bool = False) -> None:
        """Restart one task, all that run, or all tasks from the beginning."""
        if not self._core.may_restart or self._nursery is None:
            raise Conflict(f"allocation {self.alloc_id} is not running", hint="it has not begun yet, or it is ending")
        if all_tasks:
            self._do(self._core.restart_all())
            return
        if task and not self._runner(task).is_running:
            raise Conflict(f"task {task!r} is not running", hint="with all tasks, dead ones are started again too")
        if not task and not any(one.is_running for one in self.tasks.values()):
            raise Conflict("no task is running", hint="with all tasks, dead ones are started again too")
        self._do(self._core.restart(task))

    async def signal(self, task: str, signal: str) -> None:
        """Signal one task, or all that run; raises what a driver says against it."""
        if task:
            await self._runner(task).send_signal(signal, "User requested task to be signaled")
            return
        running = [one for one in self.tasks.values() if one.is_running]
        if not running:
            raise Conflict("no task is running", hint="only running tasks can be signalled")
        for one in running:
            await one.send_signal(signal, "User requested task to be signaled")

    def driver_message(self, message: DriverMessage) -> None:
        """A driver has something to say about one of its tasks."""
        for task in self.tasks.values():
            if message.task_id in (task.task_id, task.core.local.intended_id):
                task.driver_message(message)

    async def _keep_network(self, status: AllocNetworkStatus) -> None:
        """A hook has built the allocation's network: on disk before any task can be in it."""
        self.context.alloc = structs.replace(self.context.alloc, network_status=status)
        if status != self._local.network_status:
            self._change_local(network_status=status)
        await self._writer.settled()

    def set_health(self, status: AllocDeploymentStatus, decided_for: str) -> None:
        self._change_local(deployment_status=status, decided_for=decided_for)

    async def destroy(self) -> None:
        """Remove what is left of it on this host. It has to be over."""
        await self._over.wait()
        for hook in reversed(self._hooks):
            if overrides(type(hook), "destroy"):
                await self._quietly(hook, hook.destroy)
        await self._dirs.destroy()
        await self._journal.forget(self.alloc_id)

    # -- from the beginning to the end

    async def _write_first(self) -> None:
        """Nothing is done for an allocation that the next agent would not know of."""
        while True:
            try:
                await self._journal.put_alloc(
                    self.context.alloc, {name: task.record for name, task in self.tasks.items()}
                )
                return
            except FedschedError as error:
                self._write_failed(error)
            await trio.sleep(RETRY_S)

    async def _run_tasks(self, nursery: trio.Nursery) -> None:
        is_dead = self._is_restored and self._core.is_dead
        for task in self.tasks.values():
            task.begin(nursery)
        self._are_tasks_up = True
        self._mind_time()
        if self._stop_asked:
            self.stop()
        if not is_dead:
            await self._prepare()
        self._begin()
        self._health.begin()
        await self._finishing.wait()
        await self._end_background()
        for task in self.tasks.values():
            await task.wait_over()
        self.context.terminal.set()
        for hook in reversed(self._wanting("postrun")):
            await self._quietly(hook, hook.postrun, limit_s=HOOK_PATIENCE_S)
        self._change_local(is_over=True)
        await self._writer.wait_settled()

    async def _prepare(self) -> None:
        has_live = any(task.core.local.handle is not None for task in self.tasks.values())
        with self._prerun:
            if not self._is_restored:
                await self._parts.starts.enter(self.alloc_id)
            for hook in self._hooks:
                if hook.is_idle:
                    continue
                try:
                    await hook.prerun()
                except Exception as error:
                    if not isinstance(error, FedschedError):
                        self._log.exception("alloc_hook_failed", error, hook=hook.name)
                    if not has_live:
                        self._do(self._core.prerun_failed(f"{hook.name}: {error}"))
                        return
                    # Tasks that an earlier agent prepared and started are not ended for the new one's trouble.
                    self._log.warn("alloc_hook_failed", hook=hook.name, reason=str(error))
                self._go_on(hook)

    def _wanting(self, method: str) -> list[AllocHook]:
        """Hooks that have something to do there, in order."""
        return [hook for hook in self._hooks if overrides(type(hook), method) and not hook.is_idle]

    # -- beside the tasks

    def _go_on(self, hook: AllocHook) -> None:
        """Begin what the hook does in the background, once; most do nothing there."""
        if overrides(type(hook), "run") and not hook.is_idle:
            self.begin_background(hook.name, lambda: self._quietly(hook, hook.run))

    def begin_background(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        """Do something beside the tasks, until all of them are over. No effect if it is being done already."""
        if self._nursery is not None and name not in self._background and not self._finishing.is_set():
            self._background[name] = trio.CancelScope()
            self._nursery.start_soon(self._beside, name, run)

    async def _beside(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        try:
            with self._background[name]:
                await run()
        finally:
            del self._background[name]
            self._background_over.set()

    async def _end_background(self) -> None:
        for scope in self._background.values():
            scope.cancel()
        while self._background:
            self._background_over = trio.Event()
            await self._background_over.wait()

    def _begin(self) -> None:
        if not self._local.first_start_ns:
            self._change_local(first_start_ns=self._parts.now_ns())
        self._do(
            self._core.begin(
                now=trio.current_time(), wall_ns=self._parts.now_ns(), first_start_ns=self._local.first_start_ns
            )
        )
        if self._local.is_stopping or self.context.alloc.is_server_terminal:
            self._do(self._core.stop(self._local.stop_reason, skips_poststop=self._local.skips_poststop))

    def _mind_updates(self) -> None:
        if self._newest is not None and self._nursery is not None and not self._is_taking_updates:
            self._is_taking_updates = True
            self._nursery.start_soon(self._take_updates)

    async def _take_updates(self) -> None:
        while self._newest is not None:
            alloc, self._newest = self._newest, None
            await self._take_update(alloc)
        self._is_taking_updates = False

    async def _take_update(self, alloc: Allocation) -> None:
        try:
            await self._journal.put_alloc(alloc)
        except FedschedError as error:
            self._write_failed(error)
            self._newest = self._newest or alloc
            await trio.sleep(RETRY_S)
            return
        self._note_reconnection(alloc)
        if alloc.job is None:
            alloc = structs.replace(alloc, job=self.context.alloc.job)
        if _task_names(alloc) != set(self.tasks):
            self._log.error("alloc_update_refused", reason="it has other tasks", index=alloc.alloc_modify_index)
            return
        self.context.alloc = structs.replace(alloc, network_status=self._local.network_status)
        self._do(
            self._core.update(
                group_rules(self.context.group, self.context.job.type),
                now=trio.current_time(),
                wall_ns=self._parts.now_ns(),
                first_start_ns=self._local.first_start_ns or self._parts.now_ns(),
            )
        )
        self._health.wake()
        if alloc.is_server_terminal:
            self.stop()
            return
        for hook in self._wanting("update"):
            await self._quietly(hook, hook.update)
            if self._core.is_begun:
                self._go_on(hook)
        for task in self.tasks.values():
            await task.update()

    def _note_reconnection(self, alloc: Allocation) -> None:
        """Servers thought it unknown: its tasks tell once that they are back, and everything is reported."""
        is_unknown = alloc.client_status is ClientStatus.UNKNOWN
        if is_unknown and not self._local.was_unknown:
            for task in self.tasks.values():
                task.emit(events.reconnected())
        if is_unknown is not self._local.was_unknown:
            self._change_local(was_unknown=is_unknown)

    # -- the core

    def _published(self, task: TaskRunner) -> None:
        state = task.context.state
        if state.state is not TaskStatus.PENDING:
            self._parts.starts.leave(self.alloc_id)
        # A death that was taken back (all tasks begin anew) while it was being written is no death.
        if state.state is not TaskStatus.DEAD or task.core.phase is Phase.DEAD:
            self._do(self._core.task_changed(task.name, state))
        self._health.wake()
        self._on_change(self.alloc_id)

    def _do(self, effects: Sequence[AllocEffect]) -> None:
        core, local = self._core, self._local
        said = (core.is_stopping, core.stop_reason, core.skips_poststop)
        if said != (local.is_stopping, local.stop_reason, local.skips_poststop) and core.is_stopping:
            self._change_local(is_stopping=True, stop_reason=core.stop_reason, skips_poststop=core.skips_poststop)
        for effect in effects:
            match effect:
                case Tell(name, given):
                    self.tasks[name].tell(given)
                case RunAllocPrekill() if self._nursery is not None:
                    self._nursery.start_soon(self._prekill)
                case Finish():
                    self._finishing.set()
        self._mind_time()

    async def _prekill(self) -> None:
        for hook in self._wanting("prekill"):
            await self._quietly(hook, hook.prekill, limit_s=HOOK_PATIENCE_S)
        self._do(self._core.prekill_done(trio.current_time()))

    def _mind_time(self) -> None:
        """Have a child keep time as soon as the core waits for any; most allocations never do."""
        if self._time_moved is not None:
            self._time_moved.set()
        elif self._nursery is not None and self._core.wake_at(self._last_contact()) < math.inf:
            self._time_moved = trio.Event()
            self._nursery.start_soon(self._keep_time)

    async def _keep_time(self) -> None:
        while True:
            moved = self._time_moved = trio.Event()
            with trio.move_on_at(self._core.wake_at(self._last_contact())):
                await moved.wait()
            if trio.current_time() >= self._core.wake_at(self._last_contact()):
                self._do(self._core.wake(trio.current_time(), self._last_contact()))

    def _last_contact(self) -> float:
        """When a server answered last, on trio's clock."""
        return trio.current_time() - (self._parts.env.now() - self._parts.servers.last_contact)

    # -- small things

    def tell_tasks(self, reasons: dict[str, str]) -> None:
        """Say in the story of each of these tasks why the allocation is not healthy."""
        for name, reason in reasons.items():
            self.tasks[name].tell(Emitted(events.unhealthy(reason)))

    def _runner(self, task: str) -> TaskRunner:
        found = self.tasks.get(task)
        if found is None:
            raise NotFound(
                f"allocation {self.alloc_id} has no task {task[:80]!r}", hint=f"it has {', '.join(sorted(self.tasks))}"
            )
        return found

    def _change_local(self, **fields: object) -> None:
        self._local = structs.replace(self._local, **fields)
        self._writer.changed(self._local)

    def _show_local(self, local: AllocLocal) -> None:
        self._shown = local
        self._health.wake()
        self._on_change(self.alloc_id)

    def _write_failed(self, error: FedschedError) -> None:
        self._log.error("alloc_state_not_written", reason=str(error))

    async def _quietly(self, hook: AllocHook, do: Callable[[], Awaitable[None]], *, limit_s: float = math.inf) -> None:
        """Outside `prerun` a hook cannot keep anything from happening: its trouble goes into the log."""
        try:
            with trio.move_on_after(limit_s) as scope:
                await do()
            if scope.cancelled_caught:
                self._log.warn("alloc_hook_too_slow", hook=hook.name, limit_s=limit_s)
        except Exception as error:
            if isinstance(error, FedschedError):
                self._log.warn("alloc_hook_failed", hook=hook.name, reason=str(error))
            else:
                self._log.exception("alloc_hook_failed", error, hook=hook.name)


def _task_names(alloc: Allocation) -> set[str]:
    group = alloc.job.group(alloc.task_group) if alloc.job else None
    return {task.name for task in group.tasks} if group else set()
