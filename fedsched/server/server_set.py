"""Changes of the server set, so that asking twice is as good as asking once.

A change of the set is no command: it does not pass through the state, which keeps the answers to numbered requests. So
whoever has not heard how a change ended could be told "no such server" by a retry of its own success. Two things that
every config carries prevent it:

- *What is wanted is an end.* Promoting a voter, demoting a learner, letting in a member: done before, and said so.
- *Who left is remembered*, and by which request. The same request again is answered by what it did, even if another
  server has come under the same name since. Any request to remove a server that has left is a success that changes
  nothing; only a server nobody has heard of is not found.

That is decided on a config which is settled: committed, not joint, and of a leader that a majority still follows. While
a change is under way the answer would be a guess; then it is refused in the way that dispatch tries again.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import NamedTuple

from fedsched.model.errors import BadRequest, NotFound
from fedsched.raft.errors import ProposalRefused
from fedsched.raft.membership import (
    AddLearner,
    Config,
    ConfigChange,
    Demote,
    Promote,
    Readdress,
    Remove,
    Replace,
    ServerInfo,
)
from fedsched.raft.runner import RaftRunner
from fedsched.rpc.context import CallMeta
from fedsched.rpc.methods.raft import PeerChangeRequest, PeerRequest


class Wanted(NamedTuple):
    """What a request comes to."""

    server: ServerInfo
    change: ConfigChange | None
    """What to propose; None if it was done before."""
    is_own: bool = False
    """It was this very request that did it, at an earlier attempt."""


async def settled_config(raft: RaftRunner) -> Config:
    """The set as it certainly is; `ProposalRefused` while it is being changed."""
    await raft.read_barrier()
    core = raft.core
    if core.history.index > core.commit or core.config.is_joint:
        raise ProposalRefused("a change of the server set is under way", hint="try again in a moment")
    return core.config


def request_name(meta: CallMeta) -> str:
    """A short name of this request, the same whenever it is repeated; empty if it has no id."""
    if meta.request_id is None:
        return ""
    whole = f"{meta.request_id.seq}:{meta.request_id.session}"
    return blake2b(whole.encode(), digest_size=16).hexdigest()


def removal(config: Config, peer: PeerRequest, asked_by: str) -> Wanted:
    """Take a server out; `NotFound` if neither the set nor its memory has it."""
    gone = _removed_by(config, asked_by)
    if gone is not None:
        return Wanted(gone, None, is_own=True)
    server = _match(config.servers, peer)
    if server is not None:
        return Wanted(server, Remove(server.id, asked_by))
    gone = _left(config, peer)
    if gone is not None:
        return Wanted(gone, None)
    raise _unknown(config, peer)


def peer_change(config: Config, request: PeerChangeRequest, asked_by: str) -> Wanted:
    """Give a server a vote, take it away, or put another in its place."""
    peer = PeerRequest(id=request.id)
    match request.change:
        case "promote":
            server = find(config, peer)
            return Wanted(server, None if server.id in config.voters else Promote(server.id))
        case "demote":
            server = find(config, peer)
            return Wanted(server, None if server.id in config.learners else Demote(server.id))
        case "replace":
            return _replacement(config, peer, PeerRequest(id=request.by), asked_by)
        case other:
            raise BadRequest(f"no such change of a server: {other!r}", hint="promote, demote or replace")


def admission(config: Config, server: ServerInfo) -> ConfigChange | None:
    """Let a server in, or note that it has moved; None if all of that is known."""
    known = config.server(server.id)
    if known is None:
        return AddLearner(server)
    return Readdress(server) if known != server else None


def find(config: Config, peer: PeerRequest) -> ServerInfo:
    """The member that is meant; `NotFound` names those there are."""
    server = _match(config.servers, peer)
    if server is None:
        raise _unknown(config, peer)
    return server


def _replacement(config: Config, leaving: PeerRequest, joining: PeerRequest, asked_by: str) -> Wanted:
    gone = _removed_by(config, asked_by)
    if gone is not None:
        return Wanted(gone, None, is_own=True)
    successor = find(config, joining)
    server = _match(config.servers, leaving)
    if server is not None:
        return Wanted(server, Replace(server.id, successor.id, asked_by))
    gone = _left(config, leaving)
    if gone is None or successor.id not in config.voters:
        raise _unknown(config, leaving)
    return Wanted(gone, None)


def _removed_by(config: Config, asked_by: str) -> ServerInfo | None:
    return next((one.server for one in config.removed if asked_by and one.request == asked_by), None)


def _left(config: Config, peer: PeerRequest) -> ServerInfo | None:
    """Of those that left, the last one that fits."""
    return _match((one.server for one in reversed(config.removed)), peer)


def _match(servers: Iterable[ServerInfo], peer: PeerRequest) -> ServerInfo | None:
    if not peer.id and not peer.address:
        raise BadRequest("no server named", hint="give -peer-id, from `fedsched operator raft list-peers`")
    for server in servers:
        if (peer.id and peer.id in (server.id, server.name)) or (peer.address and peer.address == server.address):
            return server
    return None


def _unknown(config: Config, peer: PeerRequest) -> NotFound:
    known = ", ".join(f"{server.name} ({server.id})" for server in config.servers)
    return NotFound(f"no server {peer.id or peer.address!r} in this region", hint=f"there are {known}")
