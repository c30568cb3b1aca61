"""`operator ...`: the raft set, its health, its figures. Snapshots are in `operator_snapshot`."""

from __future__ import annotations

from fedsched.model.record import to_api
from fedsched.rpc.method import Empty
from fedsched.rpc.methods.raft import (
    RAFT_CHANGE_PEER,
    RAFT_LIST_PEERS,
    RAFT_LOG,
    RAFT_REMOVE_PEER,
    RAFT_TRANSFER_LEADERSHIP,
    LogRequest,
    PeerChangeRequest,
    PeerRequest,
)
from fedsched.verbs.flags import Argument, BadUsage, Flag, Given
from fedsched.verbs.operator_snapshot import VERBS as SNAPSHOT_VERBS
from fedsched.verbs.terminal import Terminal
from fedsched.verbs.verb import FAILED, JSON, OK, TEMPLATE, Regions, Verbs
from fedsched.verbs.view import columns, pairs

VERBS = Verbs()
VERBS.all += SNAPSHOT_VERBS.all

PEER_FLAGS = (
    Flag("peer-id", "id of the server, as list-peers shows it", value="id"),
    Flag("peer-address", "address of its server port instead of its id", value="host:port"),
)


@VERBS.verb(
    "operator raft list-peers",
    "list the members of the raft set",
    flags=(Flag("stale", "let any server answer from what it has, even without a leader", bool), JSON, TEMPLATE),
    regions=Regions.EACH,
)
def list_peers(terminal: Terminal, given: Given) -> int:
    reply = terminal.client.call(RAFT_LIST_PEERS, Empty(), stale=given["stale"])
    if terminal.formatted(given, lambda: to_api(reply)):
        return OK
    rows = [
        (one.node, one.id, one.address, "leader" if one.leader else "follower", one.voter, one.raft_protocol)
        for one in reply.servers
    ]
    terminal.write(columns(("Node", "ID", "Address", "State", "Voter", "RaftProtocol"), rows))
    return OK


@VERBS.verb(
    "operator raft remove-peer",
    "take a server out of the raft set",
    doc="Takes a server out of the raft set: for one that is gone and will not come back. A server that comes back"
    " after that has to be wiped and joins as a new one.",
    flags=(*PEER_FLAGS, JSON, TEMPLATE),
)
def remove_peer(terminal: Terminal, given: Given) -> int:
    reply = terminal.client.call(RAFT_REMOVE_PEER, _peer(given, is_needed=True))
    if not terminal.formatted(given, lambda: to_api(reply)):
        verb = "Removed earlier:" if reply.already else "Removed"
        terminal.say(f"{verb} peer with id {_quoted(reply.id)}")
    return OK


@VERBS.verb(
    "operator raft transfer-leadership",
    "hand leadership to another server",
    doc="Hands leadership to the server that is named, or to the one that is furthest along if none is.",
    flags=(*PEER_FLAGS, JSON, TEMPLATE),
)
def transfer_leadership(terminal: Terminal, given: Given) -> int:
    reply = terminal.client.call(RAFT_TRANSFER_LEADERSHIP, _peer(given, is_needed=False))
    if not terminal.formatted(given, lambda: to_api(reply)):
        terminal.say(f"Transferred leadership to peer with id {_quoted(reply.id)}")
    return OK


@VERBS.verb(
    "operator raft change-peer",
    "let a server vote or only listen, or replace one by another",
    doc="Changes who votes: `promote` a learner, `demote` a voter, or `replace` a voter by a learner (-by) in one step,"
    " so that the number of voters never dips.",
    flags=(
        Flag("by", "with replace: the learner that takes the seat", value="id"),
        Flag("config-index", "only if the configuration is still the one of this index", int, value="index"),
        JSON,
        TEMPLATE,
    ),
    arguments=(Argument("change", "promote, demote or replace"), Argument("peer", "id or name of the server")),
)
def change_peer(terminal: Terminal, given: Given) -> int:
    request = PeerChangeRequest(
        change=given["change"],
        id=given["peer"],
        by=given["by"] or "",
        config_index=given["config-index"] or 0,
    )
    reply = terminal.client.call(RAFT_CHANGE_PEER, request)
    if not terminal.formatted(given, lambda: to_api(reply)):
        verb = "Nothing to change for" if reply.already else "Changed"
        terminal.say(f"{verb} peer with id {_quoted(reply.id)} ({given['change']})")
    return OK


