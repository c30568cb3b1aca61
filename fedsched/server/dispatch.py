"""Where a call runs: the right region, then the leader, a node, or this server's own state, new enough.

    who are you? -> another region's business: passed on (`forwarding`)
                 -> leader's business: here, or passed on once -> read: wait until new enough -> handler
                                                                     (and, for a blocking query, until there is news)

A call for the leader that reaches another server is passed on and answered only when this server has itself applied
what the leader did: whoever wrote through a server can read it back from the same one. When the leader changes on the
way the call is tried again until its deadline. That is safe for writes because every write carries a request id, and a
request is carried out once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from typing import Any, Final, NamedTuple, TypeVar

import trio
from msgspec import structs

from fedsched.env.env import Env
from fedsched.model.errors import Busy, FedschedError, Unavailable
from fedsched.raft.errors import NoQuorumRead, NotLeader, OutcomeUnknown, ProposalLost, ProposalRefused
from fedsched.raft.membership import ServerInfo
from fedsched.raft.runner import RaftRunner
from fedsched.rpc.body import Answer, Body
from fedsched.rpc.caller import LinkCaller
from fedsched.rpc.context import ReplyMeta, RequestID
from fedsched.rpc.errors import with_meta
from fedsched.rpc.method import Method, RunsAt
from fedsched.rpc.relay import RunsInCircles, hop_of, relay, was_passed_on_in
from fedsched.rpc.server_side import CallContext, ServeHere
from fedsched.server.forwarding import Forwarding
from fedsched.server.identity import check_allowed
from fedsched.server.node_calls import NodeCalls
from fedsched.server.peers import PeerLinks
from fedsched.server.waits import Look, Looked, StateWaits
from fedsched.telemetry.log import Logger
from fedsched.wire.call_state import Flow

PATIENCE_S: Final = 10.0
"""How long a call waits for a leader when its caller set no deadline: long enough for two elections in a row."""
RETRY_S: Final = (0.02, 0.25)
"""Pauses between attempts: the first is shorter than a heartbeat, the last spares a region without a quorum."""
T = TypeVar("T")


class NoLeader(Unavailable):
    """The region has no leader just now. Programs know this refusal by how its message begins."""

    code = "no_leader"


class Unreached(Unavailable):
    """The leader could not be asked at all."""


_NEVER_HAPPENED = (NotLeader, NoQuorumRead, ProposalLost, ProposalRefused, RunsInCircles, Unreached)


class Way(NamedTuple):
    """How a call gets to the leader, when that is another server."""

    leader_id: str
    caller: LinkCaller


class Dispatch:
    """The policy of a server; plugs into `CallServer`."""

    def __init__(
        self,
        *,
        region: str,
        me: Callable[[], ServerInfo],
        raft: RaftRunner,
        state_index: Callable[[], int],
        peers: PeerLinks,
        waits: StateWaits,
        looks: Mapping[Method[Any, Any], Look],
        nodes: NodeCalls,
        forwarding: Forwarding,
        env: Env,
        log: Logger,
    ) -> None:
        self._region = region
        self._me = me
        self._raft = raft
        self._state_index = state_index
        self._peers = peers
        self._waits = waits
        self._looks = looks
        self._nodes = nodes
        self._forwarding = forwarding
        self._log = log
        self._session = env.new_id()
        self._numbers = count(1)
        self._passed_on: dict[trio.CancelScope, str] = {}
        """Calls under way to a leader elsewhere, by its id."""

    async def run(self) -> None:
        """Call back what was passed on to a leader that was replaced: one that is stopped or cut off never answers."""
        while True:
            leader_id = (await self._raft.wait_role_change()).leader
            for scope, passed_to in list(self._passed_on.items()):
                if leader_id not in (None, passed_to):
                    scope.cancel("another server leads now")

    async def __call__(self, context: CallContext, request: Body[Any], serve_here: ServeHere) -> Answer:
        method, meta = context.method, context.meta
        check_allowed(context)
        if method.writes and meta.request_id is None and method.runs_at is not RunsAt.THIS_AGENT:
            context.meta = structs.replace(meta, request_id=RequestID(session=self._session, seq=next(self._numbers)))
        if meta.region not in ("", self._region):
            return await self._forwarding.answer(context, request)
        if method.runs_at is RunsAt.THIS_AGENT:
            return await serve_here(context, request)
        try:
            if method.runs_at is RunsAt.NODE:
                answer = await self._nodes.answer(context, request, self._read_barrier)
            elif method.runs_at is RunsAt.LEADER and (method.writes or not meta.stale):
                answer = await self._from_leader(context, request, serve_here)
            else:
                answer = await self._from_own_state(context, request, serve_here)
        except FedschedError as refused:
            if _reflects_state(refused) and not refused.details:
                with_meta(refused, self._signed(context.reply_meta))
            raise
        return Answer(answer.reply, self._signed(answer.meta))

    async def _from_leader(self, context: CallContext, request: Body[Any], serve_here: ServeHere) -> Answer:
        async def attempt() -> Answer:
            return await self._serve_at(await self._way_to_leader(context), context, request, serve_here)

        if context.method.flow is Flow.NONE:
            return await self._until_answered(context, attempt)
        # What has streamed cannot be streamed again: only finding the leader is tried more than once.
        way = await self._until_answered(context, lambda: self._way_to_leader(context))
        return await self._serve_at(way, context, request, serve_here)

    async def _way_to_leader(self, context: CallContext) -> Way | None:
        """Whom to pass the call on to; nobody if this server leads itself."""
        if self._raft.is_established:
            return None
        leader = self._leader()
        if leader is None or leader.id == self._me().id or self._was_passed_on(context):
            raise NotLeader("this server is not the leader", leader=leader.id if leader else None)
        try:
            return Way(leader.id, await self._peers.caller(leader))
        except Unavailable as error:
            raise Unreached(f"leader {leader.name}: {error}") from error

    async def _serve_at(
        self, way: Way | None, context: CallContext, request: Body[Any], serve_here: ServeHere
    ) -> Answer:
        if way is None:
            return await serve_here(context, request)
        if context.method.writes and context.method.flow is Flow.NONE:  # carried out once, however often it is sent
            answer = await self._pass_on(way, context, request)
        else:
            answer = await relay(context, request, way.caller, me=hop_of(self._me().name, self._region))
        await self._raft.wait_applied(answer.meta.applied)
        return answer

    async def _pass_on(self, way: Way, context: CallContext, request: Body[Any]) -> Answer:
        if self._raft.role.leader not in (None, way.leader_id):
            raise NotLeader("the leader changed while it was dialled", leader=self._raft.role.leader)
        with trio.CancelScope() as scope:
            self._passed_on[scope] = way.leader_id
            try:
                return await relay(context, request, way.caller, me=hop_of(self._me().name, self._region))
            finally:
                del self._passed_on[scope]
        raise OutcomeUnknown("the leader changed before it answered", hint="try again with the same request id")

    async def _from_own_state(self, context: CallContext, request: Body[Any], serve_here: ServeHere) -> Answer:
        """Answer once this server's state is new enough; a blocking query, once there is news or its time is up."""
        await self._catch_up(context)
        if context.method in self._looks:
            meta = context.meta
            if 0 < meta.min_index >= self._look(context, request).index:
                await self._waits.wait_newer(lambda: self._look(context, request), meta.min_index, meta.max_wait_s)
                await self._catch_up(context)
            index = self._look(context, request).index  # taken before the answer: rather news twice than not at all
            context.reply_meta = structs.replace(context.reply_meta, index=index)
        return await serve_here(context, request)

    async def _catch_up(self, context: CallContext) -> None:
        if context.method.needs_quorum and not context.meta.stale:
            await self._read_barrier(context)

    async def _read_barrier(self, context: CallContext) -> None:
        await self._until_answered(context, self._raft.read_barrier)

    def _look(self, context: CallContext, request: Body[Any]) -> Looked:
        return self._waits.look(self._looks[context.method], request.record(), context)

    async def _until_answered(self, context: CallContext, attempt: Callable[[], Awaitable[T]]) -> T:
        """Try until it works, is refused for good, or the time is up; then say what stood in the way."""
        pause_s = RETRY_S[0]
        why: FedschedError | None = None
        in_doubt = False
        with trio.move_on_after(PATIENCE_S):
            while True:
                doubted_before, in_doubt = in_doubt, True  # as is an attempt that is cut off
                try:
                    return await attempt()
                except _NEVER_HAPPENED as error:
                    why, in_doubt = error, doubted_before
                except OutcomeUnknown as error:
                    why = error
                except Unavailable as error:
                    if type(error).code not in (Unavailable.code, NoLeader.code):
                        raise
                    why = error
                if self._was_passed_on(context):
                    raise why  # whoever passed it on knows better where to go next
                with trio.move_on_after(pause_s):
                    await self._raft.wait_role_change()
                pause_s = min(pause_s * 2, RETRY_S[1])
        if context.method.writes and in_doubt:
            raise OutcomeUnknown(
                f"{context.method.name}: not known to be done after {PATIENCE_S:g} s: {why or 'no answer'}",
                hint="it may still happen: look first, or try again with the same request id",
            )
        raise self._given_up(context, why)

    def _given_up(self, context: CallContext, why: FedschedError | None) -> FedschedError:
        leader = self._leader()
        if leader is None:
            return NoLeader(
                f"No cluster leader: {context.method.name} waited {PATIENCE_S:g} s for one in region {self._region!r}",
                hint="are a majority of its servers up? `fedsched operator raft list-peers -stale` shows them",
            )
        return Unavailable(
            f"{context.method.name}: leader {leader.name} did not answer within {PATIENCE_S:g} s: {why or 'silence'}",
            hint="try again, or read with -stale",
        )

    def _was_passed_on(self, context: CallContext) -> bool:
        """By another server of this region. One of another region does not know who leads here."""
        return was_passed_on_in(self._region, context.meta.hops)

    def _leader(self) -> ServerInfo | None:
        leader_id = self._raft.role.leader
        return self._raft.core.config.server(leader_id) if leader_id else None

    def _signed(self, meta: ReplyMeta) -> ReplyMeta:
        """Fill in what every reply says about freshness."""
        if meta.server:
            return meta
        status = self._raft.core.status()
        return structs.replace(
            meta,
            index=meta.index or self._state_index(),
            applied=self._raft.applier.applied,
            leader_known=self._raft.role.leader is not None,
            last_contact_s=0.0 if self._raft.is_leader else status.leader_contact_ticks * self._raft.settings.tick_s,
            server=self._me().name,
        )


def _reflects_state(error: FedschedError) -> bool:
    """Refusals were decided by looking at something, and say when that was; weather has seen nothing."""
    return 400 <= error.http_status < 500 and not isinstance(error, Busy)
