"""Calls to other servers: one link each, dialled on first use and kept, apart from Raft's own connections."""

from __future__ import annotations

import trio

from fedsched.codec import cbor
from fedsched.model.errors import Unavailable
from fedsched.raft.membership import ServerInfo
from fedsched.rpc.caller import LinkCaller
from fedsched.server.dialling import Dialer
from fedsched.telemetry.log import Logger
from fedsched.wire.limits import LinkLimits
from fedsched.wire.link import Link
from fedsched.wire.stream import Preamble, StreamCarrier

DIAL_S = 3.0
"""A server that does not greet within this time is treated as gone; another one, or another attempt, is quicker."""
SERVER_LIMITS = LinkLimits(frame_bytes_max=16 * 1024 * 1024, calls_max=4096, own_calls_max=4096)
"""Between servers a link carries what many callers asked for, and whole job files."""


class PeerLinks:
    """The links this server has dialled for calls."""

    def __init__(self, dialer: Dialer, *, server_id: str, log: Logger) -> None:
        self._dialer = dialer
        self._greeting = cbor.dumps({"server": server_id})
        self._log = log
        self._links: dict[str, Link] = {}
        self._turns: dict[str, trio.Lock] = {}
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Own the links until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    async def caller(self, peer: ServerInfo) -> LinkCaller:
        """Somebody to ask at this server; `Unavailable` if it cannot be reached."""
        return await self._caller(f"id:{peer.id}", peer)

    async def bulk_caller(self, peer: ServerInfo) -> LinkCaller:
        """Somebody to fetch much from: a link of its own, so that nothing else queues behind it."""
        return await self._caller(f"bulk:{peer.id}", peer)

    async def caller_at(self, address: str, region: str = "") -> LinkCaller:
        """The same for a server of which only the address is known yet, and the region if it is another one."""
        return await self._caller(f"at:{address} in:{region}", ServerInfo("", "", address), region)

    @property
    def has_tls(self) -> bool:
        """Whether what is said here is sealed, and each end knows who the other is."""
        return self._dialer.has_tls

    async def _caller(self, key: str, peer: ServerInfo, region: str = "") -> LinkCaller:
        turn = self._turns.setdefault(key, trio.Lock())
        async with turn:
            link = self._links.get(key)
            if link is None or not link.may_call:
                link = self._links[key] = await self._dial(peer, region)
        return LinkCaller(link)

    async def _dial(self, peer: ServerInfo, region: str) -> Link:
        nursery = self._nursery
        if nursery is None:
            raise Unavailable("this server is not running")
        try:
            with trio.fail_after(DIAL_S):
                stream = await self._dialer.open(peer, Preamble.CALLS, region)
                carrier = StreamCarrier(stream, peer.name or peer.address)
                link = Link(carrier, is_opener=True, limits=SERVER_LIMITS, greeting=self._greeting)
                if self._nursery is not nursery:
                    await trio.aclose_forcefully(stream)
                    raise Unavailable("this server has stopped")
                nursery.start_soon(link.run)
                await link.wait_ready()
        except trio.TooSlowError:
            raise Unavailable(f"{peer.name or peer.address} did not answer within {DIAL_S:g} s") from None
        if link.closed is not None:
            raise Unavailable(f"{peer.name or peer.address} closed the link: {link.closed.message}")
        return link
