"""`server ...`: the servers of the region and, once regions are joined, of all of them."""

from __future__ import annotations

from collections.abc import Sequence

from fedsched.model.errors import FedschedError
from fedsched.model.record import to_api
from fedsched.model.region import ServerMember
from fedsched.rpc.method import Empty
from fedsched.rpc.methods.gossip import AGENT_FORCE_LEAVE, AGENT_JOIN, AgentForceLeaveRequest, AgentJoinRequest
from fedsched.rpc.methods.server import SERVER_MEMBERS
from fedsched.rpc.methods.status import STATUS_LEADER, LeaderReply
from fedsched.verbs.flags import Argument, Flag, Given
from fedsched.verbs.terminal import Terminal
from fedsched.verbs.verb import FAILED, JSON, OK, TEMPLATE, Verbs
from fedsched.verbs.view import columns

VERBS = Verbs()

HEAD = ("Name", "Address", "Port", "Status", "Leader", "Raft Version", "Build", "Datacenter", "Region")
LEADER_PATIENCE_S = 5.0
"""A region without a leader is worth a warning, not half a minute of silence."""


@VERBS.verb(
    "server members",
    "list the servers and who leads",
    doc="Lists the servers this agent knows, sorted by region and name. The leader is asked for per region; a region"
    " that cannot be reached is warned of and its leader left open.",
    flags=(Flag("verbose", "show every tag of every server", bool), JSON, TEMPLATE),
)
def members(terminal: Terminal, given: Given) -> int:
    reply = terminal.client.call(SERVER_MEMBERS, Empty(), region="")
    found = sorted(reply.members, key=lambda one: (one.region, one.name))
    if terminal.formatted(given, lambda: [to_api(member) for member in found]):
        return OK
    if given["verbose"]:
        rows = [(one.name, one.addr, one.port, _tags(one)) for one in found]
        terminal.write(columns(("Name", "Address", "Port", "Tags"), rows))
        return OK
    leaders = _leaders(terminal, found)
    terminal.write(columns(HEAD, [_row(one, leaders.get(one.region)) for one in found]))
    return OK


@VERBS.verb(
    "server join",
    "have a server enter the gossip pool by way of other members",
    doc="Has the server that answers join the pool that the named servers are in, and thereby their regions know of"
    " each other. Exits 1 if none of the addresses let it in.",
    flags=(JSON, TEMPLATE),
    arguments=(Argument("addresses", "gossip addresses of members, host or host:port (4648 if left out)", many=True),),
)
def join(terminal: Terminal, given: Given) -> int:
    reply = terminal.client.call(AGENT_JOIN, AgentJoinRequest(addresses=tuple(given["addresses"])))
    code = OK if reply.joined else FAILED
    if terminal.formatted(given, lambda: to_api(reply)):
        return code
    for failure in reply.failures:
        terminal.warn(f"{failure.address}: {failure.why}")
    if reply.joined:
        terminal.say(f"Joined {reply.joined} server{'' if reply.joined == 1 else 's'} successfully")
    return code


@VERBS.verb(
    "server force-leave",
    "take a failed server for one that has left",
    doc="Marks a failed member of the gossip pool as one that left, on all servers. Its region then takes it out of its"
    " raft set. A server that is up is refused: stop it instead.",
    flags=(Flag("prune", "forget it at once, instead of listing it as left for a day", bool), JSON, TEMPLATE),
    arguments=(Argument("name", "of the member: server.region, or the server's name alone in its own region"),),
)
def force_leave(terminal: Terminal, given: Given) -> int:
    request = AgentForceLeaveRequest(name=given["name"], prune=given["prune"])
    reply = terminal.client.call(AGENT_FORCE_LEAVE, request)
    if not terminal.formatted(given, lambda: to_api(reply)):
        terminal.say(f"Member {reply.name} {'is forgotten' if given['prune'] else 'has left'}")
    return OK


def _leaders(terminal: Terminal, found: Sequence[ServerMember]) -> dict[str, LeaderReply]:
    leaders: dict[str, LeaderReply] = {}
    for region in sorted({member.region for member in found}):
        try:
            leader = terminal.client.call(STATUS_LEADER, Empty(), region=region, patience_s=LEADER_PATIENCE_S)
        except FedschedError as error:
            terminal.warn(f"Error determining leaders: region {region}: {error.message}")
            continue
        if leader.leader or leader.id:
            leaders[region] = leader
        else:
            terminal.warn(f"Error determining leaders: region {region} has no leader")
    return leaders


def _row(member: ServerMember, leader: LeaderReply | None) -> tuple[object, ...]:
    tags = member.tags
    return (
        member.name,
        member.addr,
        member.port,
        member.status.value,
        leader is not None and _is_leader(member, leader),
        tags.get("raft_vsn", ""),
        tags.get("build", ""),
        tags.get("dc", ""),
        member.region,
    )


def _is_leader(member: ServerMember, leader: LeaderReply) -> bool:
    if leader.id and member.server_id:
        return leader.id == member.server_id
    return leader.leader == f"{member.addr}:{member.tags.get('port', '')}"


def _tags(member: ServerMember) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted(member.tags.items()))
