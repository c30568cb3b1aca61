"""Sockets of one member: datagrams and streams on one port, and where a name leads."""

from __future__ import annotations

import socket as plain_socket
from typing import Final

import trio

from fedsched.gossip.messages import Address
from fedsched.gossip.wire import BadPacket
from fedsched.model.errors import BadRequest, Unavailable
from fedsched.telemetry.log import Logger
from fedsched.wire.address import split_host_port

GOSSIP_PORT: Final = 4648
BIND_TRIES: Final = 8
PLACES_MAX: Final = 32
"""Addresses of one name; a name with more is somebody's mistake, and any of them is as good a way in."""


async def bind(host: str, port: int) -> tuple[trio.socket.SocketType, trio.SocketListener]:
    """Both kinds on one port; one that the system chose for the first may be taken for the second."""
    family = family_of(host)
    for attempt in range(BIND_TRIES):
        udp = trio.socket.socket(family, plain_socket.SOCK_DGRAM)
        try:
            await udp.bind((host, port))
            listeners = await trio.open_tcp_listeners(udp.getsockname()[1], host=udp.getsockname()[0])
            return udp, listeners[0]
        except OSError as error:
            udp.close()
            if port or attempt == BIND_TRIES - 1:
                raise Unavailable(
                    f"cannot listen on {host}:{port} (gossip): {error.strerror or error}",
                    hint="is another agent running here? choose another port with ports.serf",
                ) from error
        except BaseException:
            udp.close()
            raise
    raise AssertionError("unreachable")


def family_of(host: str) -> plain_socket.AddressFamily:
    """Which kind of address a member at this host sends to: it has one socket, and that has one kind."""
    return plain_socket.AF_INET6 if ":" in host else plain_socket.AF_INET


async def resolve(text: str, family: plain_socket.AddressFamily, log: Logger) -> tuple[Address, ...]:
    """Every address of `host`, `host:port` or `[v6]:port`; none, with a line in the log, if it leads nowhere."""
    try:
        host, port = split_host_port(text, GOSSIP_PORT)
        found = await trio.socket.getaddrinfo(host, port, family=family, type=plain_socket.SOCK_DGRAM)
    except (OSError, UnicodeError, BadRequest) as error:
        log.warn("gossip_address_unknown", address=text[:200], why=str(error))
        return ()
    places = dict.fromkeys((str(place[4][0]), int(place[4][1])) for place in found)
    return tuple(places)[:PLACES_MAX]


async def exactly(stream: trio.SocketStream, count: int) -> bytes:
    """So many bytes; `BadPacket` if the stream ends before."""
    found = bytearray()
    while len(found) < count:
        data = await stream.receive_some(min(65_536, count - len(found)))
        if not data:
            raise BadPacket("the stream ended in the middle")
        found += data
    return bytes(found)
