"""Links: many calls and streams over one connection, whatever carries it.

`link_core` decides, `link` (trio) and `blocking_link` (plain sockets) do; `stream`, `websocket` and `memory` carry.
Nothing is imported here, so that a one-shot command pays only for the parts it uses.
"""
