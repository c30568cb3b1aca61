"""Short ways to declare the two usual kinds of methods: one that reads, and one that writes at the leader."""

from __future__ import annotations

from typing import TypeVar

from fedsched.model.declare import Record
from fedsched.rpc.method import Method, RunsAt, declare

Q = TypeVar("Q", bound=Record)
R = TypeVar("R", bound=Record)


def reads(name: str, request: type[Q], reply: type[R], needs: str, doc: str) -> Method[Q, R]:
    """Declare a method that any server answers from its state."""
    return declare(Method(name, request, reply, RunsAt.ANY_SERVER, needs=needs, doc=doc))


def writes(name: str, request: type[Q], reply: type[R], needs: str, doc: str) -> Method[Q, R]:
    """Declare a method that changes replicated state, through the leader."""
    return declare(Method(name, request, reply, RunsAt.LEADER, needs=needs, writes=True, doc=doc))
