"""Passes calls on to other regions: dials whom the router names, in its order, until one answers.

What another region answers is returned unchanged, refusals included. A server that cannot be reached, or whose link
breaks, is followed by the next one of its region, as long as that is safe: a read, or a write with a request id, which
is carried out once however often it is sent. What has begun to stream is not begun again.

A server that has vanished without a word, or stands still, leaves its link open. So while an answer is waited for the
link is asked for signs of life; when there are none, the server counts as one whose link broke. That a server takes
long to answer is no reason to leave it.
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
from fedsched.telemetry.log import Logger
from fedsched.telemetry.metrics import Registry, counter
from fedsched.wire.call_state import Flow
from fedsched.wire.errors import LinkClosed
from fedsched.wire.groups import open_plain_nursery

PATIENCE_S: Final = 15.0
"""For a call whose caller set no deadline: the other region may need ten seconds to find itself a leader."""
QUIET_S: Final = 1.0
"""After so long without an answer the link is asked for a sign of life."""
SILENT_S: Final = 1.2
"""Which has to come within this: several times the way around the world. Three servers that are all silent cost less
than the five seconds within which a call to a region that is lost should fail."""
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
                if is_stream:
                    answer = await relay(context, request, caller, me=self._me)
                else:
                    quiet_s = 0.0 if route.tried else QUIET_S
                    answer = await self._ask(chosen, caller, context, request, quiet_s)
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
                return await self._peers.caller_at(chosen.server.rpc)
        except trio.TooSlowError:
            raise Unavailable(f"{chosen.server.name} cannot be reached at {chosen.server.rpc}: no connection") from None

    async def _ask(
        self, chosen: Try, caller: LinkCaller, context: CallContext, request: Body[Any], quiet_s: float
    ) -> Answer:
        """Until it answers, falls silent, or the time is up."""
        with trio.move_on_at(chosen.deadline):
            answers: list[Answer] = []
            async with open_plain_nursery() as nursery:
                nursery.start_soon(self._listen, caller, quiet_s, nursery.cancel_scope)
                answers.append(await relay(context, request, caller, me=self._me))
                nursery.cancel_scope.cancel("answered")
            if answers:
                return answers[0]
            self._peers.give_up(chosen.server.rpc, caller.link)
            raise LinkClosed(f"{chosen.server.name} gave no sign of life, and was asked for one")
        raise DeadlineExceeded(
            f"{context.method.name}: {chosen.server.name} of region {context.meta.region!r} did not answer in time",
            hint="it may still happen: look first, or try again with the same request id",
        )

    async def _listen(self, caller: LinkCaller, quiet_s: float, asking: trio.CancelScope) -> None:
        """Watch the link that an answer should come by; give up on it when nothing is heard although it was asked."""
        while True:
            await trio.sleep(quiet_s)
            number = caller.link.ask_for_sign()
            await trio.sleep(SILENT_S)
            if not caller.link.has_sign(number):
                asking.cancel("silent")
                return
            quiet_s = 0.0

    def _note_failure(self, chosen: Try, why: str) -> None:
        self._failed.labels(chosen.server.region).add()
        self.on_failure(chosen.server.name)
        self._log.info("forward_failed", server=chosen.server.name, address=chosen.server.rpc, why=why)


def _is_lost(error: FedschedError, caller: LinkCaller) -> bool:
    """Whether the link went before the answer came. A call that was under way then is told as unavailable."""
    return isinstance(error, LinkClosed) or (error.code == Unavailable.code and caller.link.closed is not None)


def _ignored(_: str) -> None:
    """Nobody wants to know."""
