"""Diffs, held against recorded plans."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from fedsched.model.compare import same_spec, update_class
from fedsched.model.constraint import Spread
from fedsched.model.diff import DiffType, diff_jobs, diff_records
from fedsched.model.diff_annotations import FORCES_IN_PLACE, annotated
from fedsched.model.job import Job, JobStatus
from fedsched.model.network import NetworkResource, Port
from fedsched.model.plan import PlanAnnotations
from fedsched.model.policies import RestartPolicy
from fedsched.model.record import UpdateClass, from_api, to_api
from fedsched.model.scaling import ScalingPolicy
from fedsched.model.service import Service
from fedsched.model.task import Template
from fedsched.model.volume import VolumeRequest
from tests.builders import a_group, a_job, a_task
from tests.model.fixtures import load
from tests.model.strategies import records
from tests.model.test_job_defaults import admitted

PLANS = load("plans")["plans"]
BEFORE = PLANS[0]["job"]


@pytest.mark.parametrize("case", [pytest.param(case, id=case["name"]) for case in PLANS[1:]])
def test_recorded_plan_has_the_recorded_diff(case: dict[str, Any]) -> None:
    old = None if case["diff"]["Type"] == "Added" else admitted(BEFORE)
    new = admitted(case["job"])

    diff = annotated(diff_jobs(old, new), old, new, from_api(PlanAnnotations, case["annotations"]))

    assert to_api(diff) == case["diff"]


@settings(max_examples=40)
@given(records(Job))
def test_diff_of_equal_jobs_is_empty(job: Job) -> None:
    diff = diff_jobs(job, job)

    assert diff.type is DiffType.NONE
    assert (diff.fields, diff.objects) == ((), ())
    assert all(group.type is DiffType.NONE for group in diff.task_groups)
    assert same_spec(job, job)


@settings(max_examples=40)
@given(records(Job), records(Job))
def test_added_and_deleted_mirror_each_other(old: Job, new: Job) -> None:
    there, back = diff_jobs(old, new), diff_jobs(new, old)

    assert {(f.name, f.old, f.new) for f in there.fields} == {(f.name, f.new, f.old) for f in back.fields}
    assert (there.type is DiffType.NONE) == (back.type is DiffType.NONE)


def test_bookkeeping_is_no_difference() -> None:
    job = a_job()
    later = replace(job, status=JobStatus.RUNNING, version=3, modify_index=9, submit_time_ns=5, stable=True)

    assert diff_jobs(job, later).type is DiffType.NONE
    assert same_spec(job, later)
    assert not same_spec(job, replace(job, stop=True))


def test_bookkeeping_below_is_no_difference_either() -> None:
    one = a_job(groups=[a_group(scaling=ScalingPolicy(max=3))])
    two = a_job(groups=[a_group(scaling=ScalingPolicy(max=3, id="x", create_index=4))])

    assert diff_jobs(one, two).type is DiffType.NONE
    assert same_spec(one, two)


def test_changed_spread_shows_although_a_new_one_does_not() -> None:
    one, two = a_group(), a_group(spreads=(Spread(attribute="${node.datacenter}"),))

    changed = diff_jobs(a_job(groups=[one]), a_job(groups=[two]))

    assert [(o.type, o.name) for o in changed.task_groups[0].objects] == [(DiffType.ADDED, "Spread")]
    assert "Spread" not in [o.name for o in diff_jobs(None, a_job(groups=[two])).task_groups[0].objects]


def test_volumes_static_ports_and_free_form_data_show() -> None:
    old = a_group(
        volumes={"a": VolumeRequest(name="a")}, tasks=[a_task(config={"x": {"y": [1, True, None]}, "z": 1.5})]
    )
    new = a_group(
        volumes={"a": VolumeRequest(name="a", source="s"), "b": VolumeRequest(name="b")},
        networks=(NetworkResource(reserved_ports=(Port(label="http", value=80),)),),
        tasks=[a_task(config={}, vault={"Role": "r"})],
    )

    group = diff_jobs(a_job(groups=[old]), a_job(groups=[new])).task_groups[0]

    assert [(o.type.value, o.name) for o in group.objects] == [
        ("Added", "Network"),
        ("Edited", "Volume"),
        ("Added", "Volume"),
    ]
    port = group.objects[0].objects[0]
    assert (port.name, [f.name for f in port.fields]) == ("Static Port", ["HostNetwork", "Label", "To", "Value"])
    setup, vault = group.tasks[0].objects
    assert [(f.name, f.old) for f in setup.fields] == [("x[y][0]", "1"), ("x[y][1]", "true"), ("z", "1.5")]
    assert (setup.type, vault.type, vault.fields[0].new) == (DiffType.DELETED, DiffType.ADDED, "r")


def test_same_free_form_data_in_another_shape_is_shown_as_a_change() -> None:
    old, new = a_task(vault={}), a_task(vault=None)

    diff = diff_records(old, new, "Task")

    assert [(o.name, o.fields) for o in diff.objects] == [("Vault", ())]


def test_two_services_of_one_name_are_both_compared() -> None:
    one = Service(name="x", port_label="a")
    two = Service(name="x", port_label="b")

    diff = diff_jobs(a_job(groups=[a_group(services=(one, two))]), a_job(groups=[a_group(services=(one,))]))

    assert [(o.type, o.name) for o in diff.task_groups[0].objects] == [(DiffType.DELETED, "Service")]


def test_reordered_list_is_no_change() -> None:
    assert diff_jobs(a_job(datacenters=("a", "b")), a_job(datacenters=("b", "a"))).type is DiffType.NONE


def test_in_place_change_of_a_task_is_annotated_so() -> None:
    old, new = a_job(), a_job(groups=[a_group(tasks=[a_task(kill_timeout_s=9)])])

    diff = annotated(diff_jobs(old, new), old, new, None)

    assert diff.task_groups[0].tasks[0].annotations == (FORCES_IN_PLACE,)
    assert diff.task_groups[0].updates == {}


def test_task_added_to_a_group_is_destructive() -> None:
    old, new = a_job(), a_job(groups=[a_group(tasks=[a_task(), a_task("two")])])

    tasks = annotated(diff_jobs(old, new), old, new, None).task_groups[0].tasks

    assert [task.annotations for task in tasks] == [("forces create/destroy update",), ()]


IN_PLACE, DESTRUCTIVE = UpdateClass.IN_PLACE, UpdateClass.DESTRUCTIVE


@pytest.mark.parametrize(
    ("changed", "needed"),
    [
        (a_group(), None),
        (a_group(count=5), IN_PLACE),
        (a_group(restart_policy=RestartPolicy(attempts=9)), IN_PLACE),
        (a_group(restart_policy=RestartPolicy(render_templates=True)), DESTRUCTIVE),
        (a_group(restart_policy=None), IN_PLACE),
        (a_group(services=(Service(name="x"),)), IN_PLACE),
        (a_group(meta={"a": "b"}), DESTRUCTIVE),
        (a_group(networks=(NetworkResource(),)), DESTRUCTIVE),
        (a_group(volumes={"a": VolumeRequest()}), DESTRUCTIVE),
        (a_group(tasks=[a_task(), a_task("two")]), DESTRUCTIVE),
        (a_group(tasks=[a_task("renamed")]), DESTRUCTIVE),
        (a_group(tasks=[a_task(kill_timeout_s=9)]), IN_PLACE),
        (a_group(tasks=[a_task(leader=True)]), IN_PLACE),
        (a_group(tasks=[a_task(env={"A": "b"})]), DESTRUCTIVE),
        (a_group(tasks=[a_task(cpu=7)]), DESTRUCTIVE),
        (a_group(tasks=[a_task(templates=(Template(),))]), DESTRUCTIVE),
    ],
)
def test_declarations_say_what_a_change_needs(changed: Any, needed: UpdateClass | None) -> None:
    assert update_class(a_group(), changed) is needed


def test_change_inside_lists_and_maps_is_looked_at_item_by_item() -> None:
    def network(**port: Any) -> Any:
        return a_group(
            networks=(NetworkResource(dynamic_ports=(Port(label="a", **port),)),), volumes={"v": VolumeRequest()}
        )

    assert update_class(network(), network(ignore_collision=True)) is IN_PLACE
    assert update_class(network(), network(to=80)) is DESTRUCTIVE
    assert update_class(network(), replace(network(), volumes={"v": VolumeRequest(sticky=True)})) is DESTRUCTIVE
