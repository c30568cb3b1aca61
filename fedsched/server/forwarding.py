"""Passes calls on to other regions: dials whom the router names, in its order, until one answers.

What another region answers is returned unchanged, refusals included. A server that cannot be reached, or whose link
breaks or falls silent (see `silence`), is followed by the next one of its region, as long as that is safe: a read, or
a write with a request id, which is carried out once however often it is sent. What has begun to stream is not begun
again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import trio

from fedsched.env.env import Env
from fedsched.federation.directory import Directory
from fedsched.federation.route import Outcome, Router, Try, Wanted
from fedsched.model.errors import DeadlineExceeded, FedschedError, Unavailable
from fedsched.rpc.body import Answer, Body
from fedsched.rpc.caller import LinkCaller
from fedsched.rpc.method import RunsAt
from fedsched.rpc.relay import relay
from fedsched.rpc.server_side import CallContext
from fedsched.server.peers import PeerLinks
from fedsched.server.silence import unless_silent
from fedsched.telemetry.log import Logger
from fedsched.telemetry.metrics import Registry, counter
from fedsched.wire.call_state import Flow
from fedsched.wire.errors import LinkClosed

PATIENCE_S: Final = 15.0
"""For a call whose caller set no deadline: the other region may need ten seconds to find itself a leader."""
FORWARDED: Final = counter("server.calls_forwarded", "calls passed on to other regions", labels=("region",))
FAILED: Final = counter("server.forward_failures", "servers of other regions that did not answer", labels=("region",))


class Forwarding:
    """One server's way to all other regions."""

    def __init__(
        self,
        directory: Directory,
        *,
        me: str,
        server_id: str,
        peers: PeerLinks,
        env: Env,
        log: Logger,
        metrics: Registry,
    ) -> None:
        """`me` is what this server leaves in the hops of a call."""
        self._me = me
        self._peers = peers
        self._log = log
        self._router = Router(directory, (me, server_id))
        self._chance = env.rng("forwarding").random
        self._forwarded = metrics.counters(FORWARDED)
        self._failed = metrics.counters(FAILED)
        self.on_failure: Callable[[str], None] = _ignored
        """Told the name of a server that could not be reached, or whose link broke: gossip looks at it at once."""

    async def answer(self, context: CallContext, request: Body[Any]) -> Answer:
        """What the region that the call names says to it. `NoPath` if nobody there answers."""
        method, meta = context.method, context.meta
        is_stream = method.flow is not Flow.NONE
        until = trio.current_effective_deadline()
        deadline = until if is_stream or until < math.inf else trio.current_time() + PATIENCE_S
        wanted = Wanted(
            region=meta.region,
            deadline=deadline,
            hops=meta.hops,
            may_repeat=not is_stream and (not method.writes or meta.request_id is not None),
            wants_leader=method.writes or (method.runs_at is RunsAt.LEADER and not meta.stale),
        )
        route = self._router.route(wanted, trio.current_time(), self._chance)
        while True:
            chosen = route.next_try(trio.current_time())
            try:
                caller = await self._reach(chosen)
            except Unavailable as error:
                self._note_failure(chosen, str(error))
                route.failed(Outcome.NOT_SENT, str(error), trio.current_time())
                continue
            except BaseException:
                route.abandoned()
                raise
            try:
                async with unless_silent(caller.link, chosen.server.name, is_watched=wanted.may_repeat):
                    answer = await self._ask(caller, context, request, math.inf if is_stream else deadline)
            except FedschedError as error:
                if not _is_lost(error, caller):
                    route.answered()  # with a refusal
                    raise
                self._note_failure(chosen, str(error))
                route.failed(Outcome.NO_ANSWER, str(error), trio.current_time())
                continue
            except BaseException:
                route.abandoned()
                raise
            route.answered()
            self._forwarded.labels(meta.region).add()
            return answer

    async def _reach(self, chosen: Try) -> LinkCaller:
        try:
            with trio.fail_at(chosen.dial_until):
                return await self._peers.caller_at(chosen.server.rpc, chosen.server.region)
        except trio.TooSlowError:
            raise Unavailable(f"{chosen.server.name} cannot be reached at {chosen.server.rpc}: no connection") from None

    async def _ask(self, caller: LinkCaller, context: CallContext, request: Body[Any], deadline: float) -> Answer:
        try:
            with trio.fail_at(deadline):
                return await relay(context, request, caller, me=self._me)
        except trio.TooSlowError:
            raise DeadlineExceeded(
                f"{context.method.name}: region {context.meta.region!r} did not answer in time",
                hint="it may still happen: look first, or try again with the same request id",
            ) from None

    def _note_failure(self, chosen: Try, why: str) -> None:
        self._failed.labels(chosen.server.region).add()
        self.on_failure(chosen.server.name)
        self._log.info("forward_failed", server=chosen.server.name, address=chosen.server.rpc, why=why)


def _is_lost(error: FedschedError, caller: LinkCaller) -> bool:
    """Whether the link went before the answer came. A call that was under way hears of it as plain `Unavailable`."""
    return isinstance(error, LinkClosed) or (error.code == Unavailable.code and caller.link.closed is not None)


def _ignored(_: str) -> None:
    """Nobody wants to know."""
