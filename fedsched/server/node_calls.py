"""Calls to the agents on nodes: any server takes one, and whichever holds the node's link passes it on to the client.

    caller -> any server -> the server with the node's link -> the client

Nobody keeps a table of who holds which link: a server that does not have it asks the others, all at once, and
remembers the answer until it turns out wrong. Streams go straight through with their credit, so a slow reader slows
what is read on the node and fills nobody's memory. A link that is lost on the way ends the call; whoever follows a log
goes on from its place with another one.

The caller's token stays with the servers: a client is told who asks, never with what.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import trio
from msgspec import structs

from fedsched.model.errors import BadRequest, FedschedError, NotFound, Unavailable
from fedsched.model.ids import is_uuid
from fedsched.model.node import NodeStatus
from fedsched.raft.membership import ServerInfo
from fedsched.rpc.body import Answer, Body
from fedsched.rpc.caller import LinkCaller
from fedsched.rpc.method import Method
from fedsched.rpc.methods.alloc_access import ALLOC_EXEC
from fedsched.rpc.methods.node import NodeRequest
from fedsched.rpc.methods.node_calls import ALLOC_STATS, NODE_HAS_LINK, NODE_STATS, NodeHasLinkReply
from fedsched.rpc.relay import hop_of, relay, was_passed_on_in
from fedsched.rpc.server_side import CallContext, Handler
from fedsched.server.desk import Desk
from fedsched.server.uplinks import Uplinks
from fedsched.state.tables.nodes import NodeRow
from fedsched.wire.call_state import Flow
from fedsched.wire.link import Link

ASK_S: Final = 2.0
"""A server that takes longer to say whether it has a link counts as one that has not."""
OTHERS_S: Final = 0.1
"""Once one has said yes, the others have so long to say that they heard from the node more recently."""
SILENT_S: Final = 20.0
"""A link that is well is heard within its keep-alive time, 15 s; one that is silent for longer may be a leftover."""
PATIENCE_S: Final = 3.0
"""A client whose server has gone is with another one after about a second."""
PAUSE_S: Final = (0.05, 0.5)
NOT_WAITED_FOR: Final = frozenset({NODE_STATS.name, ALLOC_STATS.name})
"""Figures that go beside something else: whoever asks rather does without than waits."""
REMEMBERED_MAX: Final = 10_000
DOWN: Final = frozenset({NodeStatus.DOWN.value, NodeStatus.DISCONNECTED.value})

CatchUp = Callable[[CallContext], Awaitable[object]]
"""Waits until this server's state is as new as the region's."""


class NoNodeLink(Unavailable):
    """No server holds a link of the node's client just now."""

    code = "no_node_link"


class NodeLinkLost(Unavailable):
    """The link to the node was lost while it worked on the call."""

    code = "node_link_lost"


class _Wanted(NamedTuple):
    row: NodeRow
    namespace: str
    """Of the allocation, if one is named."""


