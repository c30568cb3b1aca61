"""Who is at the other end of a connection, as far as that matters before there are tokens.

What servers ask only of each other (`needs="server"` in the method table), and Raft itself, is for servers alone. Under
TLS a server shows a certificate with the name `server.REGION.fedsched`. Without TLS an agent listens on loopback only,
and whoever reaches its server port is taken for a server; nobody who comes in by the HTTP port ever is.

A server of another region is somebody too: it may ask for what servers of all regions do together (`needs="pool"`), and
for nothing that is this region's own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from fedsched.model.errors import FedschedError
from fedsched.rpc.server_side import CallContext
from fedsched.server.tls import TlsContexts

SERVER_ONLY: Final = "server"
POOL_ONLY: Final = "pool"


@dataclass(frozen=True, slots=True)
class Identity:
    """What a link's peer is allowed to be."""

    is_server: bool
    """Of this region."""
    is_far_server: bool = False
    """Of another one."""


SERVER: Final = Identity(is_server=True)
FAR_SERVER: Final = Identity(is_server=False, is_far_server=True)
STRANGER: Final = Identity(is_server=False)
_SERVER_NAME: Final = re.compile(r"server\.[^.]+\.fedsched")


class NotAllowed(FedschedError):
    """The caller is not who may ask this."""

    code = "not_allowed"
    http_status = 403


def identify(certificate: Any, tls: TlsContexts | None) -> Identity:
    """Judge a peer of the server port by its certificate, as `SSLObject.getpeercert` gives it."""
    if tls is None or not tls.dialling.check_hostname:
        return SERVER
    names = {value for kind, value in (certificate or {}).get("subjectAltName", ()) if kind == "DNS"}
    if tls.server_name in names:
        return SERVER
    return FAR_SERVER if any(_SERVER_NAME.fullmatch(name) for name in names) else STRANGER


def check_allowed(context: CallContext) -> None:
    """Refuse what only servers may ask if somebody else does."""
    needs, identity = context.method.needs, context.identity
    allowed = {SERVER_ONLY: (SERVER,), POOL_ONLY: (SERVER, FAR_SERVER)}.get(needs)
    if allowed is not None and identity not in allowed:
        raise NotAllowed(
            f"{context.method.name} is for servers only",
            hint="it is asked on the server port, with a certificate for server.REGION.fedsched",
        )
