"""`server join`, `server force-leave` and `operator gossip keyring`, as people and scripts see them."""

from __future__ import annotations

import base64
import json

from fedsched.model.errors import Conflict
from fedsched.rpc.methods.gossip import (
    AGENT_FORCE_LEAVE,
    AGENT_JOIN,
    OPERATOR_KEYRING_CHANGE,
    OPERATOR_KEYRING_LIST,
    OPERATOR_KEYRING_ROTATE,
    AgentForceLeaveReply,
    AgentForceLeaveRequest,
    AgentJoinReply,
    AgentJoinRequest,
    JoinFailure,
    KeyHolding,
    KeyMember,
    KeyringChangeRequest,
    KeyringReply,
    KeyringRotateRequest,
    KeyStep,
)
from tests.verbs.commands import fedsched

OLD, NEW = "0123456789abcdef", "fedcba9876543210"


def test_joining_says_how_many_let_us_in_and_why_others_did_not() -> None:
    asked: list[AgentJoinRequest] = []

    def join(request: AgentJoinRequest) -> AgentJoinReply:
        asked.append(request)
        return AgentJoinReply(
            joined=1, failures=(JoinFailure(address="b:1", why="no member of the pool answers there"),)
        )

    seen = fedsched("server join a b:1", {AGENT_JOIN: join})

    assert asked[0].addresses == ("a", "b:1")
    assert (seen.code, seen.out) == (0, "Joined 1 server successfully\n")
    assert seen.err == "b:1: no member of the pool answers there\n"


def test_joining_nobody_is_a_failure() -> None:
    reply = AgentJoinReply(failures=(JoinFailure(address="a", why="no answer within 8 s"),))
    seen = fedsched("server join a", {AGENT_JOIN: lambda _: reply})
    assert (seen.code, seen.out, seen.err) == (1, "", "a: no answer within 8 s\n")


def test_a_failed_member_is_let_go_or_forgotten() -> None:
    def force(request: AgentForceLeaveRequest) -> AgentForceLeaveReply:
        return AgentForceLeaveReply(name=f"{request.name}.eu{'!' if request.prune else ''}")

    assert fedsched("server force-leave s1", {AGENT_FORCE_LEAVE: force}).out == "Member s1.eu has left\n"
    assert fedsched("server force-leave -prune s1", {AGENT_FORCE_LEAVE: force}).out == "Member s1.eu! is forgotten\n"


def test_a_member_that_is_up_is_not_let_go() -> None:
    def force(_: AgentForceLeaveRequest) -> AgentForceLeaveReply:
        raise Conflict("s1.eu is alive", hint="stop it")

    seen = fedsched("server force-leave s1.eu", {AGENT_FORCE_LEAVE: force})
    assert seen.code == 1
    assert "s1.eu is alive" in seen.err


def test_a_key_is_made_without_asking_anybody() -> None:
    one, other = (fedsched("operator gossip keyring generate", {}).out.strip() for _ in range(2))
    assert one != other
    assert len(base64.b64decode(one, validate=True)) == 32


def test_keys_are_listed_by_fingerprint_and_silent_members_by_name() -> None:
    reply = KeyringReply(
        steps=(KeyStep(operation="list", asked=3, answered=2, failures=(KeyMember(name="s3.us", error="gone"),)),),
        keys=(
            KeyHolding(fingerprint=NEW, held_by=2, primary_of=1),
            KeyHolding(fingerprint=OLD, held_by=1, primary_of=1),
        ),
        members=3,
    )
    seen = fedsched("operator gossip keyring list", {OPERATOR_KEYRING_LIST: lambda _: reply})
    assert seen.out == (
        "Fingerprint       Held By  Sealing\nfedcba9876543210  2/3      1/3\n0123456789abcdef  1/3      1/3\n"
    )
    assert (seen.code, seen.err) == (1, "s3.us: gone\n")
    as_json = json.loads(fedsched("operator gossip keyring list -json", {OPERATOR_KEYRING_LIST: lambda _: reply}).out)
    assert as_json["Keys"][0] == {"Fingerprint": NEW, "HeldBy": 2, "PrimaryOf": 1}


def test_a_step_by_hand_says_how_many_did_it() -> None:
    def change(request: KeyringChangeRequest) -> KeyringReply:
        step = KeyStep(operation=request.operation, fingerprint=NEW, asked=4, answered=4)
        return KeyringReply(steps=(step,), keys=(KeyHolding(fingerprint=NEW, held_by=4, primary_of=4),), members=4)

    for operation in ("install", "use", "remove"):
        seen = fedsched(f"operator gossip keyring {operation} {NEW}", {OPERATOR_KEYRING_CHANGE: change})
        assert seen.out.startswith(f"{operation} {NEW}: 4 of 4 members\nFingerprint")
        assert seen.code == 0


def test_a_rotation_passes_on_its_grace_and_says_when_former_keys_go() -> None:
    asked: list[KeyringRotateRequest] = []

    def rotate(request: KeyringRotateRequest) -> KeyringReply:
        asked.append(request)
        return KeyringReply(removal_in_s=request.grace_s or None)

    seen = fedsched("operator gossip keyring rotate", {OPERATOR_KEYRING_ROTATE: rotate})
    assert seen.out.endswith("Former keys will be removed in 1h0m0s\n")
    seen = fedsched("operator gossip keyring rotate -grace 0s", {OPERATOR_KEYRING_ROTATE: rotate})
    assert "Former" not in seen.out
    assert [one.grace_s for one in asked] == [3600.0, 0.0]
