"""`node meta ...`: labels of a node that jobs can ask for, changed while it runs."""

from __future__ import annotations

from collections.abc import Mapping

from fedsched.model.record import to_api
from fedsched.rpc.methods.node import NodeRequest
from fedsched.rpc.methods.node_calls import NODE_META_APPLY, NODE_META_READ, NodeMetaRequest
from fedsched.verbs.finding import find_node, own_node_id
from fedsched.verbs.flags import Argument, BadUsage, Flag, Given
from fedsched.verbs.terminal import Terminal
from fedsched.verbs.verb import JSON, OK, TEMPLATE, Verbs
from fedsched.verbs.view import pairs

VERBS = Verbs()

NODE_ID = Flag("node-id", "the node, or the beginning of its id; that of the agent asked unless said", value="id")
UNSET = "<unset>"


@VERBS.verb(
    "node meta apply",
    "change labels of a node while it runs",
    doc="Sets labels of a node, over those of its agent's settings. They survive restarts of the agent, and jobs that"
    " wait for such a node are looked at again. -unset hides a label of the settings, and forgets any other.",
    flags=(NODE_ID, Flag("unset", "labels to take away, separated by commas", value="key,key"), JSON, TEMPLATE),
    arguments=(Argument("key=value", "labels to set", optional=True, many=True),),
)
def apply(terminal: Terminal, given: Given) -> int:
    change: dict[str, str | None] = dict.fromkeys(filter(None, (given["unset"] or "").split(",")))
    for word in given["key=value"]:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise BadUsage(f"{word!r} is not key=value", hint="such as rack=r1")
        if key in change:
            raise BadUsage(f"{key!r} is named twice", hint="set it or unset it, once")
        change[key] = value
    if not change:
        raise BadUsage("neither a label to set nor one to unset is named", hint="such as rack=r1, or -unset rack")
    reply = terminal.client.call(NODE_META_APPLY, NodeMetaRequest(node_id=_node_id(terminal, given), meta=change))
    if not terminal.formatted(given, lambda: to_api(reply)):
        terminal.say(f"Metadata applied: {', '.join(sorted(change))}. `fedsched node meta read` shows what holds.")
    return OK


@VERBS.verb(
    "node meta read",
    "show the labels of a node, and where they come from",
    flags=(NODE_ID, JSON, TEMPLATE),
)
def read(terminal: Terminal, given: Given) -> int:
    reply = terminal.client.call(NODE_META_READ, NodeRequest(node_id=_node_id(terminal, given)))
    if terminal.formatted(given, lambda: to_api(reply)):
        return OK
    for title, found in (
        ("All Meta", reply.meta),
        ("Dynamic Meta", reply.dynamic),
        ("Static Meta", reply.static),
    ):
        terminal.heading(title)
        _show(terminal, found)
    return OK


def _show(terminal: Terminal, found: Mapping[str, str | None]) -> None:
    rows = [(key, UNSET if value is None else value) for key, value in sorted(found.items())]
    terminal.write(pairs(rows) if rows else "<none>\n")


def _node_id(terminal: Terminal, given: Given) -> str:
    return find_node(terminal, given["node-id"]).id if given["node-id"] else own_node_id(terminal)
