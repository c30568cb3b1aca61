"""The table: who is known, what is believed of them, and a digest to compare two tables by eight bytes.

Members are immutable; a change puts a new one in place. The table may stand on a *ground* shared with others: a
simulated pool of ten thousand would otherwise hold a hundred million rows. In production the ground is empty.

The digest is the XOR of a hash of (name, incarnation, tags) over all members held as alive or suspect. Dead and left
ones do not count: members forget them at different times and would differ for ever.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from types import MappingProxyType
from typing import Final, NamedTuple

from fedsched.codec import cbor
from fedsched.gossip.messages import Address, Alive, Row, State, Versions

NOTHING: Final[Mapping[str, Member]] = MappingProxyType({})
TAGS_LIMITS: Final = cbor.Limits(bytes_max=512, depth_max=1, nodes_max=128)


class Member(NamedTuple):
    """What one member believes of another."""

    name: str
    addr: Address
    inc: int
    state: State
    meta: bytes
    versions: Versions
    changed_at: float
    """When the state last changed, by the local clock; never sent."""

    @property
    def tags(self) -> Mapping[str, str]:
        return tags_of(self.meta)

    @property
    def id(self) -> str:
        return id_of(self.meta)

    @property
    def region(self) -> str:
        return tags_of(self.meta).get("region", "")

    @property
    def is_up(self) -> bool:
        """Alive as far as anybody can be sure: a suspect is not dead."""
        return self.state <= State.SUSPECT

    def claim(self) -> Alive:
        return Alive(self.inc, self.name, self.addr, self.meta, self.versions)

    def row(self) -> Row:
        return Row(self.claim(), self.state)


class Ground(NamedTuple):
    """A finished table that many may stand on."""

    members: Mapping[str, Member]
    order: Sequence[str]
    ring: Sequence[tuple[bytes, str]]
    names_by_id: Mapping[str, str]
    names_by_hash: Mapping[bytes, str]
    digest: int
    up: int
    failed: frozenset[str]


EMPTY_GROUND: Final = Ground(NOTHING, (), (), MappingProxyType({}), MappingProxyType({}), 0, 0, frozenset())


class Members:
    """One member's table."""

    def __init__(self, ground: Ground = EMPTY_GROUND) -> None:
        self._ground = ground
        self._own: dict[str, Member | None] = {}
        self._ids: dict[str, str] = {}
        self._hashes: dict[bytes, str] = {}
        self.order: Sequence[str] = ground.order
        """All names, in no particular order: to draw from by number. Copied before the first change."""
        self._ring: Sequence[tuple[bytes, str]] = ground.ring
        """All names by their hash: an order that all members share without a word."""
        self.digest = ground.digest
        self.up = ground.up
        """How many are alive or suspect."""
        self.failed: set[str] = set(ground.failed)
        """Who is held as dead."""
        self.version = 0
        """Rises with every change."""

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self) -> Iterator[Member]:
        for name in self.order:
            member = self.get(name)
            assert member is not None, name
            yield member

    def get(self, name: str) -> Member | None:
        if name in self._own:
            return self._own[name]
        return self._ground.members.get(name)

    def put(self, member: Member) -> None:
        name = member.name
        old = self.get(name)
        self.version += 1
        if old is None:
            order = self.order
            self.order = order = order if isinstance(order, list) else list(order)
            order.append(name)
            self._ring = ring = self._ring if isinstance(self._ring, list) else list(self._ring)
            insort(ring, (name_hash(name), name))
            self._hashes[name_hash(name)] = name
        elif old.state <= State.SUSPECT:
            self.digest ^= row_hash(name, old.inc, old.meta)
            self.up -= 1
        if member.state <= State.SUSPECT:
            self.digest ^= row_hash(name, member.inc, member.meta)
            self.up += 1
        if member.state is State.DEAD:
            self.failed.add(name)
        else:
            self.failed.discard(name)
        if old is None or old.meta != member.meta:
            self._ids[member.id] = name
        self._own[name] = member

    def remove(self, name: str) -> None:
        """Forget a member that is dead or has left."""
        old = self.get(name)
        if old is None:
            return
        assert not old.is_up, f"{name} is removed while it is up"
        self.version += 1
        self.order = [other for other in self.order if other != name]
        self._ring = [place for place in self._ring if place[1] != name]
        self.failed.discard(name)
        self._own[name] = None

    def next_on_ring(self, name: str) -> Member | None:
        """The next alive member, going round by hash from this one; None if there is no other.

        A suspect is looked after by its accusers; who stands behind it may have lost its only watcher.
        """
        ring = self._ring
        at = bisect_right(ring, (name_hash(name), name))
        for step in range(len(ring)):
            member = self.get(ring[(at + step) % len(ring)][1])
            if member is not None and member.state is State.ALIVE:
                return member if member.name != name else None
        return None

    def name_with_id(self, server_id: str) -> str | None:
        if not server_id:
            return None
        return self._ids.get(server_id) or self._ground.names_by_id.get(server_id)

    def name_with_hash(self, hashed: bytes) -> str | None:
        return self._hashes.get(hashed) or self._ground.names_by_hash.get(hashed)

    def as_ground(self) -> Ground:
        """This table as it is now, for others to stand on."""
        members = {member.name: member for member in self}
        return Ground(
            members,
            tuple(members),
            tuple(self._ring),
            {member.id: name for name, member in members.items()},
            {name_hash(name): name for name in members},
            self.digest,
            self.up,
            frozenset(self.failed),
        )


@lru_cache(maxsize=32768)
def name_hash(name: str) -> bytes:
    """Eight bytes that stand for a name in summaries."""
    return blake2b(name.encode(), digest_size=8, person=b"name").digest()


@lru_cache(maxsize=32768)
def row_hash(name: str, inc: int, meta: bytes) -> int:
    """What a member that is up adds to the digest."""
    hashed = blake2b(f"{name}/{inc}/".encode(), digest_size=8, person=b"row")
    hashed.update(meta)
    return int.from_bytes(hashed.digest(), "big")


def encode_tags(tags: Mapping[str, str]) -> bytes:
    """Tags as they travel; the same bytes for equal tags."""
    return cbor.dumps_sorted(dict(tags))


@lru_cache(maxsize=32768)
def tags_of(meta: bytes) -> Mapping[str, str]:
    """The tags in `meta`, empty if it holds anything else: one odd member must not stop the others."""
    if not meta:
        return MappingProxyType({})
    try:
        tags = cbor.loads(meta, TAGS_LIMITS)
    except cbor.CodecError:
        return MappingProxyType({})
    if type(tags) is not dict or not all(type(k) is str and type(v) is str for k, v in tags.items()):
        return MappingProxyType({})
    return MappingProxyType(tags)


def id_of(meta: bytes) -> str:
    """The server's id: it tells a server that moved from two that share a name."""
    return tags_of(meta).get("id", "")


def versions_are_sound(versions: Versions) -> bool:
    low, high, _, low_application, high_application, _ = versions
    return 0 < low <= high and 0 < low_application <= high_application


def odd_version(rows: Sequence[Row], ours: Versions) -> str | None:
    """The member whose spoken version somebody else does not understand; None if all understand all."""
    everybody = [("", ours), *((row.claim.node, row.claim.versions) for row in rows if row.state <= State.SUSPECT)]
    low = max(v[0] for _, v in everybody)
    high = min(v[1] for _, v in everybody)
    low_application = max(v[3] for _, v in everybody)
    high_application = min(v[4] for _, v in everybody)
    for name, versions in everybody:
        if not low <= versions[2] <= high or not low_application <= versions[5] <= high_application:
            return name or "this member"
    return None
