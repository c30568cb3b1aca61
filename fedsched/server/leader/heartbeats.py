"""Runs the heartbeats core while this server leads, and answers the heartbeats themselves."""

from __future__ import annotations

from typing import Final

import trio

from fedsched.model.errors import FedschedError, Unavailable
from fedsched.server.desk import Desk
from fedsched.server.leader.heartbeats_core import (
    NS,
    HeartbeatsCore,
    HeartbeatSettings,
    SetNodeStatus,
    command_of,
    silence_effects,
)
from fedsched.server.leader.state_watch import StateWatch

RETRY_S: Final = 1.0
IDLE_S: Final = 3600
TOGETHER: Final = 128
"""Silent nodes looked at in one go: a few milliseconds."""
PACE_S: Final = 0.05
"""Nodes that fall silent together do so over a moment: one entry of the log for all of them."""


class HeartbeatsService:
    """Knows which nodes were heard, for one term of office at a time."""

    def __init__(self, desk: Desk, settings: HeartbeatSettings | None = None) -> None:
        self._desk = desk
        self._settings = settings or HeartbeatSettings()
        self._watch = StateWatch(desk.machine)
        self._chance = desk.env.rng("heartbeats")
        self._core: HeartbeatsCore | None = None
        self._wake_at_ns = 0
        """Until when the loop sleeps."""

    def beat(self, node_id: str) -> float:
        """A node was heard, by registering, by a heartbeat or by a change of its status: how long it may now take."""
        core = self._core
        if core is None:
            raise Unavailable("this server does not lead (any more)", hint="the next attempt finds the leader")
        ttl_s = core.beat(node_id, self._now_ns(), self._chance.random())
        due_ns = core.wake_at_ns()
        if due_ns is not None and due_ns < self._wake_at_ns:
            self._watch.poke()  # who had five minutes as after a change of leader may now have less
        return ttl_s

    def tracked(self) -> int:
        """How many nodes have a deadline."""
        return len(self._core) if self._core is not None else 0

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        core = self._core = HeartbeatsCore(self._settings)
        try:
            with self._watch.open():
                core.note(self._desk.machine.store, self._watch.take_nowait(), self._now_ns())
                task_status.started()
                while True:
                    changes = await self._watch.wait(self._pause_s(core))
                    core.note(self._desk.machine.store, changes, self._now_ns())
                    await self._speak_of(core, core.wake(self._now_ns()))
                    await trio.sleep(PACE_S)
        finally:
            self._core = None

    async def _speak_of(self, core: HeartbeatsCore, silent: list[str]) -> None:
        for start in range(0, len(silent), TOGETHER):
            part = silent[start : start + TOGETHER]
            now_ns = self._desk.proposals.now_ns()
            for effect in silence_effects(self._desk.machine.store, part, now_ns, self._desk.env.new_id):
                self._desk.log.warn("nodes_silent", nodes=list(effect.node_ids[:20]), count=len(effect.node_ids))
                await self._perform(core, effect)

    async def _perform(self, core: HeartbeatsCore, effect: SetNodeStatus) -> None:
        try:
            await self._desk.proposals.propose(command_of(effect), is_essential=True)
        except FedschedError as error:
            self._desk.log.info("not_written", service="heartbeats", why=str(error))
            await trio.sleep(RETRY_S)
            core.put_back(effect.node_ids, self._now_ns())

    def _pause_s(self, core: HeartbeatsCore) -> float:
        now_ns = self._now_ns()
        due_ns = core.wake_at_ns()
        self._wake_at_ns = now_ns + IDLE_S * NS if due_ns is None else due_ns
        return max(0.0, (self._wake_at_ns - now_ns) / NS)

    def _now_ns(self) -> int:
        return int(self._desk.env.now() * NS)
