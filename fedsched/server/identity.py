"""Who is at the other end of a connection, as far as that matters before there are tokens.

What servers ask only of each other (`needs="server"` in the method table), and Raft itself, is for servers alone. Under
TLS a server shows a certificate with the name `server.REGION.fedsched`. Without TLS an agent listens on loopback only,
and whoever reaches its server port is taken for a server; nobody who comes in by the HTTP port ever is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from fedsched.model.errors import FedschedError
from fedsched.rpc.server_side import CallContext
from fedsched.server.tls import TlsContexts

SERVER_ONLY: Final = "server"


@dataclass(frozen=True, slots=True)
class Identity:
    """What a link's peer is allowed to be."""

    is_server: bool


SERVER: Final = Identity(is_server=True)
STRANGER: Final = Identity(is_server=False)


class NotAllowed(FedschedError):
    """The caller is not who may ask this."""

    code = "not_allowed"
    http_status = 403


def identify(certificate: Any, tls: TlsContexts | None) -> Identity:
    """Judge a peer of the server port by its certificate, as `SSLObject.getpeercert` gives it."""
    if tls is None or not tls.dialling.check_hostname:
        return SERVER
    names = {value for kind, value in (certificate or {}).get("subjectAltName", ()) if kind == "DNS"}
    return SERVER if tls.server_name in names else STRANGER


def check_allowed(context: CallContext) -> None:
    """Refuse what only servers may ask if somebody else does."""
    if context.method.needs == SERVER_ONLY and context.identity != SERVER:
        raise NotAllowed(
            f"{context.method.name} is for servers only",
            hint="it is asked on the server port, with a certificate for server.REGION.fedsched",
        )
