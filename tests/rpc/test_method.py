"""The method table: complete, well-formed, and every record in it travels."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec
import pytest

from fedsched.codec import from_bytes, to_bytes, to_bytes_sparse
from fedsched.model.declare import Record, fields_of
from fedsched.model.job import Job
from fedsched.rpc.method import RunsAt, UnknownMethod, all_methods, declare, method_named
from fedsched.rpc.methods.job import JOB_REGISTER, JobRegisterRequest
from fedsched.wire.call_state import Flow
from tests.rpc.builders import a_method

CAPABILITIES = {
    "",
    "server",
    "pool",
    "agent:write",
    "management",
    "agent:read",
    "node:read",
    "operator:read",
    "operator:write",
    "read-job",
    "list-jobs",
    "submit-job",
    "scale-job",
    "read-job-scaling",
    "dispatch-job",
    "alloc-exec",
    "read-logs",
    "read-fs",
    "alloc-lifecycle",
    "node:write",
    "variables:list",
    "variables:read",
    "variables:write",
    "variables:destroy",
}


def an_example(kind: type[Record]) -> Record:
    """A record with its required fields filled in."""
    fillers: dict[Any, Any] = {str: "x", int: 1, bytes: b"x", bool: True, float: 1.5}
    given = {}
    for info in fields_of(kind):
        if info.is_required:
            given[info.name] = fillers[info.type] if info.type in fillers else _made(info.type)
    return kind(**given)


def _made(kind: Any) -> Any:
    return next(iter(kind)) if issubclass(kind, StrEnum) else an_example(kind)


def declared() -> list[Any]:
    return [method for method in all_methods() if not method.name.startswith("Test.")]


def test_the_table_has_what_a_region_of_servers_needs() -> None:
    assert {method.noun for method in declared()} >= {
        "Agent",
        "Alloc",
        "Autopilot",
        "Deployment",
        "Eval",
        "Job",
        "Namespace",
        "Node",
        "NodePool",
        "Operator",
        "Periodic",
        "Raft",
        "Server",
        "Snapshot",
        "Status",
        "System",
    }
    assert method_named("Job.Register") is JOB_REGISTER


def test_every_method_says_what_it_needs_in_a_known_word_and_what_it_does_in_a_sentence() -> None:
    for method in declared():
        assert method.needs in CAPABILITIES, method.name
        assert method.doc.endswith("."), method.name


def test_what_writes_runs_at_the_leader() -> None:
    for method in declared():
        assert not method.writes or method.runs_at is RunsAt.LEADER, method.name


def test_every_request_and_reply_survives_the_trip_in_both_forms() -> None:
    for method in declared():
        for kind in (method.request, method.reply):
            record = an_example(kind)
            assert from_bytes(to_bytes(record), kind) == record
            assert from_bytes(to_bytes_sparse(record), kind) == record


def test_a_whole_job_travels_in_a_register_request() -> None:
    request = JobRegisterRequest(job=Job(id="web"), enforce_index=True)

    assert from_bytes(to_bytes_sparse(request), JobRegisterRequest) == request
    assert len(to_bytes_sparse(request)) < 60


def test_an_unknown_method_is_answered_with_its_neighbours() -> None:
    with pytest.raises(UnknownMethod, match=r"no method 'Status\.Weather'") as caught:
        method_named("Status.Weather")
    assert caught.value.hint == "there are Status.Clock, Status.Leader, Status.Peers"
    with pytest.raises(UnknownMethod, match="no method"):
        method_named("x" * 1000)


@pytest.mark.parametrize(
    ("name", "changes", "why"),
    [
        ("Register", {}, "not Noun.Verb"),
        ("Job.Register.Now", {}, "not Noun.Verb"),
        ("Test.Add", {}, "declared twice"),
        ("Test.New", {"flow": Flow.DOWN}, "needs an item type"),
        ("Test.New", {"item": bytes}, "needs an item type"),
        ("Test.New", {"doc": ""}, "no doc line"),
    ],
)
def test_a_declaration_that_is_off_is_refused_at_import(name: str, changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        declare(a_method(name, **changes))


def test_records_grow_without_breaking_older_readers() -> None:
    class NewerRequest(JobRegisterRequest):
        a_new_field: int = 3

    newer = NewerRequest(job=Job(id="web"), a_new_field=9)

    assert from_bytes(to_bytes(newer), JobRegisterRequest).job.id == "web"
    assert msgspec.structs.fields(NewerRequest)
