"""Runs the client updates core while this server leads: takes reports, and answers each when it is written."""

from __future__ import annotations

import trio

from fedsched.model.errors import FedschedError, Unavailable
from fedsched.server.desk import Desk
from fedsched.server.leader.client_updates_core import CUT_OFF, NS, Batch, ClientUpdatesCore, Report, check_report


class _Waiting:
    """Everybody whose report is in one batch."""

    __slots__ = ("done", "error")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.error: FedschedError | None = None


class ClientUpdatesService:
    """Where endpoints put what clients say about their allocations."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._core: ClientUpdatesCore | None = None
        self._waiting: dict[int, _Waiting] = {}
        self._poked = trio.Event()

    async def report(self, report: Report) -> None:
        """Take a report and return when it is written. `Busy` if too many wait, `Unavailable` if we do not lead."""
        core = self._core
        if core is None:
            raise _not_leading()
        check_report(self._desk.machine.store, report)
        waiting = self._waiting.setdefault(core.add(report, self._now_ns()), _Waiting())
        self._poked.set()
        await waiting.done.wait()
        if waiting.error is not None:
            raise waiting.error

    async def report_all(self, reports: list[Report]) -> list[str]:
        """Take what another server has gathered; returns the nodes whose reports are refused when the rest is written.

        Refused are those that servers do not know, or take for cut off: their allocations may run elsewhere by now.
        """
        core = self._core
        if core is None:
            raise _not_leading()
        refused: list[str] = []
        state, now_ns = self._desk.machine.store, self._now_ns()
        waiting: dict[int, _Waiting] = {}
        for report in reports:
            row = state.nodes.get(report.node_id)
            if row is None or row.status in CUT_OFF:
                refused.append(report.node_id)
                continue
            number = core.add(report, now_ns)
            if number not in waiting:
                waiting[number] = self._waiting.setdefault(number, _Waiting())
        self._poked.set()
        for one in waiting.values():
            await one.done.wait()
            if one.error is not None:
                raise one.error
        return refused

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        core = self._core = ClientUpdatesCore()
        try:
            task_status.started()
            while True:
                await self._wait_due(core)
                await self._write(core)
        finally:
            self._core = None
            for number in list(self._waiting):
                self._answer(number, _not_leading())

    async def _wait_due(self, core: ClientUpdatesCore) -> None:
        while (due_ns := core.wake_at_ns()) is None or due_ns > self._now_ns():
            self._poked = trio.Event()
            pause_s = 3600.0 if due_ns is None else (due_ns - self._now_ns()) / NS
            with trio.move_on_after(pause_s):
                await self._poked.wait()

    async def _write(self, core: ClientUpdatesCore) -> None:
        batches = core.wake(
            self._desk.machine.store,
            self._now_ns(),
            time_ns=self._desk.proposals.now_ns(),
            new_id=self._desk.env.new_id,
        )
        error = None
        for batch in batches:
            for node_id, dropped in batch.strange.items():
                self._desk.log.warn("report_on_others_dropped", node_id=node_id, updates=dropped)
            error = await self._propose(batch) or error
        for number in {batch.number for batch in batches}:
            self._answer(number, error)

    async def _propose(self, batch: Batch) -> FedschedError | None:
        try:
            await self._desk.proposals.propose(batch.command)
        except FedschedError as error:
            return error
        return None

    def _answer(self, number: int, error: FedschedError | None) -> None:
        waiting = self._waiting.pop(number, None)
        if waiting is not None:
            waiting.error = error
            waiting.done.set()

    def _now_ns(self) -> int:
        return int(self._desk.env.now() * NS)


def _not_leading() -> Unavailable:
    return Unavailable("this server does not lead (any more)", hint="send the report again")
