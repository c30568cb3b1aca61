"""`job why`, `alloc why`, `node why-not`: the shortest true explanation first, then what would help."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fedsched.model.record import to_api
from fedsched.model.why import Candidate, Change, GroupWhy
from fedsched.rpc.methods.why import (
    ALLOC_WHY,
    JOB_WHY,
    NODE_WHY_NOT,
    AllocWhyRequest,
    JobWhyRequest,
    NodeWhyNotRequest,
)
from fedsched.verbs.finding import find_alloc, find_job, find_node
from fedsched.verbs.flags import Argument, Flag, Given
from fedsched.verbs.terminal import Terminal
from fedsched.verbs.verb import JSON, OK, TEMPLATE, VERBOSE, Regions, Verbs
from fedsched.verbs.view import columns, short

VERBS = Verbs()

JOB = Argument("job", "id of the job, or the beginning of it")
GROUP = Flag("group", "only this group", value="name")


@VERBS.verb(
    "job why",
    "say why a job is as it is, and what would help",
    doc="Say why a job is as it is: what it waits for, what keeps its groups off the nodes, and the smallest changes "
    "that would let the next allocation of each group be placed.",
    flags=(GROUP, VERBOSE, JSON, TEMPLATE),
    arguments=(JOB,),
    regions=Regions.EACH,
)
def job_why(terminal: Terminal, given: Given) -> int:
    stub = find_job(terminal, given["job"])
    request = JobWhyRequest(job_id=stub.id, group=given["group"] or "")
    why = terminal.client.call(JOB_WHY, request, namespace=stub.namespace).why
    if terminal.formatted(given, lambda: to_api(why)):
        return OK
    _lines(terminal, why.words)
    for group in why.groups:
        _group(terminal, group, verbose=given["verbose"])
    return OK


@VERBS.verb(
    "alloc why",
    "say why an allocation is as it is, and why on its node",
    flags=(VERBOSE, JSON, TEMPLATE),
    arguments=(Argument("alloc", "id of the allocation, or the beginning of it"),),
    regions=Regions.EACH,
)
def alloc_why(terminal: Terminal, given: Given) -> int:
    stub = find_alloc(terminal, given["alloc"])
    why = terminal.client.call(ALLOC_WHY, AllocWhyRequest(alloc_id=stub.id), namespace=stub.namespace).why
    if terminal.formatted(given, lambda: to_api(why)):
        return OK
    _lines(terminal, why.words)
    if why.candidates:
        terminal.heading("Scores When It Was Placed")
        terminal.write(_scores(why.candidates, verbose=given["verbose"]))
    return OK


@VERBS.verb(
    "node why-not",
    "say what keeps a job off a node",
    doc="Say what keeps each group of a job off a node, all of it and not only the first reason, or that it fits and "
    "which node is preferred.",
    flags=(GROUP, VERBOSE, JSON, TEMPLATE),
    arguments=(Argument("node", "id of the node, or the beginning of it"), JOB),
    regions=Regions.EACH,
)
def node_why_not(terminal: Terminal, given: Given) -> int:
    node, stub = find_node(terminal, given["node"]), find_job(terminal, given["job"])
    request = NodeWhyNotRequest(node_id=node.id, job_id=stub.id, group=given["group"] or "")
    why = terminal.client.call(NODE_WHY_NOT, request, namespace=stub.namespace).why
    if terminal.formatted(given, lambda: to_api(why)):
        return OK
    for at, group in enumerate(why.groups):
        if at:
            terminal.say()
        terminal.say(terminal.bold(f'Group "{group.group}" on {why.node_name}'))
        _lines(terminal, group.words)
    return OK


def _group(terminal: Terminal, group: GroupWhy, *, verbose: bool) -> None:
    """A group is told of if something is wrong with it, or if everything is asked for."""
    if not group.unplaced and not verbose:
        return
    terminal.heading(f'Group "{group.group}"')
    _lines(terminal, group.words)
    _lines(terminal, map(_change, group.changes))
    if verbose and group.candidates:
        terminal.write(_scores(group.candidates, verbose=True))


def _change(change: Change) -> str:
    words = f"{change.words[:1].upper()}{change.words[1:]}"
    where = "" if change.node_name in change.words.split() else f", on {change.node_name}"
    more = f" (or {change.nodes - 1} other nodes alike)" if change.nodes > 1 else ""
    return f"{words}{where}{more}."


def _lines(terminal: Terminal, lines: Iterable[str]) -> None:
    for line in lines:
        terminal.say(line)


def _scores(candidates: Sequence[Candidate], *, verbose: bool) -> str:
    names = sorted({name for one in candidates for name in one.scores})
    head = ["Node ID", "Node", *names, "Score"]
    rows = [
        [
            short(one.node_id, verbose=verbose),
            one.node_name,
            *(f"{one.scores[name]:.3f}" if name in one.scores else "-" for name in names),
            f"{one.score:.3f}",
        ]
        for one in candidates
    ]
    return columns(head, rows)
