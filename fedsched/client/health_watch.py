"""Watches an allocation's health for as long as a deployment or a drain wants to know it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import trio

from fedsched.client.health_core import (
    LOOK_EVERY_S,
    MIGRATION,
    HealthCore,
    HealthVerdict,
    health_rules,
    minds_checks,
    watched_for,
)
from fedsched.model.alloc import AllocDeploymentStatus

if TYPE_CHECKING:
    from fedsched.client.alloc_runner import AllocRunner


class HealthWatch:
    """One watch after another: a verdict is final for its deployment, a new deployment is watched anew."""

    def __init__(self, runner: AllocRunner) -> None:
        self._runner = runner
        self._is_begun = False
        self._is_running = False
        self._moved = trio.Event()

    def begin(self) -> None:
        """The allocation has begun: a verdict may be wanted from now on. Mostly none is."""
        self._is_begun = True
        self.wake()

    def wake(self) -> None:
        """A task's state, or what is wanted of the allocation, has changed."""
        if self._is_running:
            moved, self._moved = self._moved, trio.Event()
            moved.set()
        elif self._is_begun and not self._runner.is_stopping and self._wanted():
            self._is_running = True
            self._runner.begin_background("health", self._run)

    async def _run(self) -> None:
        try:
            while not self._runner.is_stopping and (wanted := self._wanted()):
                await self._watch(wanted)
        finally:
            self._is_running = False

    def _wanted(self) -> str:
        """What a verdict is wanted for, unless there is one."""
        alloc, local = self._runner.context.alloc, self._runner.local
        wanted = watched_for(alloc)
        if not wanted or wanted == local.decided_for:
            return ""
        has_health = alloc.deployment_status is not None and alloc.deployment_status.healthy is not None
        if wanted == MIGRATION and (has_health or local.decided_for):
            return ""
        return wanted

    async def _watch(self, wanted: str) -> None:
        rules = health_rules(self._runner.context.alloc)
        core = HealthCore(rules, trio.current_time())
        while self._wanted() == wanted and not self._runner.is_stopping:
            moved = self._moved
            verdict = core.look(self._runner.task_states, checks_pass=self._checks_pass(), now=trio.current_time())
            if verdict is not None:
                await self._decide(verdict, wanted)
                return
            poll_at = trio.current_time() + LOOK_EVERY_S if rules.needs_checks else math.inf
            with trio.move_on_at(min(core.next_look, poll_at)):
                await moved.wait()

    def _checks_pass(self) -> bool:
        alloc, book = self._runner.context.alloc, self._runner.context.parts.checks
        if not minds_checks(alloc):
            return True
        # Until the checks are entered nobody knows anything of them.
        return bool(book.of(alloc.id)) and book.passing_since_ns(alloc.id) is not None

    async def _decide(self, verdict: HealthVerdict, wanted: str) -> None:
        context = self._runner.context
        if wanted != MIGRATION:
            self._runner.tell_tasks(dict(verdict.reasons))
        moved = self._moved
        self._runner.set_health(
            AllocDeploymentStatus(
                healthy=verdict.is_healthy,
                timestamp_ns=context.parts.now_ns(),
                canary=context.alloc.is_canary,
            ),
            wanted,
        )
        while self._runner.local.decided_for != wanted:
            await moved.wait()
            moved = self._moved
