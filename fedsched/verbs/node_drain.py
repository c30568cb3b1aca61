"""`node drain`, `node eligibility`, `node purge`: setting nodes aside."""

from __future__ import annotations

from fedsched.model.node import DrainStrategy, Eligibility, NodeListStub
from fedsched.model.record import to_api
from fedsched.model.units import parse_duration
from fedsched.rpc.methods.node import (
    NODE_ALLOCS,
    NODE_DEREGISTER,
    NODE_DRAIN,
    NODE_ELIGIBILITY,
    NODE_GET,
    NodeDrainRequest,
    NodeEligibilityRequest,
    NodeRequest,
    NodesRequest,
)
from fedsched.verbs.finding import SELF, find_node, own_node_id
from fedsched.verbs.flags import Argument, BadUsage, Flag, Given
from fedsched.verbs.terminal import Terminal
from fedsched.verbs.verb import FAILED, JSON, OK, Verbs
from fedsched.verbs.view import moment

VERBS = Verbs()

NODE = Argument("node", "id of the node, or the beginning of it", unless="self")
ENABLE = Flag("enable", "switch it on", bool)
DISABLE = Flag("disable", "switch it off", bool)
DEFAULT_DEADLINE = "1h"
WAIT_S = 2.0
WATCHING = "Ctrl-C to stop monitoring: will not cancel the node drain"


@VERBS.verb(
    "node drain",
    "empty a node, or stop emptying it",
    doc="Moves everything off a node and keeps new allocations away from it. Without a deadline batch jobs end by"
    " themselves; with one, whatever is left then is moved or stopped. Ctrl-C stops the watching, not the drain.",
    flags=(
        ENABLE,
        DISABLE,
        Flag("deadline", "by when all must be gone; 1h unless said", value="duration"),
        Flag("force", "stop everything now", bool),
        Flag("no-deadline", "wait for everything to move by itself", bool),
        Flag("ignore-system", "leave system jobs running", bool),
        Flag("keep-ineligible", "with -disable: take no new allocations yet", bool),
        Flag("m", "why, kept with the drain", value="text"),
        Flag("meta", "a fact to keep with the drain; may be repeated", list, value="key=value"),
        Flag("detach", "return at once", bool),
        Flag("monitor", "watch a drain that is under way", bool),
        SELF,
        Flag("yes", "do not ask when only the beginning of the id was typed", bool),
        JSON,
    ),
    arguments=(NODE,),
)
def drain(terminal: Terminal, given: Given) -> int:
    if sum((given["enable"], given["disable"], given["monitor"])) != 1:
        raise BadUsage("one of -enable, -disable and -monitor is needed", hint="-enable empties the node")
    stub = _chosen(terminal, given)
    if given["monitor"]:
        _say(terminal, WATCHING)
        return _watch(terminal, stub)
    if not _is_sure(terminal, given, stub):
        terminal.say("Cancelled")
        return FAILED
    strategy = _strategy(given) if given["enable"] else None
    request = NodeDrainRequest(
        node_id=stub.id,
        drain_strategy=strategy,
        mark_eligible=not given["enable"] and not given["keep-ineligible"],
        meta=_meta(given),
    )
    reply = terminal.client.call(NODE_DRAIN, request)
    if terminal.formatted(given, lambda: to_api(reply)):
        return OK
    if strategy is None:
        terminal.say(f'Node "{stub.id}" drain strategy unset')
        return OK
    if not given["detach"]:
        _say(terminal, WATCHING)
    _say(terminal, f'Node "{stub.id}" drain strategy set')
    return OK if given["detach"] else _watch(terminal, stub)


@VERBS.verb(
    "node eligibility",
    "let a node take new allocations, or no more",
    flags=(ENABLE, DISABLE, SELF, JSON),
    arguments=(NODE,),
)
def eligibility(terminal: Terminal, given: Given) -> int:
    if given["enable"] == given["disable"]:
        raise BadUsage("either -enable or -disable is needed", hint="-disable keeps new allocations away")
    stub = _chosen(terminal, given)
    wanted = Eligibility.ELIGIBLE if given["enable"] else Eligibility.INELIGIBLE
    reply = terminal.client.call(NODE_ELIGIBILITY, NodeEligibilityRequest(node_id=stub.id, eligibility=wanted))
    if not terminal.formatted(given, lambda: to_api(reply)):
        terminal.say(f'Node "{stub.id}" scheduling eligibility set: {wanted.value} for scheduling')
    return OK


