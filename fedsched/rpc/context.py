"""What travels beside a request and a reply: who asks, how fresh the answer must be, how fresh it was."""

from __future__ import annotations

from typing import Annotated, Final

from fedsched.model.declare import Record

HOPS_MAX: Final = 4
"""How often a call is passed on: agent, server, server of the other region or its leader, one change of leader."""


class RequestID(Record):
    """Names one write of one session, so that a retry of it is answered and not done again."""

    session: str
    seq: int


class CallMeta(Record):
    """Said with every call; all of it optional."""

    region: Annotated[str, "Empty: the region of whoever is asked."] = ""
    namespace: Annotated[str, "Empty: `default`."] = ""
    token: str = ""
    stale: Annotated[bool, "Any server may answer from what it has; otherwise reads are linearizable."] = False
    min_index: Annotated[int, "Answer once the result is newer than this index (a blocking query)."] = 0
    max_wait_s: Annotated[float, "How long a blocking query may wait."] = 0.0
    request_id: RequestID | None = None
    hops: Annotated[tuple[str, ...], "Servers this call has passed, so that it cannot run in circles."] = ()


class ReplyMeta(Record):
    """Said with every reply, and with refusals that looked at the state."""

    index: Annotated[int, "The index the answer reflects."] = 0
    applied: Annotated[int, "How much of the log the answering server had applied."] = 0
    leader_known: bool = True
    last_contact_s: Annotated[float, "How long ago the answering server heard from its leader."] = 0.0
    server: Annotated[str, "Who answered."] = ""
