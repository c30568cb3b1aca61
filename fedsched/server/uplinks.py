"""What each node should run, pushed to its client as it changes; and what the clients say of it, the other way.

One `Uplink` per open stream, one stream per node: a client that dials again takes the place of its old stream. Changed
allocations gather for a moment (see `pace`) and go out together: they are sorted by node once, each node gets one frame
of all that is new for it, and what is read is the state as it is then, so that ten changes in a row make one frame.
What a client reports itself is not sent back to it; that its reports are written is told along with other news.

A client that does not read fills its stream's window and no more: from then on only the slots that changed are noted,
and when they are too many it is sent everything anew.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

import numpy as np
import trio
from numpy.typing import NDArray

from fedsched.codec import from_bytes
from fedsched.rpc.methods.node_frames import NodeReport
from fedsched.rpc.node_watch import FRAME_MAX
from fedsched.rpc.server_side import Items
from fedsched.server.machine import StateMachine
from fedsched.server.reports import Reports
from fedsched.server.uplink_frames import Encoded, Outgoing, Reading
from fedsched.state.changes import AllocChange, Changes
from fedsched.state.columns import Rows, Slots, picked
from fedsched.state.store import State
from fedsched.wire.link import Link

PENDING_MAX: Final = 20_000
"""Changed slots noted for one node that does not read before it is sent everything anew."""
GATHERED_MAX: Final = 200_000
"""Changed slots gathered for all nodes before they are all looked at anew."""
NODES_AT_ONCE: Final = 16
"""Frames made before everybody else gets a turn."""
PORTION: Final = 1_024
"""Changed allocations read at once, as far as they do not belong to one node."""
ENCODED_AT_ONCE: Final = 4
"""Job versions encoded before everybody else gets a turn."""
STUCK_SHARE: Final = 0.05
STUCK_FEW: Final = 16
"""If more of the streams than these have no room for what is sent, clients are behind: fewer frames help them."""
ACK_S: Final = 0.05
"""How long it waits for company, at least, once a report is written, to say so."""
NOBODY: Final = np.iinfo(np.int64).max
NODES_TABLE: Final = "nodes"


class Uplink:
    """One stream to one node's client."""

    __slots__ = ("_changed", "_is_whole", "_items", "_removed", "link", "node_id", "node_slot", "out", "scope")

    def __init__(self, node_id: str, node_slot: int, items: Items, link: Link | None = None) -> None:
        self.node_id = node_id
        self.node_slot = node_slot
        self.link = link
        """The way to call its client."""
        self.scope = trio.CancelScope()
        """Ends the stream."""
        self.out = Outgoing()
        self._items = items
        self._changed: dict[int, None] = {}
        self._removed: dict[bytes, None] = {}
        self._is_whole = True

    @property
    def is_whole(self) -> bool:
        """Its next frame says everything."""
        return self._is_whole

    @property
    def is_plain(self) -> bool:
        """Nothing waits for this node, so that it can take part in what is done for many."""
        return not (self._is_whole or self._changed or self._removed or self.out.unsent)

    def note(self, slots: Slots) -> None:
        """Some allocations of this node changed."""
        self._changed |= dict.fromkeys(slots.tolist())
        self._bound()

    def note_removed(self, slots: Slots, ids: list[bytes]) -> None:
        """Some allocations of this node are gone."""
        self._removed |= dict.fromkeys(ids)
        for slot in slots.tolist():
            self._changed.pop(slot, None)
        self._bound()

    def _bound(self) -> None:
        if len(self._changed) + len(self._removed) > PENDING_MAX:
            self.start_over()

    def start_over(self) -> None:
        """Everything may be different: the next frame is a whole one."""
        self._changed.clear()
        self._removed.clear()
        self._is_whole = True

    def push(self) -> bool:
        """Send what there is room for; whether that was all."""
        unsent = self.out.unsent
        sent = 0
        while sent < len(unsent) and self._items.try_send(unsent[sent]):
            sent += 1
        if sent:
            self.out.unsent = unsent[sent:]
        return sent == len(unsent)

    def take(self, state: State, encoded: Encoded, sent_index: int, shared_index: int, pace_ms: int) -> int:
        """Put on its way all that waited for this node alone; the index up to which it has then been told everything.

        `shared_index` is the one up to which changes have been shared out among nodes: what came after is not noted
        here yet, unless everything is read anew.
        """
        is_whole, self._is_whole = self._is_whole, False
        removed, self._removed = b"".join(self._removed), {}
        changed, self._changed = self._changed, {}
        index = state.index if is_whole else max(sent_index, shared_index)
        if is_whole:
            self.out.start_over()
            slots = state.allocations.slots_of_node(self.node_slot)
        else:
            slots = np.array(sorted(changed), dtype=np.int64)
        rows = state.allocations.columns.read(slots)
        if not is_whole:
            mine = (rows["used"] != 0) & (rows["node"] == self.node_slot) & (rows["alloc_modify_index"] > sent_index)
            slots, rows = slots[mine], picked(rows, mine)
        if not (is_whole or removed or len(slots) or self.out.written != self.out.told_written):
            return index
        reading = Reading(state, encoded, index, slots, rows)
        for start in range(0, max(1, len(slots)), FRAME_MAX):
            self.out.add(
                reading,
                start,
                start + FRAME_MAX,
                is_whole=is_whole and not start,
                removed=b"" if start else removed,
                pace_ms=pace_ms,
            )
        return index