@VERBS.verb(
    "node purge",
    "forget a node that is not coming back",
    flags=(Flag("yes", "do not ask", bool), JSON),
    arguments=(NODE,),
)
def purge(terminal: Terminal, given: Given) -> int:
    stub = find_node(terminal, given["node"])
    if not given["yes"] and not terminal.confirm(f'Are you sure you want to forget node "{stub.id}"?'):
        terminal.say("Cancelled")
        return FAILED
    reply = terminal.client.call(NODE_DEREGISTER, NodesRequest(node_ids=(stub.id,)))
    if not terminal.formatted(given, lambda: to_api(reply)):
        jobs = len(reply.eval_ids)
        terminal.say(f'Node "{stub.id}" forgotten; {jobs} job{"s are" if jobs != 1 else " is"} evaluated')
    return OK


def _strategy(given: Given) -> DrainStrategy:
    chosen = [name for name in ("deadline", "force", "no-deadline") if given[name]]
    if len(chosen) > 1:
        raise BadUsage(f"-{chosen[0]} and -{chosen[1]} exclude each other", hint="name one of them")
    if given["force"]:
        deadline_s = -1.0
    elif given["no-deadline"]:
        deadline_s = 0.0
    else:
        deadline_s = parse_duration(given["deadline"] or DEFAULT_DEADLINE)
        if deadline_s <= 0:
            raise BadUsage("A positive drain duration must be given", hint="such as -deadline 1h; -force is now")
    return DrainStrategy(deadline_s=deadline_s, ignore_system_jobs=given["ignore-system"])


def _meta(given: Given) -> dict[str, str]:
    meta = {"message": given["m"]} if given["m"] else {}
    for word in given["meta"]:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise BadUsage(f"-meta {word!r} is no key=value")
        meta[key] = value
    return meta


def _chosen(terminal: Terminal, given: Given) -> NodeListStub:
    return find_node(terminal, own_node_id(terminal) if given["self"] else given["node"])


def _is_sure(terminal: Terminal, given: Given, stub: NodeListStub) -> bool:
    if given["yes"] or given["self"] or given["node"] == stub.id:
        return True
    what = "drain" if given["enable"] else "stop the drain of"
    return terminal.confirm(f'Are you sure you want to {what} node "{stub.id}"?')


def _watch(terminal: Terminal, stub: NodeListStub) -> int:
    """Tell what happens to the node's allocations until the drain is over and all of them have stopped."""
    known: dict[str, tuple[bool, bool, str]] = {}
    is_over = False
    index = 0
    while True:
        allocs = terminal.client.call(
            NODE_ALLOCS, NodeRequest(node_id=stub.id), min_index=index, max_wait_s=WAIT_S if index else 0.0
        ).allocs
        index = terminal.client.last.index
        for one in allocs:
            is_marked, client = one.desired_transition.migrate is True, one.client_status.value
            is_draining = is_marked and one.desired_status.is_terminal
            was_marked, was_draining, before = known.get(one.id, (False, False, client))
            known[one.id] = (is_marked, is_draining, client)
            if is_marked and not was_marked:
                _say(terminal, f'Alloc "{one.id}" marked for migration')
            if is_draining and not was_draining:
                _say(terminal, f'Alloc "{one.id}" draining')
            if client != before:
                _say(terminal, f'Alloc "{one.id}" status {before} -> {client}')
        if not is_over and not terminal.client.call(NODE_GET, NodeRequest(node_id=stub.id)).node.drain:
            _say(terminal, f"Drain complete for node {stub.id}")
            is_over = True
        left = [one for one in allocs if not one.client_status.is_terminal and one.job_type != "system"]
        if is_over and not left:
            _say(terminal, f'All allocations on node "{stub.id}" have stopped')
            return OK


def _say(terminal: Terminal, text: str) -> None:
    terminal.say(f"{moment(terminal.now_ns())}: {text}")
