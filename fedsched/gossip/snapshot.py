"""What a member keeps on disk: enough to find its pool again, and never to speak with an old number.

The bytes carry a checksum; a file that is torn or damaged is refused as a whole, and the member starts as a new one.
That is safe: the incarnation of a new start comes from the wall clock and outranks what came before, and should even
the clock be wrong, others answer its first words with the number it has to beat.
"""

from __future__ import annotations

import zlib
from typing import Any, Final, NamedTuple

from fedsched.codec import cbor
from fedsched.gossip.messages import Address
from fedsched.gossip.wire import INC_MAX, is_name
from fedsched.model.errors import FedschedError

VERSION: Final = 1
EPOCH_S: Final = 1_700_000_000
"""Incarnations of fresh disks count seconds from here; 32 bits last until 2159."""
LIMITS: Final = cbor.Limits(bytes_max=64 * 1024 * 1024, depth_max=4, nodes_max=8_000_000)


class BadSnapshot(FedschedError):
    """The file on disk is damaged, or of a version not known here."""

    code = "bad_gossip_snapshot"


class Snapshot(NamedTuple):
    """As of the moment it was taken."""

    inc: int
    event_ltime: int
    has_left: bool
    """Said farewell: do not rejoin unasked."""
    members: tuple[tuple[str, Address, bool], ...]
    """Name, address, and whether it was up. Failed ones are kept: after a great outage they are all there is."""

    def addresses(self) -> tuple[Address, ...]:
        """Whom to ask after a start, those last seen up first."""
        return tuple(addr for _, addr, _ in sorted(self.members, key=lambda m: not m[2]))


def first_incarnation(stored: int | None, unix_s: float) -> int:
    """What a starting member may say of itself first: above everything it has ever said."""
    by_clock = int(unix_s) - EPOCH_S
    return max(1, min(INC_MAX, max(by_clock, stored + 1 if stored is not None else 0)))


def encode_snapshot(snapshot: Snapshot) -> bytes:
    members = [[name, host, port, up] for name, (host, port), up in snapshot.members]
    body = cbor.dumps([VERSION, snapshot.inc, snapshot.event_ltime, snapshot.has_left, members])
    return zlib.crc32(body).to_bytes(4, "big") + body


def decode_snapshot(data: bytes) -> Snapshot:
    """Raises `BadSnapshot` and nothing else."""
    body = data[4:]
    if len(data) < 5 or zlib.crc32(body) != int.from_bytes(data[:4], "big"):
        raise BadSnapshot("the checksum does not fit")
    try:
        version, inc, ltime, has_left, members, *_ = cbor.loads(body, LIMITS)
        if version != VERSION:
            raise BadSnapshot(f"version {version!r}, this server reads {VERSION}")
        read = tuple(_member(item) for item in members)
    except (cbor.CodecError, ValueError, TypeError) as error:
        raise BadSnapshot(f"not a gossip snapshot: {error}") from error
    if type(inc) is not int or not 0 <= inc <= INC_MAX or type(ltime) is not int or not 0 <= ltime < 2**63:
        raise BadSnapshot("numbers out of range")
    return Snapshot(inc, ltime, bool(has_left), read)


def _member(item: Any) -> tuple[str, Address, bool]:
    name, host, port, up, *_ = item
    if not is_name(name) or type(host) is not str or type(port) is not int or not 0 <= port <= 65535:
        raise ValueError("a member's line")
    return name, (host, port), bool(up)
