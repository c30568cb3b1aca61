"""Opens connections to the server port of other servers, for Raft and for calls."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Final

import trio

from fedsched.model.errors import Unavailable
from fedsched.raft.membership import ServerInfo
from fedsched.server.tls import TlsContexts
from fedsched.wire.address import split_host_port
from fedsched.wire.stream import Preamble, first_reason

RPC_PORT: Final = 4647
UNACKED_MS: Final = 5_000
"""Data that the other side's kernel has not acknowledged for this long ends the connection: a peer that vanished
without a word is dialled again instead of being waited for as long as TCP would."""


class Dialer:
    """Knows how this server reaches the others."""

    def __init__(self, tls: TlsContexts | None = None, overrides: Mapping[str, str] | None = None) -> None:
        self._tls = tls
        self._overrides = dict(overrides or {})

    @property
    def has_tls(self) -> bool:
        return self._tls is not None

    async def open(self, peer: ServerInfo, preamble: Preamble, region: str = "") -> trio.abc.Stream:
        """A stream to this server that has announced its protocol; `Unavailable` if nobody is there.

        Under TLS it has shown that it is a server of that region, our own unless another one is named: where it is may
        have come from anybody.
        """
        return await self.open_address(self._overrides.get(peer.name, peer.address), preamble, region)

    async def open_address(self, address: str, preamble: Preamble, region: str = "") -> trio.abc.Stream:
        host, port = split_host_port(address, RPC_PORT)
        try:
            stream = await trio.open_tcp_stream(host, port)
        except OSError as error:
            raise Unavailable(
                f"cannot reach {address}: {first_reason(error)}", hint="is that server running?"
            ) from error
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKED_MS)
        carrier: trio.abc.Stream = stream
        try:
            if self._tls is not None:
                carrier = trio.SSLStream(stream, self._tls.dialling, server_hostname=self._tls.name_in(region))
            await carrier.send_all(preamble.value)
        except trio.BrokenResourceError as error:
            await trio.aclose_forcefully(stream)
            raise Unavailable(f"{address} broke the connection off: {error.__cause__ or error}") from error
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise
        return carrier
