"""The pool of all servers, as operators handle it: entering, letting go of failed members, keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import trio

from fedsched.gossip.messages import State
from fedsched.gossip.seeking import name_taken
from fedsched.model.errors import BadRequest, Conflict, NotFound, Unavailable
from fedsched.rpc.method import Empty, Method
from fedsched.rpc.methods import gossip as methods
from fedsched.rpc.relay import hop_of
from fedsched.rpc.server_side import CallContext, Handler
from fedsched.server.wan import Wan

ADDRESSES_MAX: Final = 64
JOIN_S: Final = 8.0
"""Shorter than the ten seconds that a gossip stream may take: an address that swallows packets costs no more."""
NAMED_MAX: Final = 10


class GossipEndpoint:
    """Answers `Agent.Join`, `Agent.ForceLeave`, `Gossip.*` and `Operator.Keyring*`."""

    def __init__(self, wan: Wan | None, region: str) -> None:
        self._wan = wan
        self._region = region

    def handlers(self) -> Mapping[Method[Any, Any], Handler]:
        return {
            methods.AGENT_JOIN: self.join,
            methods.AGENT_FORCE_LEAVE: self.force_leave,
            methods.GOSSIP_KEYS: self.order,
            methods.OPERATOR_KEYRING_LIST: self.list_keys,
            methods.OPERATOR_KEYRING_CHANGE: self.change_keys,
            methods.OPERATOR_KEYRING_ROTATE: self.rotate_keys,
        }

    async def join(self, request: methods.AgentJoinRequest, context: CallContext) -> methods.AgentJoinReply:
        """Try all the addresses at once, and say of each that failed why."""
        wan = self._pool()
        addresses = tuple(dict.fromkeys(request.addresses))
        if not addresses or len(addresses) > ADDRESSES_MAX:
            raise BadRequest(f"{len(addresses)} addresses to join by", hint=f"give 1 to {ADDRESSES_MAX}")
        failures: dict[str, str] = {}
        async with trio.open_nursery() as nursery:
            for address in addresses:
                nursery.start_soon(self._join_by, wan, address, failures)
        return methods.AgentJoinReply(
            joined=len(addresses) - len(failures),
            failures=tuple(methods.JoinFailure(address=place, why=why) for place, why in sorted(failures.items())),
        )

    async def _join_by(self, wan: Wan, address: str, failures: dict[str, str]) -> None:
        failures[address] = f"no answer within {JOIN_S:g} s"
        with trio.move_on_after(JOIN_S):
            ended = await wan.gossip.join(address)
            if ended.reached:
                del failures[address]
            elif ended.taken is not None:
                failures[address] = name_taken(ended.taken).message
            else:
                failures[address] = "no member of the pool answers there"

    async def force_leave(
        self, request: methods.AgentForceLeaveRequest, context: CallContext
    ) -> methods.AgentForceLeaveReply:
        wan = self._pool()
        members = {one.name: one for one in wan.gossip.members}
        member = members.get(request.name) or members.get(hop_of(request.name, self._region))
        if member is None:
            known = sorted(one.name for one in members.values() if not one.is_up)[:NAMED_MAX]
            names = ", ".join(known) or "none"
            raise NotFound(f"no member {request.name[:128]!r} in the gossip pool", hint=f"failed ones: {names}")
        if member.is_up:
            raise Conflict(
                f"{member.name} is {'suspected of having failed' if member.state is State.SUSPECT else 'alive'}",
                hint="only a failed member can be forced to leave: stop that server first",
            )
        await wan.gossip.force_leave(member.name, prune=request.prune)
        return methods.AgentForceLeaveReply(name=member.name)

    async def order(self, request: methods.KeyOrder, context: CallContext) -> methods.KeyOrderReply:
        return await self._pool().keys.order(request)

    async def list_keys(self, request: Empty, context: CallContext) -> methods.KeyringReply:
        return await self._pool().keys.look()

    async def change_keys(self, request: methods.KeyringChangeRequest, context: CallContext) -> methods.KeyringReply:
        return await self._pool().keys.change(request)

    async def rotate_keys(self, request: methods.KeyringRotateRequest, context: CallContext) -> methods.KeyringReply:
        return await self._pool().keys.rotate(request)

    def _pool(self) -> Wan:
        if self._wan is None:
            raise Unavailable("this server takes no part in gossip", hint="its log says why at the start")
        return self._wan
