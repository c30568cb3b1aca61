"""What this server's clients report, gathered for a moment and passed on to the leader as one call.

A client is told that its report is written when the leader has said so. What is lost on the way (a leader that falls, a
server that stops) is sent again by the clients, who keep a report until they hear of it.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import trio

from fedsched.model.errors import BadRequest, FedschedError
from fedsched.model.ids import uuid_bytes
from fedsched.rpc.methods.node import NodeReportsReply, NodeReportsRequest
from fedsched.rpc.methods.node_frames import NodeReport
from fedsched.server.leader.client_updates_core import BATCH_BYTES, BATCH_IDS, Report, check_shape
from fedsched.server.pace import SHORTEST_S, SOON_S, Pace
from fedsched.telemetry.log import Logger

PENDING_IDS_MAX: Final = 8 * BATCH_IDS
PENDING_BYTES_MAX: Final = 8 * BATCH_BYTES
"""Updates that wait here, and their details; whoever brings more waits too, and so does its client."""

Send = Callable[[NodeReportsRequest], Awaitable[NodeReportsReply]]
Written = Callable[[int], None]
"""Told the number of a report that is in the log."""


class _Waiting(NamedTuple):
    report: Report
    number: int
    written: Written


class Reports:
    """Between this server's streams and the leader."""

    def __init__(self, send: Send, log: Logger) -> None:
        self._send = send
        self.pace = Pace()
        """The server's pace, kept by whoever is woken most."""
        self._log = log
        self._waiting: list[_Waiting] = []
        self._count = 0
        self._bytes = 0
        self._filled = trio.Event()
        self._room = trio.Event()

    async def take(self, node_id: str, said: NodeReport, written: Written) -> None:
        """Take one report; returns when there is room for the next. Refuses one that is out of shape."""
        report = Report(node_id, said.ids, said.statuses, said.healths, said.client, said.client_sizes)
        if said.number < 1:
            raise BadRequest(f"a report of node {node_id!r} has no number", hint="they count up from 1")
        check_shape(report)
        while self._waiting and not self._fits(report):
            if self._room.is_set():
                self._room = trio.Event()
            await self._room.wait()
        self._waiting.append(_Waiting(report, said.number, written))
        self._count += report.cost
        self._bytes += len(report.client)
        self._filled.set()

    def _fits(self, report: Report) -> bool:
        return self._count + report.cost <= PENDING_IDS_MAX and self._bytes + len(report.client) <= PENDING_BYTES_MAX

    async def run(self) -> None:
        """Pass on what comes, a batch at a time, until cancelled."""
        last = -1.0
        while True:
            if not self._waiting:
                self._filled = trio.Event()
                await self._filled.wait()
            if self._count < BATCH_IDS:
                await trio.sleep_until(max(last + SHORTEST_S, trio.current_time() + SOON_S))
            last = trio.current_time()
            await self._pass_on(self._batch())

    def _batch(self) -> list[_Waiting]:
        """The first of those that wait, as many as go into one call."""
        count = size = 0
        taken = 0
        for one in self._waiting:
            count += one.report.cost
            size += len(one.report.client)
            if taken and (count > BATCH_IDS or size > BATCH_BYTES):
                break
            taken += 1
        batch, self._waiting = self._waiting[:taken], self._waiting[taken:]
        self._count -= sum(one.report.cost for one in batch)
        self._bytes -= sum(len(one.report.client) for one in batch)
        self._room.set()
        return batch

    async def _pass_on(self, batch: list[_Waiting]) -> None:
        try:
            reply = await self._send(request_of([one.report for one in batch]))
        except FedschedError as error:
            self._log.warn("reports_not_passed_on", reports=len(batch), why=str(error))
            return
        refused = {reply.refused[at : at + 16] for at in range(0, len(reply.refused), 16)}
        for one in batch:
            if not refused or uuid_bytes(one.report.node_id) not in refused:
                one.written(one.number)


def request_of(reports: list[Report]) -> NodeReportsRequest:
    """Many reports in one."""
    has_healths = any(report.healths for report in reports)
    has_details = any(report.client_sizes for report in reports)
    return NodeReportsRequest(
        nodes=b"".join(bytes.fromhex(report.node_id.replace("-", "")) for report in reports),
        counts=struct.pack(f"<{len(reports)}I", *(report.count for report in reports)),
        ids=b"".join(report.ids for report in reports),
        statuses=b"".join(report.statuses for report in reports),
        healths=b"".join(report.healths or bytes(report.count) for report in reports) if has_healths else b"",
        client=b"".join(report.client for report in reports),
        client_sizes=b"".join(report.client_sizes or bytes(4 * report.count) for report in reports)
        if has_details
        else b"",
    )
