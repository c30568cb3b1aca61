"""`server ...`: the servers of the region and, once regions are joined, of all of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fedsched.model.errors import FedschedError
from fedsched.model.record import to_api
from fedsched.model.region import ListedMember
from fedsched.rpc.method import Empty
from fedsched.rpc.methods.gossip import AGENT_FORCE_LEAVE, AGENT_JOIN, AgentForceLeaveRequest, AgentJoinRequest
from fedsched.rpc.methods.server import REGION_LIST, SERVER_MEMBERS
from fedsched.rpc.methods.status import STATUS_LEADER, LeaderReply
from fedsched.verbs.flags import Argument, Flag, Given
from fedsched.verbs.terminal import Terminal
from fedsched.verbs.verb import FAILED, JSON, NOT_ALL_ANSWERED, OK, TEMPLATE, Regions, Verbs
from fedsched.verbs.view import columns

VERBS = Verbs()

HEAD = ("Name", "Address", "Port", "Status", "Leader", "Raft Version", "Build", "Datacenter", "Region")
DETAILS = (
    *("Name", "Address", "Port", "Status", "Suspect", "Leader"),
    *("Region", "Datacenter", "Build", "Round Trip", "ID"),
)
LEADER_PATIENCE_S = 5.0
"""A region without a leader is worth a warning, not half a minute of silence."""


@VERBS.verb(
    "server members",
    "list the servers and who leads",
    doc="Lists the servers this agent knows, of all regions or of those that are named, sorted by region and name. The"
    " leader is asked for per region; a region that cannot be reached is warned of and its leader left open.",
    flags=(
        Flag("verbose", "show every tag of every server", bool),
        Flag("detailed", "show also who is suspected, how far each is, and ids; no other region is asked", bool),
        JSON,
        TEMPLATE,
    ),
    regions=Regions.ITSELF,
)
def members(terminal: Terminal, given: Given) -> int:
    reply = terminal.client.call(SERVER_MEMBERS, Empty(), region="")
    found, code = _wanted(terminal, given, sorted(reply.members, key=lambda one: (one.region, one.name)))
    if terminal.formatted(given, lambda: [to_api(member) for member in found]):
        return code
    if given["verbose"]:
        rows = [(one.name, one.addr, one.port, _tags(one)) for one in found]
        terminal.write(columns(("Name", "Address", "Port", "Tags"), rows))
    elif given["detailed"]:
        asked = f"{reply.server_name}.{reply.server_region}"
        led_by = {one.leader for one in terminal.client.call(REGION_LIST, Empty(), region="").regions}
        terminal.write(columns(DETAILS, [_details(one, led_by, asked) for one in found]))
    else:
        leaders = _leaders(terminal, found)
        terminal.write(columns(HEAD, [_row(one, leaders.get(one.region)) for one in found]))
    return code


def _wanted(terminal: Terminal, given: Given, known: Sequence[ListedMember]) -> tuple[Sequence[ListedMember], int]:
    """The servers of the regions that were named, all of them if none was; and whether each name has some."""
    if not given.was_said("region") and not terminal.target.names_several:
        return known, OK
    from fedsched.verbs.fan_out import named_regions

    names = named_regions(terminal)
    found = [member for member in known if member.region in names]
    missing = [name for name in names if all(member.region != name for member in found)]
    for name in missing:
        there = ", ".join(sorted({member.region for member in known}))
        terminal.warn(f"Error: no server of region {name!r} is known; there are {there}")
    return found, OK if not missing else NOT_ALL_ANSWERED if found else FAILED


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


def _leaders(terminal: Terminal, found: Sequence[ListedMember]) -> dict[str, LeaderReply]:
    from fedsched.verbs.fan_out import in_each

    names = sorted({member.region for member in found})
    asked = in_each(terminal, names, lambda one: one.client.call(STATUS_LEADER, Empty()), patience_s=LEADER_PATIENCE_S)
    leaders: dict[str, LeaderReply] = {}
    for region, leader in asked.items():
        if isinstance(leader, FedschedError):
            terminal.warn(f"Error determining leaders: region {region}: {leader.message}")
        elif leader.leader or leader.id:
            leaders[region] = leader
        else:
            terminal.warn(f"Error determining leaders: region {region} has no leader")
    return leaders


def _details(member: ListedMember, led_by: Collection[str], asked: str) -> tuple[object, ...]:
    """Everything that is known of one without asking any other region; `led_by` are the names of leaders, `asked` is
    that of the server that answered, to which there is no way."""
    trip = "-" if member.name == asked else "<unknown>"
    tags = member.tags
    return (
        member.name,
        member.addr,
        member.port,
        member.status.value,
        member.is_suspect,
        member.name in led_by,
        member.region,
        tags.get("dc", ""),
        tags.get("build", ""),
        trip if member.round_trip_ms is None else f"{member.round_trip_ms:.1f} ms",
        member.server_id,
    )


def _row(member: ListedMember, leader: LeaderReply | None) -> tuple[object, ...]:
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


def _is_leader(member: ListedMember, leader: LeaderReply) -> bool:
    if leader.id and member.server_id:
        return leader.id == member.server_id
    return leader.leader == f"{member.addr}:{member.tags.get('port', '')}"


def _tags(member: ListedMember) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted(member.tags.items()))
