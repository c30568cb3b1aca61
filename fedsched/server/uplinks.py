"""What each node should run, pushed to its client as it changes.

One `Uplink` per open stream. When the applier has carried out a slice of the log, the changed allocations are sorted by
node once, each uplink concerned notes its slots and is woken once; what it then sends is read from the state as it is
at that moment, so that ten changes in a row make one frame. What a client reports itself is not sent back to it.

An uplink that lags so far behind that its list of changed slots is full starts over with everything: that list is the
only thing kept per stream.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import numpy as np
import trio

from fedsched.model.job import Job
from fedsched.rpc.methods.node_frames import WatchFrame, WatchOrigin
from fedsched.rpc.node_watch import pack_own, watch_rows
from fedsched.server.machine import StateMachine
from fedsched.state.changes import AllocChange, Changes
from fedsched.state.columns import Rows, Slots, picked
from fedsched.state.store import State
from fedsched.state.tables.allocations import NO_ID

PENDING_MAX: Final = 20_000
"""Changed slots noted for one node before it is sent everything anew."""
FRAME_MAX: Final = 5_000
"""Allocations in one frame: about half a megabyte."""

VersionKey = tuple[str, str, int, int]


class Uplink:
    """One stream to one node's client."""

    def __init__(self, node_id: str, node_slot: int) -> None:
        self.node_id = node_id
        self.node_slot = node_slot
        self._changed: dict[int, None] = {}
        self._removed: dict[bytes, None] = {}
        self._is_whole = True
        self._sent_index = 0
        self._origins: dict[int, tuple[str, VersionKey]] = {}
        """What was sent under each number, in short: numbers are used again."""
        self._versions: set[VersionKey] = set()
        self._wake = trio.Event()

    @property
    def has_news(self) -> bool:
        return self._is_whole or bool(self._changed or self._removed)

    def note(self, slots: Slots, ids: bytes, *, removed: bool) -> None:
        """Some allocations of this node changed."""
        if removed:
            self._removed |= dict.fromkeys(ids[at : at + 16] for at in range(0, len(ids), 16))
            for slot in slots.tolist():
                self._changed.pop(slot, None)
        else:
            self._changed |= dict.fromkeys(slots.tolist())
        if len(self._changed) + len(self._removed) > PENDING_MAX:
            self.start_over()
        self._wake.set()

    def start_over(self) -> None:
        """Everything may be different: the next frame is a whole one."""
        self._changed.clear()
        self._removed.clear()
        self._is_whole = True
        self._wake.set()

    async def wait_news(self) -> None:
        """Return when there is something to send."""
        while not self.has_news:
            self._wake = trio.Event()
            await self._wake.wait()

    def take(self, state: State) -> list[WatchFrame]:
        """The frames that say all that is new."""
        is_whole, self._is_whole = self._is_whole, False
        removed, self._removed = b"".join(self._removed), {}
        changed, self._changed = self._changed, {}
        if is_whole:
            self._origins.clear()
            self._versions.clear()
            slots = state.allocations.slots_of_node(self.node_slot)
        else:
            slots = np.array(sorted(changed), dtype=np.int64)
        rows = state.allocations.columns.read(slots)
        if not is_whole:
            mine = (rows["used"] != 0) & (rows["node"] == self.node_slot)
            mine &= rows["alloc_modify_index"] > self._sent_index
            slots, rows = slots[mine], picked(rows, mine)
        self._sent_index = state.index
        if not (is_whole or removed or len(slots)):
            return []
        frames = []
        for start in range(0, max(1, len(slots)), FRAME_MAX):
            part = slice(start, start + FRAME_MAX)
            is_first = not start
            frames.append(
                self._frame(
                    state, slots[part], rows[part], is_whole=is_whole and is_first, removed=removed if is_first else b""
                )
            )
        return frames

    def _frame(self, state: State, slots: Slots, rows: Rows, *, is_whole: bool, removed: bytes) -> WatchFrame:
        origins, jobs = self._new_origins(state, rows)
        cold = state.allocations.cold
        own, own_sizes = pack_own([cold.plan.get(slot) or b"" for slot in slots.tolist()])
        kin = [cold.kin.get(slot) or b"" for slot in slots.tolist()] if rows["kin_crc"].any() else []
        return WatchFrame(
            index=state.index,
            is_whole=is_whole,
            jobs=tuple(jobs),
            origins=tuple(origins),
            rows=watch_rows(rows),
            own=own,
            own_sizes=own_sizes,
            kin=b"".join(one or NO_ID + NO_ID for one in kin),
            removed=removed,
        )

    def _new_origins(self, state: State, rows: Rows) -> tuple[list[WatchOrigin], list[Job]]:
        origins: list[WatchOrigin] = []
        jobs: list[Job] = []
        for ref in np.unique(rows["origin"]).tolist():
            row = state.allocations.origins.get(ref)
            assert row is not None
            known = (f"{row.evaluation_id}.{row.group}.{row.deployment_id}", row.version_key)
            if self._origins.get(ref) == known:
                continue
            self._origins[ref] = known
            origins.append(
                WatchOrigin(
                    ref=ref,
                    namespace=row.namespace,
                    job_id=row.job_id,
                    job_create_index=row.job_create_index,
                    job_version=row.job_version,
                    group=row.group,
                    eval_id=row.evaluation_id,
                    deployment_id=row.deployment_id,
                    shared=row.shared,
                )
            )
            if row.version_key not in self._versions:
                self._versions.add(row.version_key)
                job = state.jobs.version_by_key(row.version_key)
                if job is not None:
                    jobs.append(job)
        return origins, jobs


class Uplinks:
    """All streams of this server."""

    def __init__(self, machine: StateMachine) -> None:
        self._machine = machine
        self._by_node: dict[int, list[Uplink]] = {}
        machine.listen(self._changed)

    def __len__(self) -> int:
        return sum(len(uplinks) for uplinks in self._by_node.values())

    async def watch(self, node_id: str, node_slot: int) -> AsyncIterator[WatchFrame]:
        """The frames for one node: a whole one, then what changes. Ends when the node's slot is another's."""
        uplink = Uplink(node_id, node_slot)
        self._by_node.setdefault(node_slot, []).append(uplink)
        try:
            while True:
                await uplink.wait_news()
                known = self._machine.store.nodes.at(node_slot)
                if known is None or known.node_id != node_id:
                    return
                for frame in uplink.take(self._machine.store):
                    yield frame
        finally:
            self._by_node[node_slot].remove(uplink)
            if not self._by_node[node_slot]:
                del self._by_node[node_slot]

    def _changed(self, gathered: list[Changes]) -> None:
        if not self._by_node:
            return
        for changes in gathered:
            if changes.is_everything:
                for uplinks in list(self._by_node.values()):
                    for uplink in uplinks:
                        uplink.start_over()
            for change in changes.allocs:
                self._note(change)

    def _note(self, change: AllocChange) -> None:
        """Sort the changed allocations by node, and tell the uplinks of those that have one."""
        order = np.argsort(change.node_slots, kind="stable")
        nodes = change.node_slots[order]
        starts = np.flatnonzero(np.r_[True, nodes[1:] != nodes[:-1]]) if len(nodes) else np.empty(0, dtype=np.int64)
        ends = np.r_[starts[1:], len(nodes)]
        slots = change.slots[order]
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            uplinks = self._by_node.get(int(nodes[start]))
            if not uplinks:
                continue
            ids = b""
            if change.removed:
                ids = b"".join(change.ids[16 * at : 16 * at + 16] for at in order[start:end].tolist())
            for uplink in uplinks:
                uplink.note(slots[start:end], ids, removed=change.removed)
