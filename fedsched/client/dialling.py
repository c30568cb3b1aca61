"""How a client reaches a server: a websocket to its server port, or to the HTTP port of an agent that is named so."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Final

import trio

from fedsched.wire.address import Address, parse_address, split_host_port
from fedsched.wire.groups import open_plain_nursery
from fedsched.wire.link import Handler, Link, open_link
from fedsched.wire.websocket import connect_websocket

SERVER_PORT: Final = 4647
DIAL_S: Final = 10.0
"""For the connection and both handshakes."""

Dial = Callable[[str, Handler | None], AbstractAsyncContextManager[Link]]
"""Opens a link to an address and serves the calls that come over it."""


@dataclass(frozen=True, slots=True)
class ClientTls:
    """With what a client shows itself, and the name that whoever it dials has to have."""

    context: ssl.SSLContext
    server_name: str


def server_address(text: str, *, is_tls: bool) -> Address:
    """Read a server's address: `host`, `host:port`, or a URL of an agent's HTTP port."""
    if "://" in text:
        return parse_address(text)
    host, port = split_host_port(text, SERVER_PORT)
    return Address(host, port, is_tls)


def make_dial(tls: ClientTls | None) -> Dial:
    """The usual way."""

    @asynccontextmanager
    async def dial(text: str, handler: Handler | None) -> AsyncIterator[Link]:
        address = server_address(text, is_tls=tls is not None)
        async with open_plain_nursery() as nursery:
            with trio.fail_after(DIAL_S):
                carrier = await connect_websocket(
                    nursery,
                    address,
                    ssl_context=tls.context if tls else None,
                    server_name=tls.server_name if tls else "",
                )
            async with open_link(carrier, is_opener=True, handler=handler) as link:
                with trio.fail_after(DIAL_S):
                    await link.wait_ready()
                yield link
            nursery.cancel_scope.cancel("the link is over")

    return dial