class NodeCalls:
    """One server's part in calls to nodes."""

    def __init__(self, desk: Desk, uplinks: Uplinks) -> None:
        self._desk = desk
        self._uplinks = uplinks
        self._holders: dict[str, str] = {}
        """Which server held a node's link the last time, by node id; the oldest are forgotten."""

    def handlers(self) -> Mapping[Method[Any, Any], Handler]:
        return {NODE_HAS_LINK: self.has_link}

    async def has_link(self, request: NodeRequest, context: CallContext) -> NodeHasLinkReply:
        row = self._desk.machine.store.nodes.get(request.node_id)
        link = self._uplinks.link_of(row.slot) if row is not None else None
        return NodeHasLinkReply(has_link=True, silent_s=link.silent_s) if link is not None else NodeHasLinkReply()

    async def answer(self, context: CallContext, request: Body[Any], catch_up: CatchUp) -> Answer:
        """Bring one call to its node and the answer back."""
        wanted = await self._wanted(request.record(), context, catch_up)
        if wanted.namespace:
            context.meta = structs.replace(context.meta, namespace=wanted.namespace)
        row, is_passed_on = wanted.row, was_passed_on_in(self._desk.region, context.meta.hops)
        if is_passed_on:
            return await self._over_own_link(context, request, row)
        if context.method is ALLOC_EXEC:
            record = structs.replace(request.record(), user=context.peer)
            self._desk.log.info("exec_asked", alloc_id=record.alloc_id, task=record.task, user=record.user)
            request = Body(request.kind, record=record)
        return await self._until_found(context, request, row)

    # ---- which node -----------------------------------------------------------------------------------------

    async def _wanted(self, record: Any, context: CallContext, catch_up: CatchUp) -> _Wanted:
        """The node that a request means. What this server has not heard of yet may be new: it asks the region once."""
        try:
            return self._look_up(record)
        except NotFound:
            if not context.meta.stale:
                await catch_up(context)
        return self._look_up(record)

    def _look_up(self, record: Any) -> _Wanted:
        state = self._desk.machine.store
        namespace, node_id = "", getattr(record, "node_id", "")
        alloc_id = getattr(record, "alloc_id", "")
        if alloc_id:
            slot = state.allocations.slot_of(alloc_id) if is_uuid(alloc_id) else -1
            alloc = state.allocations.get(alloc_id) if slot >= 0 else None
            if alloc is None:
                raise NotFound(f"alloc not found: {alloc_id[:64]!r}", hint="`fedsched alloc list` shows them")
            namespace, node_id = alloc.namespace, alloc.node_id
        if not node_id:
            raise BadRequest("neither a node nor an allocation is named", hint="give the whole id of one")
        row = state.nodes.get(node_id)
        if row is None:
            raise NotFound(f"node not found: {node_id[:64]!r}", hint="`fedsched node status` lists them")
        return _Wanted(row, namespace)

    # ---- the way there --------------------------------------------------------------------------------------

    async def _until_found(self, context: CallContext, request: Body[Any], row: NodeRow) -> Answer:
        """Try to reach the node; one that is only changing servers is waited for."""
        pause_s = PAUSE_S[0]
        deadline = trio.current_time() + (0.0 if context.method.name in NOT_WAITED_FOR else PATIENCE_S)
        while True:
            try:
                return await self._attempt(context, request, row)
            except NoNodeLink:
                self._holders.pop(row.id, None)
                row = self._desk.machine.store.nodes.get(row.id) or row
                if row.status in DOWN or trio.current_time() + pause_s >= deadline:
                    raise self._unreached(row) from None
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S[1])

    async def _attempt(self, context: CallContext, request: Body[Any], row: NodeRow) -> Answer:
        link = self._uplinks.link_of(row.slot)
        if link is not None and link.silent_s < SILENT_S:
            return await self._ask_client(context, request, row, link)
        holder = await self._holder(row, must_check=context.method.flow is Flow.BOTH)
        if holder is None:
            return await self._over_own_link(context, request, row)  # silent as it may be, there is no other
        try:
            # What streams goes over a link of its own, so that no write to the leader queues behind it.
            is_short = context.method.flow is Flow.NONE
            caller = await (self._desk.peers.caller if is_short else self._desk.peers.bulk_caller)(holder)
        except Unavailable as error:
            self._desk.log.info("node_holder_unreached", node_id=row.id, server=holder.name, why=str(error))
            raise NoNodeLink(f"{holder.name} is not reached") from error
        self._remember(row.id, holder.id)
        with _lost_as(f"server {holder.name}, which held the link to node {row.name or row.id}, was lost"):
            return await relay(context, request, caller, me=hop_of(self._desk.me.name, self._desk.region))

    async def _over_own_link(self, context: CallContext, request: Body[Any], row: NodeRow) -> Answer:
        link = self._uplinks.link_of(row.slot)
        if link is None:
            raise NoNodeLink(f"{self._desk.me.name} holds no link of node {row.id}")
        return await self._ask_client(context, request, row, link)

    async def _ask_client(self, context: CallContext, request: Body[Any], row: NodeRow, link: Link) -> Answer:
        context.meta = structs.replace(context.meta, token="", request_id=None)
        with _lost_as(f"the link to node {row.name or row.id} was lost"):
            return await relay(context, request, LinkCaller(link), me=hop_of(self._desk.me.name, self._desk.region))

    def _unreached(self, row: NodeRow) -> NoNodeLink:
        name = f"{row.name} ({row.id})" if row.name else row.id
        if row.status in DOWN:
            return NoNodeLink(
                f"node {name} is {row.status}, its client cannot be asked",
                hint=f"`fedsched node status {row.id[:8]}` shows since when; start its agent, or its network, again",
            )
        return NoNodeLink(
            f"node {name} is {row.status}, but its client has no link to any server just now",
            hint="it may be reconnecting: try again in a moment, and look at its agent's log if that lasts",
        )

    # ---- who holds the link ---------------------------------------------------------------------------------

    async def _holder(self, row: NodeRow, *, must_check: bool) -> ServerInfo | None:
        """Another server that holds the link of a node.

        What is remembered may be wrong, and is then found out when the call fails there. A call that streams to the
        node must not be sent in vain, since what it has streamed by then is gone: that one checks first.
        """
        known = self._server(self._holders.get(row.id, ""))
        if known is not None:
            if not must_check:
                return known
            if (await self._ask(known, row.id)).has_link:
                return known
        return await self._ask_all(row.id)

    async def _ask_all(self, node_id: str) -> ServerInfo | None:
        """Ask every other server; of several the one that heard from the node last, for it has moved there."""
        found: list[tuple[float, str, ServerInfo]] = []

        async def ask(server: ServerInfo) -> None:
            reply = await self._ask(server, node_id)
            if reply.has_link and reply.silent_s < SILENT_S:
                found.append((reply.silent_s, server.id, server))
                scope.deadline = min(scope.deadline, trio.current_time() + OTHERS_S)

        with trio.move_on_after(ASK_S) as scope:
            async with trio.open_nursery() as nursery:
                for server in self._others():
                    nursery.start_soon(ask, server)
        return min(found)[2] if found else None

    async def _ask(self, server: ServerInfo, node_id: str) -> NodeHasLinkReply:
        try:
            with trio.fail_after(ASK_S):
                caller = await self._desk.peers.caller(server)
                reply, _ = await caller.call(NODE_HAS_LINK, NodeRequest(node_id=node_id))
                return reply
        except (FedschedError, trio.TooSlowError) as weather:
            self._desk.log.debug("node_link_not_told", server=server.name, node_id=node_id, why=str(weather))
            return NodeHasLinkReply()

    def _others(self) -> list[ServerInfo]:
        return [server for server in self._desk.raft.core.config.servers if server.id != self._desk.me.id]

    def _server(self, server_id: str) -> ServerInfo | None:
        return next((server for server in self._others() if server.id == server_id), None)

    def _remember(self, node_id: str, server_id: str) -> None:
        self._holders.pop(node_id, None)
        self._holders[node_id] = server_id
        if len(self._holders) > REMEMBERED_MAX:
            del self._holders[next(iter(self._holders))]


@contextmanager
def _lost_as(what: str) -> Iterator[None]:
    """Say which of the links on the way was lost; anything else is somebody's own words."""
    try:
        yield
    except Unavailable as error:
        if type(error).code != Unavailable.code:
            raise
        hint = "the node's client dials another server by itself; try again in a moment"
        raise NodeLinkLost(f"{what}: {error.message}", hint=hint) from error
