"""Where a call runs: the right region, then the leader or this server's own state, new enough.

    who are you? -> this region? -> leader's business: here, or passed on once -> read: wait until new enough -> handler

A call for the leader that reaches another server is passed on and answered only when this server has itself applied
what the leader did: whoever wrote through a server can read it back from the same one. When the leader changes on the
way the call is tried again until its deadline. That is safe for writes because every write carries a request id, and a
request is carried out once.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, Final

import trio
from msgspec import structs

from fedsched.env.env import Env
from fedsched.model.errors import FedschedError, NotFound, Unavailable
from fedsched.raft.errors import NoQuorumRead, NotLeader, OutcomeUnknown, ProposalLost, ProposalRefused
from fedsched.raft.membership import ServerInfo
from fedsched.raft.runner import RaftRunner
from fedsched.rpc.body import Answer, Body
from fedsched.rpc.context import ReplyMeta, RequestID
from fedsched.rpc.method import RunsAt
from fedsched.rpc.relay import RunsInCircles, relay
from fedsched.rpc.server_side import CallContext, ServeHere
from fedsched.server.peers import PeerLinks
from fedsched.telemetry.log import Logger

PATIENCE_S: Final = 10.0
"""How long a call waits for a leader when its caller set no deadline: long enough for two elections in a row."""
RETRY_S: Final = (0.02, 0.25)
"""Pauses between attempts: the first is shorter than a heartbeat, the last spares a region without a quorum."""
_TRY_AGAIN = (NotLeader, NoQuorumRead, OutcomeUnknown, ProposalLost, ProposalRefused, RunsInCircles)


class UnknownRegion(NotFound):
    """The call names a region that this server has no way to."""

    code = "unknown_region"


class NoLeader(Unavailable):
    """The region has no leader just now."""

    code = "no_leader"


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
        env: Env,
        log: Logger,
    ) -> None:
        self._region = region
        self._me = me
        self._raft = raft
        self._state_index = state_index
        self._peers = peers
        self._log = log
        self._session = env.new_id()
        self._numbers = count(1)

    async def __call__(self, context: CallContext, request: Body[Any], serve_here: ServeHere) -> Answer:
        method, meta = context.method, context.meta
        if meta.region not in ("", self._region):
            raise UnknownRegion(
                f"no route to region {meta.region!r}", hint=f"this server knows only its own region, {self._region!r}"
            )
        if method.runs_at is RunsAt.THIS_AGENT:
            return await serve_here(context, request)
        if method.writes and meta.request_id is None:
            context.meta = structs.replace(meta, request_id=RequestID(session=self._session, seq=next(self._numbers)))
        if method.runs_at is RunsAt.LEADER and (method.writes or not meta.stale):
            answer = await self._until_answered(context, lambda: self._at_leader(context, request, serve_here))
        elif meta.stale or not method.needs_quorum:
            answer = await serve_here(context, request)
        else:
            answer = await self._until_answered(context, lambda: self._read(context, request, serve_here))
        return Answer(answer.reply, self._signed(answer.meta))

    async def _at_leader(self, context: CallContext, request: Body[Any], serve_here: ServeHere) -> Answer:
        if self._raft.is_established:
            return await serve_here(context, request)
        leader = self._leader()
        if leader is None or leader.id == self._me().id or context.meta.hops:
            raise NotLeader("this server is not the leader", leader=leader.id if leader else None)
        caller = await self._peers.caller(leader)
        answer = await relay(context, request, caller, me=self._me().name)
        await self._raft.wait_applied(answer.meta.applied)
        return answer

    async def _read(self, context: CallContext, request: Body[Any], serve_here: ServeHere) -> Answer:
        await self._raft.read_barrier()
        return await serve_here(context, request)

    async def _until_answered(self, context: CallContext, attempt: Callable[[], Any]) -> Answer:
        """Try until it works, is refused for good, or the time is up; then say what stood in the way."""
        pause_s = RETRY_S[0]
        why: FedschedError | None = None
        with trio.move_on_after(PATIENCE_S):
            while True:
                try:
                    answer: Answer = await attempt()
                    return answer
                except _TRY_AGAIN as error:
                    why = error
                except Unavailable as error:
                    if type(error).code not in (Unavailable.code, NoLeader.code):
                        raise
                    why = error
                if context.meta.hops:
                    raise why  # whoever passed it on knows better where to go next
                with trio.move_on_after(pause_s):
                    await self._raft.wait_role_change()
                pause_s = min(pause_s * 2, RETRY_S[1])
        raise self._given_up(context, why)

    def _given_up(self, context: CallContext, why: FedschedError | None) -> FedschedError:
        if isinstance(why, OutcomeUnknown):
            return why
        leader = self._leader()
        if leader is None:
            return NoLeader(
                f"{context.method.name}: region {self._region!r} has no leader (waited {PATIENCE_S:g} s)",
                hint="are a majority of its servers up? `fedsched operator raft list-peers -stale` shows them",
            )
        return Unavailable(
            f"{context.method.name}: leader {leader.name} did not answer within {PATIENCE_S:g} s: {why}",
            hint="try again, or read with -stale",
        )

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