def _portions(slots: Slots, nodes: Slots) -> Iterator[Slots]:
    """Cut what is sorted by node where a node ends, about every `PORTION`."""
    start = 0
    while start < len(slots):
        end = min(start + PORTION, len(slots))
        end = int(np.searchsorted(nodes, nodes[end - 1], side="right"))
        yield slots[start:end]
        start = end


class Uplinks:
    """All streams of this server."""

    def __init__(self, machine: StateMachine, reports: Reports) -> None:
        self._machine = machine
        self._reports = reports
        self._pace = reports.pace
        self._by_node: dict[int, Uplink] = {}
        self._sent: NDArray[np.int64] = np.full(1024, NOBODY, dtype=np.int64)
        """By node slot: the index that its client has been told of everything up to."""
        self._gathered: list[Slots] = []
        self._gathered_count = 0
        self._shared_index = 0
        """All changes up to this one are with the nodes they concern."""
        self._alone: dict[str, Uplink] = {}
        """Those that something waits for beside what has gathered for all."""
        self._acks: deque[tuple[float, Uplink]] = deque()
        self._encoded = Encoded()
        self._frames = 0
        """Made so far."""
        self._news = trio.Event()
        machine.listen(self._changed)

    def __len__(self) -> int:
        return len(self._by_node)

    def link_of(self, node_slot: int) -> Link | None:
        """The link of this node's client, if its stream is here and it takes calls."""
        uplink = self._by_node.get(node_slot)
        link = uplink.link if uplink is not None else None
        return link if link is not None and link.may_call else None

    # ---- one stream -----------------------------------------------------------------------------------------

    async def serve(self, node_id: str, node_slot: int, items: Items, link: Link | None = None) -> None:
        """Send what this node should run and take what its client reports, until either side ends it.

        Returns when the node is forgotten, or its client has come back over another stream.
        """
        uplink = Uplink(node_id, node_slot, items, link)
        self._open(uplink)
        try:
            with uplink.scope:
                await self._hear(uplink, items)
        finally:
            self._close(uplink)

    async def _hear(self, uplink: Uplink, items: Items) -> None:
        def written(number: int) -> None:
            if number > uplink.out.written:
                uplink.out.written = number
                self._acks.append((trio.current_time(), uplink))
                self._news.set()

        while True:
            try:
                item = await items.receive()
            except trio.EndOfChannel:
                await trio.sleep_forever()
            await self._reports.take(uplink.node_id, from_bytes(item, NodeReport), written)

    def _open(self, uplink: Uplink) -> None:
        before = self._by_node.get(uplink.node_slot)
        if before is not None:
            before.scope.cancel("its client has come back over another stream")
        self._make_room(uplink.node_slot)
        self._by_node[uplink.node_slot] = uplink
        self._sent[uplink.node_slot] = -1
        self._wait_alone(uplink)

    def _make_room(self, node_slot: int) -> None:
        if node_slot >= len(self._sent):
            self._sent = np.concatenate([self._sent, np.full(node_slot + 1, NOBODY, dtype=np.int64)])

    def _close(self, uplink: Uplink) -> None:
        if self._alone.get(uplink.node_id) is uplink:
            del self._alone[uplink.node_id]
        if self._by_node.get(uplink.node_slot) is uplink:
            del self._by_node[uplink.node_slot]
            self._sent[uplink.node_slot] = NOBODY

    # ---- what changes ---------------------------------------------------------------------------------------

    def _changed(self, gathered: list[Changes]) -> None:
        if not self._by_node:
            return
        for changes in gathered:
            if changes.is_everything:
                self._start_over()
            if NODES_TABLE in changes.shrunk:
                self._end_gone()
            for change in changes.allocs:
                if change.removed:
                    self._note_removed(change)
                else:
                    self._gather(change)
        if self._gathered_count > GATHERED_MAX:
            self._start_over()

    def _gather(self, change: AllocChange) -> None:
        """Keep those of nodes whose clients are here; whoever comes later is told everything anyway."""
        self._make_room(int(change.node_slots.max(initial=-1)))
        slots = change.slots[self._sent[change.node_slots] != NOBODY]
        if len(slots):
            self._gathered.append(slots)
            self._gathered_count += len(slots)
            self._news.set()

    def _start_over(self) -> None:
        self._gathered, self._gathered_count = [], 0
        self._encoded.forget()
        self._end_gone()
        for uplink in self._by_node.values():
            uplink.start_over()
            self._wait_alone(uplink)

    def _end_gone(self) -> None:
        """Streams of nodes that are forgotten end."""
        nodes = self._machine.store.nodes
        for slot, uplink in self._by_node.items():
            row = nodes.get(uplink.node_id)  # a slot outlives its node while there are allocations of it
            if row is None or row.slot != slot:
                uplink.scope.cancel("the node is forgotten")

    def _note_removed(self, change: AllocChange) -> None:
        for at, node in enumerate(change.node_slots.tolist()):
            uplink = self._by_node.get(node)
            if uplink is not None:
                uplink.note_removed(change.slots[at : at + 1], [change.ids[16 * at : 16 * at + 16]])
                self._wait_alone(uplink)

    def _wait_alone(self, uplink: Uplink) -> None:
        self._alone[uplink.node_id] = uplink
        self._news.set()

    # ---- sending --------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Pass on what changes, and what clients report, at the server's pace, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._reports.run)
            await self._send_news()

    async def _send_news(self) -> None:
        last, is_stuck = -1.0, False
        before = 0
        while True:
            await self._wait_news()
            due = self._pace.due_at(last, trio.current_time())
            await trio.sleep_until(due)
            last = trio.current_time()
            self._pace.woke(last - due, frames=self._frames - before, is_stuck=is_stuck)
            before = self._frames
            await self._send_gathered()
            await self._send_alone()
            is_stuck = len(self._alone) > max(STUCK_FEW, STUCK_SHARE * len(self._by_node))
            await self._send_acks(last)

    async def _wait_news(self) -> None:
        while not (self._gathered or self._alone):
            self._news = trio.Event()
            with trio.move_on_at(self._acks[0][0] + self._ack_s if self._acks else float("inf")):
                await self._news.wait()
            if self._acks and self._acks[0][0] + self._ack_s <= trio.current_time():
                return

    @property
    def _ack_s(self) -> float:
        return max(ACK_S, self._pace.window_s)

    async def _send_gathered(self) -> None:
        """What changed for many nodes, read and sorted once."""
        state = self._machine.store
        gathered, self._gathered, self._gathered_count = self._gathered, [], 0
        self._shared_index = state.index
        if not gathered:
            return
        slots, nodes = self._sorted_by_node(state, gathered)
        await trio.lowlevel.checkpoint()
        for portion in _portions(slots, nodes):
            await self._encode_ahead(state, portion)
            if self._machine.store is not state:
                return  # everything starts over
            await self._send_portion(state, portion)

    def _sorted_by_node(self, state: State, gathered: list[Slots]) -> tuple[Slots, Slots]:
        """The allocations that changed and whose clients are here and do not know it yet, with their nodes."""
        slots = np.unique(np.concatenate(gathered))
        rows = state.allocations.columns.read(slots)
        nodes: Slots = rows["node"].astype(np.int64)
        self._make_room(int(nodes.max()))
        news = np.flatnonzero(self._is_news(rows))
        order = news[np.argsort(nodes[news], kind="stable")]
        return slots[order], nodes[order]

    def _is_news(self, rows: Rows) -> NDArray[np.bool_]:
        news: NDArray[np.bool_] = (rows["used"] != 0) & (rows["alloc_modify_index"] > self._sent[rows["node"]])
        return news

    async def _encode_ahead(self, state: State, slots: Slots) -> None:
        """Encode what these allocations come from, with turns for everybody else: their frames are then cheap."""
        refs = dict.fromkeys(state.allocations.columns.read(slots)["origin"].tolist())
        for number, ref in enumerate(refs, 1):
            if not number % ENCODED_AT_ONCE:
                await trio.lowlevel.checkpoint()
            self._encoded.ahead(state, ref)

    async def _send_portion(self, state: State, slots: Slots) -> None:
        """Frames for some of the nodes.

        What is read may be newer than the index they are told: what changed after that goes once more, with all else
        that changed then.
        """
        rows = state.allocations.columns.read(slots)
        news = np.flatnonzero(self._is_news(rows))
        order = news[np.argsort(rows["node"][news], kind="stable")]
        slots, rows = slots[order], picked(rows, order)
        nodes = rows["node"]
        starts = np.flatnonzero(np.r_[True, nodes[1:] != nodes[:-1]]) if len(nodes) else order
        ends = [*starts[1:].tolist(), len(nodes)] if len(nodes) else []
        reading = Reading(state, self._encoded, self._shared_index, slots, rows)
        groups = zip(nodes[starts].tolist(), starts.tolist(), ends, strict=True)
        for number, (node, start, end) in enumerate(groups, 1):
            if not number % NODES_AT_ONCE:
                await trio.lowlevel.checkpoint()
            uplink = self._by_node.get(node)
            if uplink is None or self._machine.store is not state:
                continue  # gone meanwhile, or everything starts over
            if not uplink.is_plain:
                uplink.note(slots[start:end])
                self._wait_alone(uplink)
                continue
            uplink.out.add(reading, start, end, pace_ms=self._pace.clients_ms)
            self._frames += 1
            self._sent[node] = reading.index
            if not uplink.push():
                self._wait_alone(uplink)

    async def _send_alone(self) -> None:
        """New streams, slow readers, and those of whose allocations some are gone."""
        alone, self._alone = self._alone, {}
        for number, uplink in enumerate(alone.values(), 1):
            if not number % NODES_AT_ONCE:
                await trio.lowlevel.checkpoint()
            if self._by_node.get(uplink.node_slot) is not uplink:
                continue
            if uplink.is_whole:
                state = self._machine.store
                await self._encode_ahead(state, state.allocations.slots_of_node(uplink.node_slot))
            if uplink.push() and (not uplink.is_plain or uplink.out.written != uplink.out.told_written):
                state = self._machine.store
                sent = int(self._sent[uplink.node_slot])
                self._frames += 1
                sent = uplink.take(state, self._encoded, sent, self._shared_index, self._pace.clients_ms)
                self._sent[uplink.node_slot] = sent
            if not uplink.push():
                self._alone[uplink.node_id] = uplink

    async def _send_acks(self, now: float) -> None:
        """Say that reports are written to those clients that heard nothing else meanwhile."""
        sent = 0
        while self._acks and self._acks[0][0] + self._ack_s <= now:
            _, uplink = self._acks.popleft()
            out = uplink.out
            if out.written == out.told_written or self._by_node.get(uplink.node_slot) is not uplink:
                continue
            if uplink.is_plain:
                self._frames += 1
                out.add_ack(int(self._sent[uplink.node_slot]), self._pace.clients_ms)
                uplink.push()
            if not uplink.is_plain:
                self._wait_alone(uplink)
            sent += 1
            if not sent % NODES_AT_ONCE:
                await trio.lowlevel.checkpoint()
