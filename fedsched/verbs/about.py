"""`version` and `agent-info`: what this program is, and what the agent at the other end is."""

from __future__ import annotations

import sys

from fedsched import __version__
from fedsched.verbs.flags import Given
from fedsched.verbs.terminal import Terminal
from fedsched.verbs.verb import JSON, OK, TEMPLATE, Verbs

VERBS = Verbs()


@VERBS.verb("version", "print the version", is_remote=False)
def version(terminal: Terminal, given: Given) -> int:
    terminal.say(f"fedsched v{__version__}")
    terminal.say(f"Python {sys.version.split()[0]}")
    return OK


@VERBS.verb(
    "agent-info",
    "show what the agent says about itself",
    doc="Shows the figures and facts of the agent it talks to, one block per area.",
    flags=(JSON, TEMPLATE),
)
def agent_info(terminal: Terminal, given: Given) -> int:
    from fedsched.rpc.method import Empty
    from fedsched.rpc.methods.agent import AGENT_SELF

    reply = terminal.client.call(AGENT_SELF, Empty())
    if terminal.formatted(given, lambda: {"config": reply.config, "stats": reply.stats}):
        return OK
    for area, figures in sorted(reply.stats.items()):
        terminal.say(area)
        for name, value in sorted(figures.items()):
            terminal.say(f"  {name} = {value}")
    return OK
