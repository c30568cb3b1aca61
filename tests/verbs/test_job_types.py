"""Job types that are not built in: the servers are asked, and only about those."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsched.model.errors import BadRequest
from fedsched.rpc.methods.agent import AGENT_SCHEDULERS, AgentSchedulersReply, ServerSchedulers
from fedsched.rpc.methods.job import JOB_REGISTER, JobWriteReply
from tests.verbs.commands import fedsched

JOB = 'job "turns" {\n  type = "%s"\n  group "g" {\n    task "t" {\n      driver = "mock"\n    }\n  }\n}\n'
SERVED = {
    AGENT_SCHEDULERS: lambda _: AgentSchedulersReply(
        servers=(ServerSchedulers(id="1", enabled=("service",)), ServerSchedulers(id="2", enabled=("round-robin",)))
    ),
    JOB_REGISTER: lambda _: JobWriteReply(),
}


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for kind in ("round-robin", "batch", "btch"):
        Path(f"{kind}.hcl").write_text(JOB % kind)


def test_a_type_that_some_server_takes_is_valid_and_submitted() -> None:
    assert fedsched("job validate round-robin.hcl", SERVED).out == "Job validation successful\n"

    seen = fedsched("job run -detach round-robin.hcl", SERVED)

    assert seen.code == 0
    assert seen.agent.requests(JOB_REGISTER)[0].job.type == "round-robin"


def test_nobody_is_asked_about_a_built_in_type() -> None:
    assert fedsched("job validate batch.hcl").agent.connections == 0


@pytest.mark.parametrize("verb", ["validate", "run", "plan"])
def test_a_type_that_nobody_takes_is_a_mistake_with_its_line(verb: str) -> None:
    seen = fedsched(f"job {verb} btch.hcl", SERVED)

    assert seen.code == (255 if verb == "plan" else 1)
    assert 'btch.hcl:2:11: Invalid job type: "btch"' in seen.out + seen.err
    assert 'did you mean "batch"?' in seen.out + seen.err
    assert seen.agent.requests(JOB_REGISTER) == []


@pytest.mark.parametrize("verb", ["validate", "run"])
def test_a_type_that_a_server_could_take_says_where_to_enable_it(verb: str) -> None:
    idle = ServerSchedulers(id="1", name="s1", enabled=("service",), idle=("round-robin",))

    seen = fedsched(f"job {verb} round-robin.hcl", {AGENT_SCHEDULERS: lambda _: AgentSchedulersReply(servers=(idle,))})

    assert seen.code == 1
    assert "there is a scheduler for 'round-robin' on s1: add it to enabled_schedulers there" in seen.err


def test_without_an_agent_only_the_built_in_types_are_known() -> None:
    def refuse(_: object) -> None:
        raise BadRequest("not today")

    seen = fedsched("job validate round-robin.hcl", {AGENT_SCHEDULERS: refuse})

    assert seen.code == 1
    assert "could not be asked: not today" in seen.err
    assert fedsched("job run -output round-robin.hcl", {AGENT_SCHEDULERS: refuse}).code == 0
