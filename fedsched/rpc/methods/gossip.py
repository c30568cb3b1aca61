"""The pool of all servers: entering it, letting go of members, and its keys."""

from __future__ import annotations

from typing import Annotated

from fedsched.model.declare import Record
from fedsched.rpc.method import Empty, Method, RunsAt, declare


class AgentJoinRequest(Record):
    addresses: Annotated[tuple[str, ...], "Gossip addresses, host or host:port, of members to enter by."] = ()


class JoinFailure(Record):
    address: str = ""
    why: str = ""


class AgentJoinReply(Record):
    joined: Annotated[int, "How many of the addresses let this server in."] = 0
    failures: tuple[JoinFailure, ...] = ()


class AgentForceLeaveRequest(Record):
    name: Annotated[str, "Of the member, `<server>.<region>`; in its own region the server's name alone."] = ""
    prune: Annotated[bool, "Forget it at once, instead of keeping it as one that left."] = False


class AgentForceLeaveReply(Record):
    name: str = ""


class KeyOrder(Record):
    """What one member is to do with its own ring."""

    operation: Annotated[str, "list, install, use or remove."] = "list"
    key: Annotated[bytes, "The key itself, to install it."] = b""
    fingerprint: Annotated[str, "Of the key to use or to remove."] = ""


class KeyOrderReply(Record):
    fingerprints: Annotated[tuple[str, ...], "Of the member's keys after that, the one it seals with first."] = ()


class KeyMember(Record):
    """A member that was asked, and what came of it."""

    name: str = ""
    error: Annotated[str, "Empty if it did what it was asked."] = ""


class KeyHolding(Record):
    """One key, over all members that answered."""

    fingerprint: str = ""
    held_by: Annotated[int, "Members that can read what is sealed with it."] = 0
    primary_of: Annotated[int, "Members that seal with it."] = 0


class KeyStep(Record):
    """One round over all members that are up."""

    operation: str = ""
    fingerprint: str = ""
    asked: int = 0
    answered: int = 0
    failures: Annotated[tuple[KeyMember, ...], "Members that did not do it, or did not answer."] = ()


class KeyringChangeRequest(Record):
    operation: Annotated[str, "install, use or remove."] = ""
    key: Annotated[str, "In base64; to use or to remove one, its fingerprint will do."] = ""


class KeyringRotateRequest(Record):
    key: Annotated[str, "The new key in base64; empty: one is made here."] = ""
    grace_s: Annotated[float, "How long the former keys stay readable."] = 3600.0


class KeyringReply(Record):
    steps: tuple[KeyStep, ...] = ()
    keys: Annotated[tuple[KeyHolding, ...], "As it stands after the steps."] = ()
    members: Annotated[int, "Members that are up."] = 0
    fingerprint: Annotated[str, "Of the key that was meant, or made."] = ""
    removal_in_s: Annotated[float | None, "When the former keys will be removed; None if that is done or not due."] = (
        None
    )


AGENT_JOIN = declare(
    Method(
        "Agent.Join",
        AgentJoinRequest,
        AgentJoinReply,
        RunsAt.ANY_SERVER,
        needs="agent:write",
        needs_quorum=False,
        doc="Have the server that answers enter the gossip pool by way of other members.",
    )
)
AGENT_FORCE_LEAVE = declare(
    Method(
        "Agent.ForceLeave",
        AgentForceLeaveRequest,
        AgentForceLeaveReply,
        RunsAt.ANY_SERVER,
        needs="agent:write",
        needs_quorum=False,
        doc="Take a failed member for one that left.",
    )
)
GOSSIP_KEYS = declare(
    Method(
        "Gossip.Keys",
        KeyOrder,
        KeyOrderReply,
        RunsAt.THIS_AGENT,
        needs="pool",
        doc="Look at the gossip keys of one server, or change them.",
    )
)
OPERATOR_KEYRING_LIST = declare(
    Method(
        "Operator.KeyringList",
        Empty,
        KeyringReply,
        RunsAt.ANY_SERVER,
        needs="operator:read",
        needs_quorum=False,
        doc="The gossip keys, and how many members have each.",
    )
)
OPERATOR_KEYRING_CHANGE = declare(
    Method(
        "Operator.KeyringChange",
        KeyringChangeRequest,
        KeyringReply,
        RunsAt.ANY_SERVER,
        needs="operator:write",
        needs_quorum=False,
        doc="Install a gossip key on every member, seal with it everywhere, or remove it everywhere.",
    )
)
OPERATOR_KEYRING_ROTATE = declare(
    Method(
        "Operator.KeyringRotate",
        KeyringRotateRequest,
        KeyringReply,
        RunsAt.ANY_SERVER,
        needs="operator:write",
        needs_quorum=False,
        doc="Replace the gossip key everywhere: install, use, and after a while remove the former ones.",
    )
)