@VERBS.verb(
    "operator raft log",
    "list the entries in the agent's log, without their content",
    doc="Lists what lies in the log of the agent that is asked: index, term, kind and size of each entry.",
    flags=(
        Flag("first", "from this index on", int, value="index"),
        Flag("last", "up to this index", int, value="index"),
        JSON,
        TEMPLATE,
    ),
)
def raft_log(terminal: Terminal, given: Given) -> int:
    reply = terminal.client.call(RAFT_LOG, LogRequest(first=given["first"] or 0, last=given["last"] or 0))
    if terminal.formatted(given, lambda: to_api(reply)):
        return OK
    rows = [(one.index, one.term, one.kind, one.size) for one in reply.entries]
    terminal.write(columns(("Index", "Term", "Kind", "Size"), rows))
    return OK


@VERBS.verb(
    "operator raft recover",
    "make a stopped server go on alone when its majority is lost for good",
    doc="Writes a membership of this one server into the log of a stopped agent. Acknowledged writes that only the lost"
    " servers had are gone for good; never start those again with their old data. Prefer any way to bring them back.",
    flags=(Flag("data-dir", "data_dir of the stopped agent", value="dir"), Flag("yes", "do not ask", bool)),
    is_remote=False,
)
def raft_recover(terminal: Terminal, given: Given) -> int:
    from pathlib import Path

    from fedsched.raft.recover import recover

    if not given["data-dir"]:
        raise BadUsage("-data-dir is missing", hint="name the data_dir of the stopped agent")
    question = f"Have all other servers been lost for good, and may {given['data-dir']} go on alone?"
    if not given["yes"] and not terminal.confirm(question):
        terminal.say("Cancelled")
        return FAILED
    terminal.say(recover(Path(given["data-dir"]) / "server").explain())
    return OK


@VERBS.verb(
    "operator autopilot health",
    "show which servers are healthy, and how many may fail",
    doc="Shows how the leader sees each server of its region. Exits 1 if the region is not healthy.",
    flags=(JSON, TEMPLATE),
    regions=Regions.EACH,
)
def autopilot_health(terminal: Terminal, given: Given) -> int:
    from fedsched.model.units import format_duration
    from fedsched.rpc.methods.autopilot import AUTOPILOT_HEALTH

    health = terminal.client.call(AUTOPILOT_HEALTH, Empty())
    code = OK if health.healthy else FAILED
    if terminal.formatted(given, lambda: to_api(health)):
        return code
    head = [
        ("Healthy", health.healthy),
        ("Failure Tolerance", health.failure_tolerance),
        ("Leader", health.leader),
        ("Voters", len(health.voters)),
    ]
    terminal.write(pairs(head))
    terminal.heading("Servers")
    names = ("ID", "Name", "Address", "Serf Status", "Version", "Leader", "Voter", "Healthy")
    rows = [
        (
            *(one.id, one.name, one.address, one.serf_status.value, one.version, one.leader, one.voter, one.healthy),
            *(format_duration(one.last_contact_s), one.last_term, one.last_index),
        )
        for one in health.servers
    ]
    terminal.write(columns((*names, "Last Contact", "Last Term", "Last Index"), rows))
    return code


@VERBS.verb(
    "operator metrics",
    "print the agent's figures",
    flags=(
        Flag("format", "json or prometheus", default="json", value="form"),
        Flag("pretty", "indent the JSON", bool),
        Flag("json", "the same as -format=json -pretty", bool),
        TEMPLATE,
    ),
)
def metrics(terminal: Terminal, given: Given) -> int:
    from fedsched.rpc.methods.agent import AGENT_METRICS, AgentMetricsRequest

    form = "json" if given["json"] else given["format"]
    if form not in ("json", "prometheus"):
        raise BadUsage(f"-format {form!r} is not known", hint="there are json and prometheus")
    reply = terminal.client.call(AGENT_METRICS, AgentMetricsRequest(format=form))
    text = reply.body.decode()
    if form == "prometheus":
        terminal.write(text)
        return OK
    import json

    if not terminal.formatted(given, lambda: json.loads(text)):
        terminal.say(json.dumps(json.loads(text), indent=4) if given["pretty"] else text.rstrip("\n"))
    return OK


def _peer(given: Given, *, is_needed: bool) -> PeerRequest:
    peer_id, address = given["peer-id"], given["peer-address"]
    if peer_id and address:
        raise BadUsage("-peer-id and -peer-address were both given", hint="one of them says which server is meant")
    if is_needed and not peer_id and not address:
        raise BadUsage("which server is meant?", hint="give -peer-id; `operator raft list-peers` shows the ids")
    return PeerRequest(id=peer_id or "", address=address or "")


def _quoted(text: str) -> str:
    return f'"{text}"'
