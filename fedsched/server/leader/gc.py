"""Runs the clean-up while this server leads: every few minutes by itself, at once when somebody asks."""

from __future__ import annotations

import trio

from fedsched.model.errors import FedschedError
from fedsched.server.desk import Desk
from fedsched.server.leader.gc_core import FORCED, KINDS, GcEffect, GcSettings, ReapNodes, collect, command_of
from fedsched.server.leader.heartbeats_core import node_evaluations
from fedsched.state.fields import Command
from fedsched.state.tables.evaluations import evaluation_write
from fedsched.state.tables.nodes import NodeDeregister


class GcService:
    """Forgets what nobody needs any more."""

    def __init__(self, desk: Desk, settings: GcSettings | None = None) -> None:
        self._desk = desk
        self._settings = settings or GcSettings()
        self._busy = trio.Lock()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        while True:
            await trio.sleep(self._settings.every_s)
            try:
                await self._pass(self._settings)
            except FedschedError as error:
                self._desk.log.info("gc_interrupted", why=str(error))

    async def force(self) -> int:
        """Forget everything that may be forgotten at all, however young; how many entries that took."""
        return await self._pass(FORCED)

    async def _pass(self, settings: GcSettings) -> int:
        written = 0
        async with self._busy:
            for kind in KINDS:
                # A snapshot each: what one kind let go of, the next one should not find again.
                seen = self._desk.machine.store.snapshot()
                for effect in collect(seen, kind, self._desk.proposals.now_ns(), settings):
                    if effect is None:
                        await trio.lowlevel.checkpoint()
                        continue
                    await self._desk.proposals.propose(self._command(effect, seen.index), is_essential=True)
                    written += 1
                await trio.lowlevel.checkpoint()
        if written:
            self._desk.log.info("gc_pass", entries=written)
        return written

    def _command(self, effect: GcEffect, seen_index: int) -> Command:
        if not isinstance(effect, ReapNodes):
            return command_of(effect, seen_index)
        store = self._desk.machine.store
        rows = [row for node_id in effect.ids if (row := store.nodes.get(node_id)) is not None]
        made = node_evaluations(store, rows, self._desk.proposals.now_ns(), self._desk.env.new_id)
        return NodeDeregister(
            ids=tuple(row.id for row in rows),
            evaluations=tuple(evaluation_write(one) for one in made),
            seen_index=seen_index,
        )
