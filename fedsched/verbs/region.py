"""`region ...`: the regions of the federation."""

from __future__ import annotations

from fedsched.model.record import to_api
from fedsched.rpc.method import Empty
from fedsched.rpc.methods.server import REGION_LIST
from fedsched.verbs.flags import Given
from fedsched.verbs.terminal import Terminal
from fedsched.verbs.verb import JSON, OK, TEMPLATE, Verbs
from fedsched.verbs.view import columns

VERBS = Verbs()
HEAD = ("Name", "State", "Servers", "Leader", "Build")


@VERBS.verb(
    "region list",
    "list the regions and how they are",
    doc="Lists every region that the agent's servers know, also those of which none answers. Other regions are shown as"
    " gossip has them: a few seconds may pass before a death is known.",
    flags=(JSON, TEMPLATE),
)
def list_(terminal: Terminal, given: Given) -> int:
    found = terminal.client.call(REGION_LIST, Empty()).regions
    if terminal.formatted(given, lambda: [to_api(region) for region in found]):
        return OK
    rows = [
        (
            f"{one.name}*" if one.is_own else one.name,
            one.state,
            f"{one.servers_up}/{one.servers}",
            one.leader or "<unknown>",
            ", ".join(one.builds),
        )
        for one in found
    ]
    terminal.write(columns(HEAD, rows))
    terminal.write("\n* the region of the agent that was asked; -region names another one\n")
    return OK
