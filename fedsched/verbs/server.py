"""`server ...`: the servers of the region and, once regions are joined, of all of them."""

from __future__ import annotations

from collections.abc import Sequence

from fedsched.model.errors import FedschedError
from fedsched.model.record import to_api
from fedsched.model.region import ServerMember
from fedsched.rpc.method import Empty
from fedsched.rpc.methods.server import SERVER_MEMBERS
from fedsched.rpc.methods.status import STATUS_LEADER, LeaderReply
from fedsched.verbs.flags import Flag, Given
from fedsched.verbs.terminal import Terminal
from fedsched.verbs.verb import JSON, OK, TEMPLATE, Verbs
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
