"""One simulated node: registers, gives signs of life, takes what is pushed to it, and reports what became of it.

What it runs outlives its link, and its failing: tasks go on and end by their scripts while nobody hears of it, and when
the node returns it says so. Nothing here is done per allocation beyond a few entries in dictionaries.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from struct import Struct
from typing import Final

import numpy as np
import trio

from fedsched.bench.simulated_scripts import FOR_EVER, Script, Scripts
from fedsched.codec import to_bytes_sparse
from fedsched.model.node import Node, NodeStatus
from fedsched.rpc.body import Body
from fedsched.rpc.caller import LinkCaller, RawStream
from fedsched.rpc.context import CallMeta
from fedsched.rpc.methods.node import (
    NODE_REGISTER,
    NODE_UPDATE_STATUS,
    NODE_WATCH,
    NodeRegisterRequest,
    NodeStatusRequest,
    NodeWatchRequest,
)
from fedsched.rpc.methods.node_frames import NodeReport, WatchFrame
from fedsched.rpc.node_watch import FRAME_MAX, KNOWN_MAX, FrameReader
from fedsched.state.tables.alloc_columns import CLIENT_TERMINAL, HEALTHY, UNHEALTHY

PACE_S: Final = 0.2
"""Reports of one node are gathered for so long, until servers ask for another pace."""
AGAIN_S: Final = 5.0
"""A report that servers have not confirmed within this time is sent again."""
SOON_S: Final = 1.0
"""Until the next sign of life, as long as servers do not take the node for ready."""
REPORT_MAX: Final = 4_096
"""Allocations in one report."""
ROW: Final = Struct("<16si4xBBB1x4x40x")
"""Of a row (see `WATCH_DTYPE`): id, origin, desired status, client status, health."""
RUN: Final = 1
PENDING, RUNNING, COMPLETE, FAILED = 1, 2, 3, 4
STOPPING: Final = 15
"""Asked to stop, and not yet gone. Never reported."""
LIVE: Final = (PENDING, RUNNING, STOPPING)
HEALTH_SHIFT: Final = 4
GOOD: Final = RUNNING | HEALTHY << HEALTH_SHIFT
BAD: Final = FAILED | UNHEALTHY << HEALTH_SHIFT
STATUS_OF: Final = bytes(value & 15 for value in range(256))
HEALTH_OF: Final = bytes(value >> HEALTH_SHIFT for value in range(256))
ENDED: Final = frozenset(np.flatnonzero(CLIENT_TERMINAL).tolist())

START, HEALTH, END, STOP = range(4)
"""What is due."""


@dataclass(slots=True)
class Tally:
    """What the fleet has seen; for whoever measures."""

    registered: int = 0
    """Nodes, each counted once."""
    down: int = 0
    """Nodes that are failed now."""
    received: int = 0
    """Allocations that arrived and are wanted."""
    running: int = 0
    """Reported as running, and the report was written."""
    complete: int = 0
    failed: int = 0
    stopped: int = 0
    errors: int = 0
    last_error: str = ""


class Timers:
    """What is due when, for all nodes of a link. Allocations that arrive together share an entry."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, SimulatedNode, int, Script, list[bytes]]] = []
        self._numbers = count()

    def add(self, at: float, node: SimulatedNode, what: int, script: Script, identities: list[bytes]) -> None:
        heappush(self._heap, (at, next(self._numbers), node, what, script, identities))

    def run(self, now: float) -> None:
        """Do what is due."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            at, _, node, what, script, identities = heappop(heap)
            node.due(at, what, script, identities)

    def __len__(self) -> int:
        return len(self._heap)


class SimulatedNode:
    """One of them. Whoever runs it calls `report` when `report_at` has come, and `beat` when `beat_at` has."""

    def __init__(
        self, node: Node, scripts: Scripts, tally: Tally, timers: Timers, on_registered: Callable[[], None]
    ) -> None:
        self.node = node
        self._fleet_scripts = scripts
        self._tally = tally
        self._timers = timers
        self._on_registered = on_registered
        self._scripts: dict[int, Script] = {}
        """By origin, as this node was told of them."""
        self._states: dict[bytes, int] = {}
        """What became of each allocation, until servers forget it. Ids are as they lie in a row."""
        self._due: dict[bytes, int] = {}
        """Statuses (and healths) to be reported, by id."""
        self._said: dict[bytes, int] = {}
        """Reported, and not yet known to be written."""
        self._new: set[bytes] = set()
        """Those of which servers have not yet heard anything."""
        self._said_at = 0.0
        self._number = 0
        self._pace_s = PACE_S
        self._stream: RawStream | None = None
        self._scope = trio.CancelScope()
        self._up = trio.Event()
        self._up.set()
        self.was_registered = False
        self.beat_at = math.inf
        self.report_at = math.inf

    # ---- life -----------------------------------------------------------------------------------------------

    @property
    def is_failed(self) -> bool:
        return not self._up.is_set()

    def fail(self) -> None:
        """Fall silent: no signs of life, no reports, no stream. What runs goes on."""
        if not self.is_failed:
            self._up = trio.Event()
            self._scope.cancel("the node failed")
            self._tally.down += 1

    def bring_back(self) -> None:
        """Be heard again."""
        if self.is_failed:
            self._up.set()
            self._tally.down -= 1

    async def wait_up(self) -> None:
        await self._up.wait()

    async def run(self, caller: LinkCaller, slots: trio.CapacityLimiter) -> None:
        """Register and listen, until the stream ends or the node fails."""
        with trio.CancelScope() as self._scope:
            node = self.node
            async with slots:
                await caller.call(NODE_REGISTER, NodeRegisterRequest(node=node))
                await self.beat(caller)
            if not self.was_registered:
                self.was_registered = True
                self._tally.registered += 1
                self._on_registered()
            request = Body(NodeWatchRequest, record=NodeWatchRequest(node_id=node.id, secret_id=node.secret_id))
            self._say_again()
            try:
                async with caller.open_raw(NODE_WATCH, request, CallMeta()) as stream:
                    self._stream, self._number = stream, 0
                    await self._listen(stream)
            except trio.EndOfChannel:
                return
            finally:
                self._stream = None
                self.beat_at = math.inf

    async def _listen(self, stream: RawStream) -> None:
        frames = FrameReader()
        while True:
            frame = frames.take(await stream.receive())
            if frame is not None:
                self.take(frame)

    async def beat(self, caller: LinkCaller) -> None:
        """Give a sign of life. Who was missed has to tell what it runs before it is ready again."""
        self.beat_at = math.inf
        request = NodeStatusRequest(node_id=self.node.id, secret_id=self.node.secret_id)
        reply, _ = await caller.call(NODE_UPDATE_STATUS, request)
        if self.is_failed:
            return
        wait_s = max(SOON_S, reply.heartbeat_ttl_s / 2)
        if reply.status is not NodeStatus.READY:
            self._say_all()
            wait_s = SOON_S
        self.beat_at = trio.current_time() + wait_s

    # ---- what it is told ------------------------------------------------------------------------------------

    def take(self, frame: WatchFrame) -> None:
        """Heed a frame."""
        if frame.pace_ms:
            self._pace_s = frame.pace_ms / 1000
        if frame.written and frame.written == self._number:
            self._confirmed()
        for job in frame.jobs:
            self._fleet_scripts.learn(job)
        for origin in frame.origins:
            ref, script = self._fleet_scripts.origin(origin)
            self._scripts.pop(ref, None)
            self._scripts[ref] = script
        if frame.removed:
            self._forget(np.frombuffer(frame.removed, dtype=">u8").astype("<u8").tobytes())
        if frame.is_whole:
            self._start_over(frame.rows)
        if frame.rows:
            self._heed(frame.rows)
        while len(self._scripts) > KNOWN_MAX:
            del self._scripts[next(iter(self._scripts))]

    def _heed(self, rows: bytes) -> None:
        states = self._states
        wanted: dict[int, list[bytes]] = {}
        updated: dict[int, list[bytes]] = {}
        for identity, origin, desired, status, health in ROW.iter_unpack(rows):
            known = states.get(identity)
            if desired == RUN:
                if known is None and status not in ENDED:
                    wanted.setdefault(origin, []).append(identity)
                elif known == status == RUNNING and not health:
                    updated.setdefault(origin, []).append(identity)
            elif known in LIVE or (known is None and status not in ENDED):
                self._stop(identity, known, self._scripts.get(origin, FOR_EVER))
        for origin, identities in wanted.items():
            self._start(self._scripts.get(origin, FOR_EVER), identities)
        for origin, identities in updated.items():
            self._watch_again(self._scripts.get(origin, FOR_EVER), identities)

    def _start(self, script: Script, identities: list[bytes]) -> None:
        self._tally.received += len(identities)
        if script.starts_after_s:
            self._states.update(dict.fromkeys(identities, PENDING))
            self._timers.add(trio.current_time() + script.starts_after_s, self, START, script, identities)
        else:
            self._begin(script, identities, trio.current_time())

    def _begin(self, script: Script, identities: list[bytes], now: float) -> None:
        self._new.update(identities)
        if script.fails_at_start:
            self._change(identities, BAD if script.is_watched else FAILED)
            return
        self._change(identities, RUNNING if script.healthy_after_s > 0 else GOOD)
        if 0 < script.healthy_after_s < script.runs_for_s:
            self._timers.add(now + script.healthy_after_s, self, HEALTH, script, identities)
        if script.runs_for_s < math.inf:
            self._timers.add(now + script.runs_for_s, self, END, script, identities)

    def _watch_again(self, script: Script, identities: list[bytes]) -> None:
        """Those that joined another deployment as they ran have to prove their health to it."""
        if script.is_watched:
            self._timers.add(trio.current_time() + script.healthy_after_s, self, HEALTH, script, identities)

    def _stop(self, identity: bytes, known: int | None, script: Script) -> None:
        if known == STOPPING:
            return
        self._tally.stopped += 1
        if known == RUNNING and script.stops_after_s:
            self._states[identity] = STOPPING
            self._timers.add(trio.current_time() + script.stops_after_s, self, STOP, script, [identity])
        else:
            self._change((identity,), COMPLETE)

    def due(self, now: float, what: int, script: Script, identities: list[bytes]) -> None:
        """Time has come for some allocations, as far as they have not gone another way meanwhile."""
        states = self._states
        expected = PENDING if what == START else STOPPING if what == STOP else RUNNING
        mine = [identity for identity in identities if states.get(identity) == expected]
        if what == START:
            self._begin(script, mine, now)
        elif what == HEALTH:
            self._change(mine, GOOD)
        elif what == END and script.fails:
            is_young = script.is_watched and script.healthy_after_s >= script.runs_for_s
            self._change(mine, BAD if is_young else FAILED)
        else:
            self._change(mine, COMPLETE)

    def _forget(self, ids: bytes) -> None:
        for at in range(0, len(ids), 16):
            self._states.pop(ids[at : at + 16], None)

    def _start_over(self, rows: bytes) -> None:
        """What servers do not name any more, they have forgotten; unless there is more to come."""
        named = {row[0] for row in ROW.iter_unpack(rows)}
        if len(named) < FRAME_MAX:
            self._states = {one: state for one, state in self._states.items() if one in named}

    # ---- what it says ---------------------------------------------------------------------------------------

    def _change(self, identities: Iterable[bytes], value: int) -> None:
        changed = dict.fromkeys(identities, value)
        if changed:
            self._states.update(dict.fromkeys(changed, value & 15))
            self._due.update(changed)
            self.report_at = min(self.report_at, trio.current_time() + self._pace_s)

    def report(self, now: float) -> None:
        """Say what became of everything that changed, unless the last report is still on its way."""
        if self._said and now >= self._said_at + AGAIN_S:
            self._say_again()
        if self._stream is not None and self._due and not self._said:
            self._send(now)
        self._plan(now)

    def _send(self, now: float) -> None:
        due, rest = self._due, {}
        if len(due) > REPORT_MAX:
            pairs = list(due.items())
            due, rest = dict(pairs[:REPORT_MAX]), dict(pairs[REPORT_MAX:])
        values = bytes(due.values())
        report = NodeReport(
            number=self._number + 1,
            ids=np.frombuffer(b"".join(due), dtype="<u8").astype(">u8").tobytes(),
            statuses=values.translate(STATUS_OF),
            healths=values.translate(HEALTH_OF) if max(values) >> HEALTH_SHIFT else b"",
        )
        assert self._stream is not None
        if self._stream.try_send(to_bytes_sparse(report)):
            self._number += 1
            self._said, self._due, self._said_at = due, rest, now

    def _plan(self, now: float) -> None:
        """When to look again."""
        self.report_at = self._said_at + AGAIN_S if self._said else now + self._pace_s if self._due else math.inf

    def _say_again(self) -> None:
        self._due = {**self._said, **self._due}
        self._said = {}
        self.report_at = trio.current_time()

    def _say_all(self) -> None:
        """Everything that still runs, whether or not it was said before."""
        self._say_again()
        again = {one: RUNNING for one, state in self._states.items() if state == RUNNING}
        self._due = {**again, **self._due}

    def _confirmed(self) -> None:
        said, self._said = self._said, {}
        values = bytes(said.values()).translate(STATUS_OF)
        told = self._new & said.keys()
        self._new -= told
        tally = self._tally
        tally.running += sum(said[one] & 15 == RUNNING for one in told)
        tally.complete += values.count(COMPLETE)
        tally.failed += values.count(FAILED)
        self._plan(trio.current_time())
