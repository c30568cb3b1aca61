"""The hooks of one task: run in order before a start, with what each returned the last time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import trio

from fedsched.client.context import TaskContext
from fedsched.client.hooks.hook import HookResult, TaskHook, overrides
from fedsched.client.journal_records import StoredMount, StoredResult, TaskLocal
from fedsched.client.task_signals import PrestartDone
from fedsched.drivers.driver import Mount
from fedsched.telemetry.log import Logger


class TaskHooks:
    """One object per hook, for as long as the task is looked after."""

    def __init__(self, task: TaskContext, kinds: Sequence[type[TaskHook]], log: Logger) -> None:
        self._task = task
        self._log = log
        self.all = [kind(task) for kind in kinds]
        self.mounts: list[Mount] = []
        """What the hooks of this start want to be seen inside."""
        self._in_background: dict[str, trio.CancelScope] = {}
        self._is_ended = False

    def wanting(self, method: str) -> list[TaskHook]:
        """Those that have something to do there, in order."""
        return [hook for hook in self.all if overrides(type(hook), method) and not hook.is_idle]

    async def prestart(self, local: TaskLocal, nursery: trio.Nursery) -> PrestartDone:
        """Run them in order; raises what a hook raises. Background work goes on in `nursery`."""
        self._task.hook_env, self._task.template_env, self.mounts = {}, {}, []
        states: dict[str, dict[str, str]] = {}
        done: list[str] = []
        results: dict[str, StoredResult] = {}
        for hook in self.all:
            if hook.is_idle:
                continue
            if hook.name in local.hooks_done:
                self._add(_read(local.results.get(hook.name, StoredResult())))
            else:
                result = await hook.prestart(local.hooks.get(hook.name, {}))
                self._add(result)
                if result.state or hook.name in local.hooks:
                    states[hook.name] = dict(result.state)
                if result.is_done:
                    done.append(hook.name)
                    results[hook.name] = _stored(result)
            self.go_on(hook, nursery)
        return PrestartDone(states, tuple(done), results)

    def end_background(self) -> None:
        """The task is over for good."""
        self._is_ended = True
        for scope in self._in_background.values():
            scope.cancel()

    def _add(self, result: HookResult) -> None:
        if result.env:
            self._task.hook_env = {**self._task.hook_env, **result.env}
        if result.template_env:
            self._task.template_env = {**self._task.template_env, **result.template_env}
        self.mounts += result.mounts

    def go_on(self, hook: TaskHook, nursery: trio.Nursery) -> None:
        """Begin what the hook does in the background, once; most do nothing there."""
        if hook.name in self._in_background or not overrides(type(hook), "run") or self._is_ended:
            return
        self._in_background[hook.name] = trio.CancelScope()
        nursery.start_soon(self._run, hook)

    async def _run(self, hook: TaskHook) -> None:
        with self._in_background[hook.name]:
            try:
                await hook.run()
            except Exception as error:
                self._log.exception("task_hook_ended", error, hook=hook.name)


def _stored(result: HookResult) -> StoredResult:
    return StoredResult(
        env=dict(result.env),
        template_env=dict(result.template_env),
        mounts=tuple(
            StoredMount(host_path=str(one.host_path), task_path=one.task_path, is_read_only=one.is_read_only)
            for one in result.mounts
        ),
    )


def _read(stored: StoredResult) -> HookResult:
    return HookResult(
        env=stored.env,
        template_env=stored.template_env,
        mounts=tuple(Mount(Path(one.host_path), one.task_path, one.is_read_only) for one in stored.mounts),
    )
