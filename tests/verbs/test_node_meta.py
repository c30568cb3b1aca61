"""`node meta` and `-self`: the node of the agent one talks to, and its labels."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fedsched.model.errors import NotFound
from fedsched.rpc.methods import node as nodes
from fedsched.rpc.methods import node_calls
from fedsched.rpc.methods.agent import AGENT_SELF, AgentSelfReply
from tests.builders import a_node
from tests.verbs.commands import Seen, fedsched

NODE = a_node(1)
REPLY = node_calls.NodeMetaReply(
    meta={"rack": "r2"}, dynamic={"rack": "r2", "zone": None}, static={"rack": "r1", "zone": "a"}
)


def run(line: str, *, own: str = NODE.id) -> Seen:
    def refuse(request: Any) -> Any:
        raise NotFound("none")

    answers: Mapping[Any, Any] = {
        AGENT_SELF: lambda _: AgentSelfReply(stats={"client": {"node_id": own}} if own else {}),
        nodes.NODE_LIST: lambda request: nodes.NodeListReply(
            nodes=(NODE.stub(),) if NODE.id.startswith(request.prefix) else ()
        ),
        nodes.NODE_GET: lambda _: nodes.NodeGetReply(node=NODE),
        nodes.NODE_ALLOCS: lambda _: nodes.NodeAllocsReply(),
        nodes.NODE_ELIGIBILITY: lambda _: nodes.NodeWriteReply(),
        node_calls.NODE_STATS: refuse,
        node_calls.NODE_META_READ: lambda _: REPLY,
        node_calls.NODE_META_APPLY: lambda _: REPLY,
    }
    return fedsched(line, answers)


def test_labels_are_shown_by_where_they_come_from() -> None:
    seen = run("node meta read")

    assert seen.out == (
        "\nAll Meta\nrack = r2\n"
        "\nDynamic Meta\nrack = r2\nzone = <unset>\n"
        "\nStatic Meta\nrack = r1\nzone = a\n"
    )  # fmt: skip
    assert seen.agent.requests(node_calls.NODE_META_READ)[0].node_id == NODE.id
    assert json.loads(run("node meta read -json").out)["Dynamic"] == {"rack": "r2", "zone": None}


def test_labels_are_set_and_taken_away_in_one_go_on_the_node_that_is_named() -> None:
    seen = run(f"node meta apply -node-id {NODE.id[:8]} -unset zone,old rack=r2 note=a=b", own="")

    request = seen.agent.requests(node_calls.NODE_META_APPLY)[0]
    assert request.node_id == NODE.id
    assert request.meta == {"zone": None, "old": None, "rack": "r2", "note": "a=b"}
    assert seen.out.startswith("Metadata applied: note, old, rack, zone.")


def test_what_was_typed_wrongly_is_refused_before_anything_is_asked() -> None:
    assert "neither a label to set" in run("node meta apply").err
    assert "'rack' is not key=value" in run("node meta apply rack").err
    assert "'rack' is named twice" in run("node meta apply -unset rack rack=r1").err


def test_self_is_the_node_of_the_agent_that_is_asked() -> None:
    assert f"ID              = {NODE.id}\n" in run("node status -self -short").out
    assert json.loads(run("node status -self -json").out)["ID"] == NODE.id
    assert f'Node "{NODE.id}" scheduling' in run("node eligibility -disable -self").out


def test_an_agent_that_runs_no_tasks_has_no_self() -> None:
    seen = run("node status -self", own="")

    assert seen.code == 1
    assert "the agent at this address is no client" in seen.err
