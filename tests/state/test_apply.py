"""Commands as bytes: what decodes, what is refused, and that nothing gets through `apply` as an exception."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsched.codec import CodecError, dumps, loads
from fedsched.model.errors import BadRequest, FedschedError
from fedsched.state import commands as commands_module
from fedsched.state.apply import NOT_UNDERSTOOD, apply, apply_bytes
from fedsched.state.commands import (
    COMMANDS,
    NAMES,
    CommandKind,
    Envelope,
    UnknownCommand,
    decode_command,
    encode_command,
)
from fedsched.state.fields import Command
from fedsched.state.result import Result, refused
from fedsched.state.store import Store
from fedsched.state.tables.evaluations import EvaluationsUpsert, EvaluationWrite
from fedsched.state.tables.jobs import JobDeregister
from fedsched.state.tables.meta import MustStop
from fedsched.state.tables.plans import PlacedGroup, PlanApply
from fedsched.state.tables.sessions import RequestId
from tests.state.golden import a_golden_world
from tests.state.worlds import SECOND, World, commands, problems, requests


@given(commands, requests, st.integers(0, 1 << 62))
def test_a_command_survives_its_encoding(command: Command, request: RequestId | None, time_ns: int) -> None:
    envelope = Envelope(command=command, time_ns=time_ns, request=request)

    assert decode_command(encode_command(envelope)) == envelope


def test_every_command_has_one_name_for_ever() -> None:
    assert sorted(COMMANDS) == [
        "alloc-status-update",
        "alloc-transition",
        "autopilot-config-set",
        "cluster-begin",
        "deployment-alloc-health",
        "deployment-promote",
        "deployment-status-update",
        "deployments-upsert",
        "enable-version",
        "evaluations-upsert",
        "job-deregister",
        "job-dispatch",
        "job-register",
        "job-scale",
        "job-stable",
        "job-tag",
        "namespace-delete",
        "namespace-upsert",
        "node-deregister",
        "node-drain-update",
        "node-eligibility-update",
        "node-pool-delete",
        "node-pool-upsert",
        "node-register",
        "node-status-update",
        "node-upsert",
        "office-begin",
        "periodic-launch",
        "plan-apply",
        "reap",
        "rollout-step",
        "rollout-write",
        "rollouts-reap",
        "scheduler-config-set",
        "service-delete",
        "services-deregister",
        "services-register",
        "variable-delete",
        "variable-put",
    ]
    assert len(NAMES) == len(COMMANDS)


def test_a_placed_allocation_takes_at_most_40_bytes_of_log() -> None:
    count = 1000
    group = PlacedGroup(
        group="web",
        ids=random.Random(1).randbytes(16 * count),
        node_slots=bytes(4 * count),
        name_indexes=bytes(4 * count),
    )
    plan = PlanApply(
        namespace="default",
        job_id="a-job-with-quite-a-name",
        job_create_index=1 << 40,
        job_version=7,
        evaluation_id="e" * 36,
        snapshot_index=1 << 40,
        placed=(group,),
    )

    assert len(encode_command(Envelope(command=plan, time_ns=SECOND))) <= 25 * count


def test_a_command_that_could_not_be_read_back_is_refused_to_its_proposer() -> None:
    with pytest.raises(CodecError):
        encode_command(Envelope(command=JobDeregister(namespace="", id="web"), time_ns=1))
    with pytest.raises(CodecError):
        encode_command(Envelope(command=JobDeregister(namespace="default", id="web"), time_ns=-1))


def test_fields_that_are_not_known_yet_are_ignored() -> None:
    data = loads(encode_command(Envelope(command=JobDeregister(namespace="default", id="web"), time_ns=1)))
    data["c"]["invented_later"] = 1
    data["z"] = "also"

    assert decode_command(dumps(data)).command == JobDeregister(namespace="default", id="web")


def test_an_unknown_command_is_a_no_op_with_an_alarm() -> None:
    world = World()
    with pytest.raises(UnknownCommand):
        decode_command(dumps({"n": "teleport", "t": 1, "c": {}}))
    done = world.send(dumps({"n": "teleport", "t": 1, "c": {}}))

    assert done.result.message == NOT_UNDERSTOOD
    assert "teleport" in done.alarm
    assert world.index == 1


def test_a_command_before_its_version_is_enabled_answers_like_an_unknown_one(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = COMMANDS["job-deregister"]
    monkeypatch.setitem(commands_module.COMMANDS, "job-deregister", CommandKind(kind.record, kind.apply, since=2))
    world = World()
    done = world.do(JobDeregister(namespace="default", id="web"))

    unknown = World().send(dumps({"n": "teleport", "t": 1, "c": {}}))
    assert done.result == unknown.result
    assert "enabled" in done.alarm
    assert not done.changes


def test_indexes_only_grow() -> None:
    store = Store()
    envelope = Envelope(command=JobDeregister(namespace="default", id="web"), time_ns=1)
    apply(store, 5, envelope)
    with pytest.raises(AssertionError):
        apply(store, 5, envelope)


def test_a_refusal_becomes_the_error_that_its_code_names() -> None:
    assert isinstance(refused(1, "bad_request", "no").error(), BadRequest)
    assert type(refused(1, "something else", "no").error()) is FedschedError
    assert Result(index=1).error() is None


def _apply_any(world: World, data: bytes) -> None:
    try:
        world.send(data)
    except MustStop:
        world.log.pop()  # the one thing that may stop a server: a version it does not know


@given(st.lists(st.binary(max_size=60), max_size=5))
def test_any_bytes_are_survived(entries: list[bytes]) -> None:
    world = World()
    for data in entries:
        done = world.send(data)
        assert done.result.code == "bad_request"
        assert done.alarm
    assert world.store.digest() == world.replayed().digest()


_plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.text(max_size=5) | st.binary(max_size=33),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(sorted(COMMANDS)), st.data())
@settings(max_examples=200)
def test_any_values_in_the_fields_of_any_command_are_survived(name: str, data: st.DataObject) -> None:
    record = COMMANDS[name].record
    world = a_golden_world()
    fields = {field: data.draw(_plain) for field in record.__struct_fields__ if data.draw(st.booleans())}
    _apply_any(world, dumps({"n": name, "t": data.draw(st.integers(0, 5)), "c": fields}))

    assert problems(world.store) == []


@given(st.data())
@settings(max_examples=200)
def test_real_commands_with_one_thing_changed_are_survived(data: st.DataObject) -> None:
    world = a_golden_world()
    entries = [entry for entry in world.log if entry != b"not a command"]
    value = loads(data.draw(st.sampled_from(entries)))
    _change_one(value["c"], data)
    _apply_any(world, dumps(value))

    assert problems(world.store) == []
    assert world.store.digest() == world.replayed().digest()


@given(st.data())
@settings(max_examples=200)
def test_real_commands_with_bytes_flipped_are_survived(data: st.DataObject) -> None:
    world = a_golden_world()
    entry = bytearray(data.draw(st.sampled_from(world.log)))
    for _ in range(data.draw(st.integers(1, 3))):
        entry[data.draw(st.integers(0, len(entry) - 1))] = data.draw(st.integers(0, 255))
    _apply_any(world, bytes(entry))

    assert problems(world.store) == []


def _change_one(value: object, data: st.DataObject) -> None:
    """Replace one leaf of a tree of plain values by something else."""
    if isinstance(value, dict) and value:
        key = data.draw(st.sampled_from(sorted(value)))
        if isinstance(value[key], dict | list) and value[key] and data.draw(st.booleans()):
            _change_one(value[key], data)
        elif isinstance(value[key], bytes) and data.draw(st.booleans()):
            value[key] = _other_bytes(value[key], data)
        else:
            value[key] = data.draw(_plain)
    elif isinstance(value, list) and value:
        _change_one(value[data.draw(st.integers(0, len(value) - 1))], data)


def _other_bytes(value: bytes, data: st.DataObject) -> bytes:
    changed = bytearray(value)
    if changed:
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    return bytes(changed)


def test_an_evaluation_status_that_does_not_exist_is_not_a_command() -> None:
    data = loads(
        encode_command(
            Envelope(command=EvaluationsUpsert(evaluations=(EvaluationWrite(id="e", status="failed"),)), time_ns=1)
        )
    )
    data["c"]["evaluations"][0]["status"] = "sleepy"

    assert apply_bytes(Store(), 1, dumps(data)).alarm
