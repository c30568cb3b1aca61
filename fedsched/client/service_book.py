"""Keeps the region's registry in step with what the allocations of this host offer.

All hooks of a client enter what they want here, and what changed within a moment goes out in one call. Every now and
then servers are asked what they have: a node that was taken for dead has lost its registrations, and its client enters
them again.

The book has no child of its own. Each hook that has services drives it in its own background child; one of them does
the work while the others wait for their turn, so that it goes on as long as there is anybody to work for.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import trio
from msgspec import structs

from fedsched.client.service_book_core import ServiceBookCore
from fedsched.model.errors import FedschedError
from fedsched.model.service import ServiceRegistration
from fedsched.rpc.methods.service import (
    SERVICE_DEREGISTER,
    SERVICE_OF_NODE,
    SERVICE_REGISTER,
    ServiceDeregisterRequest,
    ServiceOfNodeRequest,
    ServiceRegisterRequest,
)

if TYPE_CHECKING:
    from fedsched.client.context import ClientParts

GATHER_S: Final = 0.05
"""Changes within this time go out together."""
CALL_S: Final = 10.0
RETRY_S: Final = (0.5, 30.0)
AUDIT_S: Final = 60.0
"""How often servers are asked what they have; up to half as much longer."""


class ServiceBook:
    """The registrations of one client."""

    def __init__(self) -> None:
        self._core = ServiceBookCore()
        self._turn = trio.Lock()
        self._news = trio.Event()
        self._settled = trio.Event()
        self._settled.set()

    def want(self, owner: str, registrations: Iterable[ServiceRegistration]) -> None:
        """From now on these are all of an owner's; whatever differs is sent as soon as possible."""
        self._core.want(owner, registrations)
        self._wake()

    async def wait_settled(self) -> None:
        """Wait until servers have what is wanted (set a deadline: servers may be out of reach)."""
        while not self._core.is_settled:
            await self._settled.wait()

    def drop(self, owner: str) -> None:
        """Nothing is wanted of this owner any more, and it will not come back."""
        self._core.drop(owner)
        self._wake()

    async def drive(self, parts: ClientParts) -> None:
        """Keep servers informed, for as long as the caller lets it; of several callers one does it."""
        async with self._turn:
            await self._drive(parts)

    async def _drive(self, parts: ClientParts) -> None:
        dice = parts.env.rng("service-book")
        pause_s = RETRY_S[0]
        audit_at = trio.current_time() + AUDIT_S * dice.uniform(0.0, 0.5)
        while True:
            try:
                with trio.fail_after(CALL_S):
                    await self._send(parts)
                    if trio.current_time() >= audit_at:
                        await self._audit(parts)
                        audit_at = trio.current_time() + AUDIT_S * dice.uniform(1.0, 1.5)
                pause_s = RETRY_S[0]
            except (FedschedError, trio.TooSlowError) as weather:
                parts.log.info("services_not_sent", why=str(weather) or "no answer", again_s=pause_s)
                await trio.sleep(pause_s * dice.uniform(0.5, 1.0))
                pause_s = min(pause_s * 2, RETRY_S[1])
                continue
            if self._core.is_settled:
                self._settled.set()
                with trio.move_on_at(audit_at):
                    await self._news.wait()
                await trio.sleep(GATHER_S)

    async def _send(self, parts: ClientParts) -> None:
        while True:
            self._news = trio.Event()
            gone, news = self._core.to_remove(), self._core.to_register()
            if not gone and not news:
                return
            node = parts.node()
            caller = await parts.servers.caller()
            if gone:
                request = ServiceDeregisterRequest(node_id=node.id, secret_id=parts.secret_id, ids=tuple(gone))
                await caller.call(SERVICE_DEREGISTER, request)
                self._core.removed(gone)
            if news:
                wanted = ServiceRegisterRequest(node_id=node.id, secret_id=parts.secret_id, services=tuple(news))
                reply, _ = await caller.call(SERVICE_REGISTER, wanted)
                self._core.registered(news, reply.passed_over)

    async def _audit(self, parts: ClientParts) -> None:
        if self._core.is_empty:
            return
        node = parts.node()
        caller = await parts.servers.caller()
        reply, _ = await caller.call(SERVICE_OF_NODE, ServiceOfNodeRequest(node_id=node.id, secret_id=parts.secret_id))
        self._core.found(_bare(one) for one in reply.services)
        self._note_unsettled()
        await self._send(parts)

    def _wake(self) -> None:
        self._note_unsettled()
        self._news.set()

    def _note_unsettled(self) -> None:
        if self._settled.is_set() and not self._core.is_settled:
            self._settled = trio.Event()


def _bare(one: ServiceRegistration) -> ServiceRegistration:
    """As it was sent: without the indexes that servers put on it."""
    return structs.replace(one, create_index=0, modify_index=0)
