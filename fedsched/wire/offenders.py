"""Who sends what it should not: a log event and a count per peer, both bounded.

A port that is reached by the wrong program, or by a server that is broken or of another version, is found by *who* does
it. So everything that a connection is closed for is noted here with the address it came from and the server's name if
that is known. Servers are few and always have a count of their own; of all other hosts the first that offend have one
and the rest share one, for a label that strangers could fill without end is no label. Nor can they fill the log: a
peer's first, tenth, hundredth (and so on) offence is a warning, those between are for whoever debugs.
"""

from __future__ import annotations

from typing import Final

from fedsched.telemetry.log import Logger
from fedsched.telemetry.metrics import OTHER, Registry, counter
from fedsched.wire.effects import Closed
from fedsched.wire.errors import ProtocolViolation
from fedsched.wire.frames import FrameError

HOSTS_MAX: Final = 64
"""Hosts with a count of their own, per port."""
SERVERS_MAX: Final = 64
"""Servers by name, per port: more than any region has; a name is only believed if the region knows it."""
PORTS_MAX: Final = 4

OFFENCES: Final = counter(
    "wire.offences",
    "connections closed for what they sent, did not send in time, or for being too many; by the server's name if it is"
    " one, else by host, and `other` for hosts beyond the first that came",
    labels=("port", "peer"),
    series_max=PORTS_MAX * (HOSTS_MAX + SERVERS_MAX + 1),
)
_VIOLATIONS: Final = frozenset({ProtocolViolation.code, FrameError.code})


def is_violation(closed: Closed) -> bool:
    """Whether a link ended because the rules of the wire were broken."""
    return closed.code in _VIOLATIONS


class Offenders:
    """The offences on one port of one agent."""

    def __init__(self, port: str, *, metrics: Registry, log: Logger) -> None:
        self._port = port
        self._counts = metrics.counters(OFFENCES)
        self._log = log
        self._seen: dict[bool, set[str]] = {True: set(), False: set()}
        """Those with a count of their own: servers by name, hosts by address."""

    def note(self, why: str, *, host: str, peer: str, server: str = "") -> None:
        """Somebody at `host` (`peer` with its port) was sent away; `server` is its name if the region knows it."""
        count = self._counts.labels(self._port, self._label(server or host, is_server=bool(server)))
        count.add()
        number = int(count.value)
        say = self._log.warn if str(number).strip("0") == "1" else self._log.debug
        say("peer_refused", port=self._port, peer=peer, server=server, why=why, offences=number)

    def _label(self, name: str, *, is_server: bool) -> str:
        seen, limit = self._seen[is_server], SERVERS_MAX if is_server else HOSTS_MAX
        if name not in seen:
            if len(seen) >= limit:
                return OTHER
            seen.add(name)
        return name
