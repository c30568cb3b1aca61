"""Both forms of every record: what goes out comes back, and equal records give equal data."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsched.model.declare import InJson, Record, UpdateClass, api_name, fields_of
from fedsched.model.evaluation import Evaluation, EvaluationStatus
from fedsched.model.job import Job
from fedsched.model.node import DrainStrategy, Node
from fedsched.model.plain_form import from_plain, to_plain
from fedsched.model.record import Malformed, from_api, to_api
from fedsched.model.resources import Resources
from fedsched.model.service import ServiceRegistration
from fedsched.model.task import LogConfig, Task
from fedsched.model.variable import Variable
from tests.builders import a_group, a_job, a_node, a_task, an_alloc, an_evaluation
from tests.model.strategies import all_records, records

LOSSY = {InJson.NEVER, InJson.INPUT_ONLY, InJson.REDACTED}
EXAMPLES = settings(max_examples=8)


class Ping(Record, tag="ping"):
    """A member of a tagged union."""

    n: int = 0


class Box(Record):
    """Holds one."""

    inside: Ping | None = None


class Holder(Record):
    """Nothing here has a default."""

    job: Job
    count: int
    note: str | None


class Strange(Record):
    """Holds what JSON cannot."""

    thing: int | str = 0


@pytest.mark.parametrize("kind", all_records(), ids=lambda kind: kind.__qualname__)
@EXAMPLES
@given(data=st.data())
def test_internal_form_brings_every_record_back(kind: type[Record], data: st.DataObject) -> None:
    record = data.draw(records(kind))

    assert from_plain(kind, to_plain(record)) == record
    assert from_plain(kind, msgspec.to_builtins(record, builtin_types=(bytes,))) == record


@pytest.mark.parametrize("kind", all_records(), ids=lambda kind: kind.__qualname__)
@EXAMPLES
@given(data=st.data())
def test_api_form_is_json_and_reads_back_to_the_same_api_form(kind: type[Record], data: st.DataObject) -> None:
    sent = to_api(data.draw(records(kind)))

    received = json.loads(json.dumps(sent))

    assert received == sent
    assert to_api(from_api(kind, received)) == sent


@settings(max_examples=60)
@given(job=records(Job), evaluation=records(Evaluation), node=records(Node))
def test_api_form_brings_the_main_nouns_back(job: Any, evaluation: Any, node: Any) -> None:
    for record in (job, evaluation, node):
        assert _shown(from_api(type(record), to_api(record))) == _shown(record)


def _shown(record: Any) -> Any:
    """Give the record without what the API form may not tell (redacted, input only), at every depth."""
    if isinstance(record, Record):
        hidden = {info.name: None for info in fields_of(type(record)) if info.in_json & LOSSY}
        values = {info.name: getattr(record, info.name) for info in fields_of(type(record))}
        sparse = {name for name, value in values.items() if not value} if record.sparse else set()
        return {name: _shown(value) for name, value in values.items() if name not in hidden and name not in sparse}
    if isinstance(record, tuple):
        return [_shown(item) for item in record]
    if isinstance(record, dict):
        return {key: _shown(value) for key, value in record.items()}
    return record


def test_equal_records_give_equal_data_however_they_came_about() -> None:
    decoded = from_plain(Resources, json.loads('{"CPU": 100, "MemoryMB": 300}'))

    assert decoded == Resources()
    assert to_plain(decoded) == to_plain(Resources()) == {}


def test_whole_seconds_given_as_integers_are_written_as_floats() -> None:
    assert type(to_plain(a_task(kill_timeout_s=7))["KillTimeoutS"]) is float


def test_lists_and_maps_of_records_have_an_internal_form() -> None:
    assert to_plain({"jobs": (LogConfig(),), "raw": b"x", "n": 1}) == {"jobs": [{}], "raw": b"x", "n": 1}


def test_tagged_records_keep_their_tag() -> None:
    assert to_plain(Box(inside=Ping(n=1))) == {"Inside": {"type": "ping", "N": 1}}
    assert from_plain(Box, {"Inside": {"type": "ping", "N": 1}}) == Box(inside=Ping(n=1))


def test_internal_form_of_the_wrong_shape_is_refused_with_its_place() -> None:
    with pytest.raises(Malformed, match=r"Job: Expected `int`, got `str` - at `\$.Priority`"):
        from_plain(Job, {"ID": "x", "Priority": "high"})


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ({"TaskGroups": [{"Count": "x"}]}, "Job.TaskGroups[0].Count: expected integer, got string 'x'"),
        ({"TaskGroups": {}}, "Job.TaskGroups: expected list, got object"),
        ({"TaskGroups": [None]}, "Job.TaskGroups[0]: expected object, got null"),
        ({"Priority": True}, "Job.Priority: expected integer, got boolean True"),
        ({"Priority": 1.5}, "Job.Priority: expected integer, got number 1.5"),
        ({"Priority": 2**64}, "Job.Priority: expected an integer of 64 bits, got a larger one"),
        ({"ID": 7}, "Job.ID: expected string, got integer 7"),
        ({"ID": "\ud800"}, "Job.ID: expected valid Unicode, got half of a surrogate pair"),
        ({"Stop": 1}, "Job.Stop: expected boolean, got integer 1"),
        ({"Meta": {"a": 1}}, "Job.Meta['a']: expected string, got integer 1"),
        ({"Meta": ["a"]}, "Job.Meta: expected object, got list"),
        ({"Payload": "?"}, "Job.Payload: expected base64, got string '?' (Only base64 data is allowed)"),
        ({"Status": "odd"}, "Job.Status: expected one of 'pending', 'running', 'dead', got string 'odd'"),
        ({"Status": []}, "Job.Status: expected one of 'pending', 'running', 'dead', got list"),
        ({"ID": "x" * 99, "Name": ["x"]}, "Job.Name: expected string, got list"),
        ({"Priority": "y" * 99}, f"Job.Priority: expected integer, got string '{'y' * 56}..."),
        ([], "Job: expected object, got list"),
        ({"Update": {"Stagger": 1.5}}, "Job.Update.Stagger: expected duration (nanoseconds or text), got number 1.5"),
        ({"Update": {"Stagger": "5"}}, "Job.Update.Stagger: invalid duration '5'"),
        ({"Update": {"Stagger": 2**63}}, "Job.Update.Stagger: expected a duration of at most 292 years"),
        ({"TaskGroups": [{"Tasks": [{"Config": {"a": 2**70}}]}]}, "Config['a']: expected an integer of 64 bits"),
    ],
)
def test_wrong_value_is_refused_with_its_path(plain: Any, message: str) -> None:
    with pytest.raises(Malformed) as caught:
        from_api(Job, plain)

    assert message in str(caught.value)


def test_free_form_data_has_a_depth_limit() -> None:
    deep: Any = 1
    for _ in range(100):
        deep = [deep]

    with pytest.raises(Malformed, match="nested deeper than 64 levels"):
        from_api(Task, {"Config": {"a": deep}})


def test_wrong_number_and_time_are_refused() -> None:
    with pytest.raises(Malformed, match=r"NodeScoreMeta.NormScore: expected number, got string"):
        from_api(_class("NodeScoreMeta"), {"NormScore": "x"})
    with pytest.raises(Malformed, match=r"TaskState.StartedAt: invalid time 'today'"):
        from_api(_class("TaskState"), {"StartedAt": "today"})


def test_unknown_keys_are_passed_over_and_reported_with_their_path_on_request() -> None:
    plain = {"ID": "x", "Nope": 1, "TaskGroups": [{"Name": "g", "Tasks": [{"Name": "t", "Odd": {}}]}]}
    unknown: list[str] = []

    job = from_api(Job, plain, unknown=unknown)

    assert job == from_api(Job, plain)
    assert unknown == ["Job.Nope", "Job.TaskGroups[0].Tasks[0].Odd"]


def test_key_that_is_no_text_is_passed_over() -> None:
    assert from_api(LogConfig, {1: 2}) == LogConfig()


def test_null_means_absent_unless_none_is_a_value() -> None:
    assert from_api(Task, {"Name": None, "Env": None, "KillTimeout": None}) == Task(name="")
    assert from_api(_class("CheckRestart"), {"Grace": None}).grace_s is None


def test_missing_status_without_a_default_is_refused() -> None:
    with pytest.raises(Malformed, match=r"DeploymentStatusUpdate.Status: missing"):
        from_api(_class("DeploymentStatusUpdate"), {"DeploymentID": "x"})


def test_missing_records_are_filled_with_zeros() -> None:
    assert from_api(Holder, {}) == Holder(job=Job(id=""), count=0, note=None)


def test_durations_are_accepted_as_text_everywhere() -> None:
    assert from_api(DrainStrategy, {"Deadline": "1h30m"}).deadline_s == 5400.0
    assert from_api(Task, {"Name": "t", "KillTimeout": 7_000_000_000}).kill_timeout_s == 7.0


def test_longest_duration_comes_back_as_it_went_in() -> None:
    plain = {"Deadline": 2**63 - 1}

    assert to_api(from_api(DrainStrategy, plain))["Deadline"] == plain["Deadline"]


def test_field_without_a_json_form_is_a_mistake_in_the_declaration() -> None:
    with pytest.raises(TypeError, match="no JSON form"):
        from_api(Strange, {"Thing": 1})


def test_whole_numbers_may_come_as_floats() -> None:
    assert from_api(LogConfig, {"MaxFiles": 7.0}).max_files == 7


def test_empty_lists_and_maps_are_null_but_for_the_declared_exceptions() -> None:
    task = to_api(Task(name="t"))
    assert task["Env"] is None
    assert task["Services"] is None
    assert to_api(ServiceRegistration(id="x"))["Tags"] == []
    assert to_api(Node(id="x"))["Links"] == {}
    assert to_api(Variable(path="p"))["Items"] == {}


def test_sparse_records_leave_out_what_is_empty() -> None:
    assert to_api(Evaluation(id="e", status=EvaluationStatus.BLOCKED)) == {
        "ID": "e",
        "Namespace": "default",
        "Status": "blocked",
    }
    assert "DesiredTransition" not in to_api(an_alloc())


def test_secrets_are_never_shown_and_derived_members_are() -> None:
    node = a_node(secret_id="hush", drain_strategy=DrainStrategy())

    shown = to_api(node)

    assert shown["SecretID"] == ""
    assert shown["Drain"] is True
    assert from_api(Node, {"SecretID": "hush"}).secret_id == "hush"
    assert "SecretHash" not in to_api(_class("ACLToken")(accessor_id="a"))


def test_names_follow_nomads_spelling() -> None:
    assert api_name("job_id") == "JobID"
    assert api_name("kill_timeout_s") == "KillTimeout"
    assert api_name("create_time_ns") == "CreateTime"
    assert api_name("memory_max_mb") == "MemoryMaxMB"
    assert api_name("failed_tg_allocs") == "FailedTGAllocs"
    assert api_name("global_") == "Global"
    assert api_name("l_target") == "LTarget"


def test_declarations_tell_name_unit_update_class_and_doc() -> None:
    fields = {info.name: info for info in fields_of(Task)}

    assert fields["kill_timeout_s"].internal_name == "KillTimeoutS"
    assert fields["kill_timeout_s"].update is UpdateClass.IN_PLACE
    assert fields["kill_timeout_s"].doc.startswith("How long to wait")
    assert fields["kill_timeout_s"].default == 5.0
    assert fields["env"].update is UpdateClass.DESTRUCTIVE
    assert fields["name"].is_required
    assert {info.name: info for info in fields_of(Job)}["submit_time_ns"].update is UpdateClass.BOOKKEEPING


@pytest.mark.parametrize("kind", all_records(), ids=lambda kind: kind.__qualname__)
def test_every_record_says_what_it_is_and_names_no_member_twice(kind: type[Record]) -> None:
    fields = fields_of(kind)

    assert kind.__doc__
    for names in ([info.api_name for info in fields], [info.internal_name for info in fields]):
        assert len({name.lower() for name in names}) == len(names)


def test_records_are_frozen_and_outside_of_garbage_collection() -> None:
    job = a_job()

    with pytest.raises(AttributeError):
        job.id = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        Job("x")  # type: ignore[call-arg, arg-type]
    assert not Job.__struct_config__.gc
    assert a_group().meta is not a_group().meta


def test_builders_build_what_both_forms_can_carry() -> None:
    for record in (a_job(), a_node(), an_alloc(), an_evaluation()):
        assert from_api(type(record), to_api(record)) == record
        assert from_plain(type(record), to_plain(record)) == record


def _class(name: str) -> type[Any]:
    return next(kind for kind in all_records() if kind.__name__ == name)
