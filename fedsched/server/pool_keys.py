"""Gossip keys of the whole pool: one round over all members for each step, by calls to each of them.

Gossip itself is no way to replace keys: an announcement reaches nearly everybody, and whoever it misses is out. So
every member that is up is called on its server port, and a step is done when all have said so. Keys go over links that
are sealed by TLS, or stay on this machine; wherever people or logs see them, they are named by fingerprints.

    install everywhere -> use everywhere -> (grace) -> remove the former ones everywhere

*use* is refused before every member that is up has the key: whoever lacked it would hear nobody any more. A rotation is
nothing but these steps, so one that was cut short is finished by hand. While one waits to remove the former keys,
members that come back are given the new one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import trio

from fedsched.federation.directory import Directory, Server
from fedsched.gossip.keyring import BadKey, fingerprint, read_key
from fedsched.gossip.keyring_file import KeyStore
from fedsched.model.errors import BadRequest, Conflict, FedschedError, Unavailable
from fedsched.rpc.methods.gossip import (
    GOSSIP_KEYS,
    KeyHolding,
    KeyMember,
    KeyOrder,
    KeyOrderReply,
    KeyringChangeRequest,
    KeyringReply,
    KeyringRotateRequest,
    KeyStep,
)
from fedsched.server.peers import PeerLinks
from fedsched.server.settings import is_loopback_host
from fedsched.telemetry.log import Logger
from fedsched.wire.address import split_host_port

CALL_S: Final = 3.0
KEY_BYTES: Final = 32
LOOK_AGAIN_S: Final = 30.0
GRACE_MAX_S: Final = 30 * 86_400.0
NAMED_MAX: Final = 5
"""Members that an error names; the answer to `list` names them all."""


class Round(NamedTuple):
    """What came of asking everybody the same."""

    operation: str
    fingerprint: str
    rings: dict[str, tuple[str, ...]]
    """Fingerprints by member, of those that answered."""
    failures: dict[str, str]

    def step(self) -> KeyStep:
        return KeyStep(
            operation=self.operation,
            fingerprint=self.fingerprint,
            asked=len(self.rings) + len(self.failures),
            answered=len(self.rings),
            failures=tuple(KeyMember(name=name, error=why) for name, why in sorted(self.failures.items())),
        )


class PoolKeys:
    """One server's part in it: its own ring, and rounds over everybody's."""

    def __init__(
        self,
        store: KeyStore | None,
        directory: Directory,
        server_id: str,
        *,
        members_up: Callable[[], Sequence[str]],
        is_private: bool,
        peers: PeerLinks,
        log: Logger,
    ) -> None:
        """`store` is None where gossip is not sealed. `members_up` gives the names of all members that are up.
        `is_private`: nobody on the network between two machines reads what servers say to this one."""
        self._store = store
        self._directory = directory
        self._me = server_id
        self._members_up = members_up
        self._is_private = is_private
        self._peers = peers
        self._log = log
        self._turn = trio.Lock()
        self._nursery: trio.Nursery | None = None
        self._removal: trio.CancelScope | None = None
        self._came_back = trio.Event()

    async def run(self) -> None:
        """Own the removals that wait for their time."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    def member_came(self) -> None:
        """Somebody joined, perhaps with the former keys only."""
        self._came_back.set()

    # ---- this member ----------------------------------------------------------------------------------------

    async def order(self, order: KeyOrder) -> KeyOrderReply:
        """Carry out what concerns this server's own ring."""
        if not self._is_private:
            raise Unavailable(
                "this server does not take gossip keys: its server port is neither sealed by TLS nor on loopback",
                hint="set tls.ca_file, tls.cert_file and tls.key_file",
            )
        store = self._own_ring()
        match order.operation:
            case "list":
                pass
            case "install":
                await store.install(order.key)
            case "use":
                await store.use(order.fingerprint)
            case "remove":
                await store.remove(order.fingerprint)
            case other:
                raise BadRequest(f"no such operation on gossip keys: {other!r}", hint="list, install, use or remove")
        if order.operation != "list":
            name = order.fingerprint or fingerprint(order.key)
            self._log.info("gossip_key", operation=order.operation, fingerprint=name)
        return KeyOrderReply(fingerprints=store.fingerprints)

    def _own_ring(self) -> KeyStore:
        if self._store is None:
            raise BadKey("gossip is not sealed here: there is no key", hint="set server.encrypt on every server first")
        return self._store

    # ---- everybody ------------------------------------------------------------------------------------------

    async def look(self) -> KeyringReply:
        """Which keys there are, and how many members have each."""
        self._own_ring()
        found = await self._round(KeyOrder(operation="list"))
        return self._reply([found], found)

    async def change(self, request: KeyringChangeRequest) -> KeyringReply:
        """One step, everywhere."""
        self._own_ring()
        async with self._turn:
            match request.operation:
                case "install":
                    key = read_key(request.key)
                    rounds, name = [await self._install(key)], fingerprint(key)
                case "use":
                    name = _fingerprint_in(request.key)
                    rounds = [await self._use(name)]
                case "remove":
                    name = _fingerprint_in(request.key)
                    rounds = [await self._remove(name)]
                case other:
                    raise BadRequest(f"no such operation on gossip keys: {other!r}", hint="install, use or remove")
            return self._reply(rounds, await self._round(KeyOrder(operation="list")), name)

    async def rotate(self, request: KeyringRotateRequest) -> KeyringReply:
        """Install a new key and seal with it; the former ones go when the grace is over."""
        self._own_ring()
        if not 0 <= request.grace_s <= GRACE_MAX_S:
            raise BadRequest(f"a grace of {request.grace_s:g} s", hint="between 0 s and 30 days")
        key = read_key(request.key) if request.key else os.urandom(KEY_BYTES)
        name = fingerprint(key)
        async with self._turn:
            self._call_off_removal()
            rounds = [await self._install(key)]
            if rounds[0].failures:
                raise self._cut_short(rounds[0], name, "nobody seals with it yet")
            rounds.append(await self._use(name))
            if rounds[1].failures:
                raise self._cut_short(rounds[1], name, "members that were reached seal with it; all can read it")
            former = await self._all_but(name)
            if not request.grace_s:
                rounds += [await self._remove(one) for one in former]
            elif former:
                self._begin_removal(key, frozenset(former), request.grace_s)
            removal_in_s = request.grace_s if request.grace_s and former else None
            return self._reply(rounds, await self._round(KeyOrder(operation="list")), name, removal_in_s)

    def _cut_short(self, last: Round, name: str, state: str) -> Conflict:
        return Conflict(
            f"rotation to key {name} stopped at {last.operation!r}: {_named(last.failures)}; {state}",
            hint=f"when they answer: `fedsched operator gossip keyring {last.operation} ...`, then the steps after it;"
            f" `list` shows how far each key has come",
        )

    async def _install(self, key: bytes) -> Round:
        return await self._round(KeyOrder(operation="install", key=key), fingerprint(key))

    async def _use(self, name: str) -> Round:
        seen = await self._round(KeyOrder(operation="list"))
        without = {member: "does not have it" for member, ring in seen.rings.items() if name not in ring}
        if missing := without | seen.failures:
            raise Conflict(
                f"key {name} cannot be used yet: {_named(missing)}",
                hint="install it first; a member without it would hear nobody any more",
            )
        return await self._round(KeyOrder(operation="use", fingerprint=name), name)

    async def _remove(self, name: str) -> Round:
        seen = await self._round(KeyOrder(operation="list"))
        sealing = {member: "seals with it" for member, ring in seen.rings.items() if ring and ring[0] == name}
        if sealing:
            raise Conflict(f"key {name} is in use: {_named(sealing)}", hint="use another one first")
        if not any(name in ring for ring in seen.rings.values()):
            raise BadKey(f"no member has a key {name!r}", hint="`fedsched operator gossip keyring list` shows them")
        return await self._round(KeyOrder(operation="remove", fingerprint=name), name)

    async def _all_but(self, name: str) -> list[str]:
        seen = await self._round(KeyOrder(operation="list"))
        return sorted({one for ring in seen.rings.values() for one in ring} - {name})

    # ---- the removal that waits -----------------------------------------------------------------------------

    def _begin_removal(self, key: bytes, former: frozenset[str], grace_s: float) -> None:
        nursery = self._nursery
        if nursery is None:
            raise Unavailable("this server is stopping")
        self._removal = trio.CancelScope()
        nursery.start_soon(self._removal_child, key, former, self._removal, trio.current_time() + grace_s)

    def _call_off_removal(self) -> None:
        if self._removal is not None:
            self._removal.cancel("another rotation begins")
            self._removal = None

    async def _removal_child(self, key: bytes, former: frozenset[str], scope: trio.CancelScope, due: float) -> None:
        with scope:
            while trio.current_time() < due:
                self._came_back = trio.Event()
                with trio.move_on_at(min(due, trio.current_time() + LOOK_AGAIN_S)):
                    await self._came_back.wait()
                async with self._turn:
                    if not await self._bring_up_to_date(key, former):
                        self._log.info("gossip_rotation_overtaken", fingerprint=fingerprint(key))
                        return
            async with self._turn:
                for name in sorted(former):
                    await self._remove_late(name)

    async def _remove_late(self, name: str) -> None:
        try:
            done = await self._remove(name)
        except FedschedError as refused:
            self._log.warn("gossip_key_not_removed", fingerprint=name, why=refused.message)
        else:
            failures = _named(done.failures) if done.failures else ""
            self._log.info("gossip_key_removed", fingerprint=name, members=len(done.rings), failures=failures)

    async def _bring_up_to_date(self, key: bytes, former: frozenset[str]) -> bool:
        """Give the new key to members that were away when it was installed. False if somebody else has begun to
        replace keys since: then that is what counts."""
        name = fingerprint(key)
        seen = await self._round(KeyOrder(operation="list"))
        if any(set(ring) - former - {name} for ring in seen.rings.values()):
            return False
        behind = {member for member, ring in seen.rings.items() if not ring or ring[0] != name}
        if behind:
            await self._round(KeyOrder(operation="install", key=key), name, behind)
            done = await self._round(KeyOrder(operation="use", fingerprint=name), name, behind)
            self._log.info("gossip_key_passed_on", fingerprint=name, members=len(done.rings))
        return True

    # ---- one round ------------------------------------------------------------------------------------------

    async def _round(self, order: KeyOrder, name: str = "", only: set[str] | None = None) -> Round:
        """Ask every member that is up (or some of them) the same, at once."""
        found = Round(order.operation, name, {}, {})
        servers = {one.name: one for region in self._directory.all_regions() for one in self._directory.servers(region)}
        async with trio.open_nursery() as nursery:
            for member in sorted(self._members_up()):
                if only is None or member in only:
                    nursery.start_soon(self._ask, member, servers.get(member), order, found)
        return found

    async def _ask(self, member: str, server: Server | None, order: KeyOrder, found: Round) -> None:
        try:
            if server is None:
                raise Unavailable("it does not say where its server port is")
            with trio.fail_after(CALL_S):
                found.rings[member] = (await self._order_at(server, order)).fingerprints
        except trio.TooSlowError:
            found.failures[member] = f"no answer within {CALL_S:g} s"
        except FedschedError as error:
            found.failures[member] = error.message

    async def _order_at(self, server: Server, order: KeyOrder) -> KeyOrderReply:
        if server.id == self._me:
            return await self.order(order)
        if not self._peers.has_tls and not is_loopback_host(split_host_port(server.rpc, 0)[0]):
            raise Unavailable(f"keys are not sent to {server.rpc} in the clear: there is no TLS")
        caller = await self._peers.caller_at(server.rpc, server.region)
        reply, _ = await caller.call(GOSSIP_KEYS, order)
        return reply

    def _reply(
        self, rounds: Sequence[Round], seen: Round, name: str = "", removal_in_s: float | None = None
    ) -> KeyringReply:
        names = sorted({one for ring in seen.rings.values() for one in ring})
        holdings = [
            KeyHolding(
                fingerprint=one,
                held_by=sum(one in ring for ring in seen.rings.values()),
                primary_of=sum(ring[0] == one for ring in seen.rings.values() if ring),
            )
            for one in names
        ]
        holdings.sort(key=lambda one: (-one.primary_of, -one.held_by, one.fingerprint))
        return KeyringReply(
            steps=tuple(one.step() for one in rounds),
            keys=tuple(holdings),
            members=len(seen.rings) + len(seen.failures),
            fingerprint=name,
            removal_in_s=removal_in_s,
        )


def _fingerprint_in(text: str) -> str:
    """The fingerprint that somebody gave, or that of the key that somebody gave."""
    if len(text) == 16 and set(text) <= set("0123456789abcdef"):
        return text
    return fingerprint(read_key(text))


def _named(members: dict[str, str]) -> str:
    shown = [f"{name} ({why})" for name, why in sorted(members.items())]
    more = f" and {len(shown) - NAMED_MAX} more" if len(shown) > NAMED_MAX else ""
    return ", ".join(shown[:NAMED_MAX]) + more
