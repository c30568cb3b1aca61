"""What is unwise about a job is said, and is no reason to refuse it."""

from __future__ import annotations

from typing import Any

import pytest

from fedsched.model.job import Job, PeriodicConfig
from fedsched.model.job_problems import problems
from fedsched.model.job_warnings import warning_text, warnings
from fedsched.model.network import NetworkResource, Port
from fedsched.model.policies import DisconnectStrategy, UpdateStrategy
from fedsched.model.problem import Problem, flat
from fedsched.model.resources import Resources
from fedsched.model.service import Service
from fedsched.model.volume import VolumeRequest
from tests.builders import a_group, a_job, a_task

G = "TaskGroups[0]"


def grouped(**fields: Any) -> Job:
    return a_job(groups=[a_group("app", **fields)])


def said(job: Job) -> list[str]:
    return [f"{found.path}: {found.message}" for found in flat(warnings(job))]


def a_service(**fields: Any) -> Service:
    return Service(**{"name": "web", "provider": "nomad", **fields})


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (
            grouped(networks=(NetworkResource(mode="token-ring"),)),
            f'{G}.Networks[0].Mode: network mode "token-ring" is',
        ),
        (grouped(networks=(NetworkResource(), NetworkResource())), f"{G}.Networks[1]: only the first network block"),
        (
            grouped(services=(a_service(port_label="80"),), shutdown_delay_s=1.0),
            f'{G}.Services[0].PortLabel: service "web" names port "80", which no network of the group has',
        ),
        (
            grouped(services=(a_service(provider="consul"),), shutdown_delay_s=1.0),
            f'{G}.Services[0].Provider: service "web" asks for Consul; the built-in registry serves it',
        ),
        (
            grouped(tasks=[a_task(services=(a_service(provider="consul"),), shutdown_delay_s=1.0)]),
            f'{G}.Tasks[0].Services[0].Provider: service "web" asks for Consul; the built-in registry serves it',
        ),
        (
            grouped(volumes={"v": VolumeRequest(type="tape", source="s")}),
            f"{G}.Volumes['v'].Type: volume \"v\" has the unknown type",
        ),
        (
            grouped(tasks=[a_task(resources=Resources(disk_mb=5))]),
            f"{G}.Tasks[0].Resources.DiskMB: resources.disk has no",
        ),
        (
            grouped(stop_after_client_disconnect_s=5.0),
            f"{G}.StopAfterClientDisconnect: stop_after_client_disconnect is an old name and is read as part of",
        ),
        (
            grouped(max_client_disconnect_s=5.0, disconnect=DisconnectStrategy()),
            f"{G}.MaxClientDisconnect: max_client_disconnect is an old name and is ignored beside a disconnect block",
        ),
        (
            grouped(prevent_reschedule_on_lost=True),
            f"{G}.PreventRescheduleOnLost: prevent_reschedule_on_lost is an old",
        ),
        (grouped(count=2, update=UpdateStrategy(max_parallel=3)), f"{G}.Update.MaxParallel: Update max parallel"),
    ],
)
def test_it_is_warned_of_and_not_refused(job: Job, expected: str) -> None:
    assert any(line.startswith(expected) for line in said(job)), said(job)
    assert problems(job) == []


def test_automatic_promotion_of_only_some_groups_is_warned_of() -> None:
    groups = [a_group(name, update=UpdateStrategy(canary=1, auto_promote=name == "a")) for name in "ab"]

    assert said(a_job(groups=groups)) == [
        "TaskGroups: auto_promote must be true for all groups to enable automatic promotion"
    ]


@pytest.mark.parametrize(
    "job",
    [
        a_job(),
        grouped(count=1, update=UpdateStrategy(max_parallel=5)),
        grouped(networks=(NetworkResource(mode="cni/mine"),)),
        grouped(services=(a_service(provider=""),), shutdown_delay_s=1.0),
        grouped(
            networks=(NetworkResource(dynamic_ports=(Port(label="http"),)),),
            services=(a_service(port_label="http"),),
            tasks=[a_task(shutdown_delay_s=1.0)],
        ),
        grouped(services=(a_service(port_label="${meta.port}"),), shutdown_delay_s=1.0),
    ],
)
def test_nothing_is_said_about_a_wise_job(job: Job) -> None:
    assert warnings(job) == []
    assert warning_text(warnings(job)) == ""


RECORDED = [
    (
        grouped(tasks=[a_task("web", resources=Resources(networks=(NetworkResource(),)))]),
        '1 warning:\n\n* Group "app" has warnings: 1 error occurred:\n\t* Task "web" has warnings: 1 error occurred:\n'
        "\t* task network resources have been deprecated as of Nomad 0.12.0. Please configure networking via group"
        " network block.",
    ),
    (
        grouped(count=2, update=UpdateStrategy(max_parallel=5)),
        '1 warning:\n\n* Group "app" has warnings: 1 error occurred:\n\t* Update max parallel count is greater than'
        " task group count (5 > 2). A destructive change would result in the simultaneous replacement of all"
        " allocations.",
    ),
    (
        a_job(type="batch", periodic=PeriodicConfig(spec="@daily"), groups=[a_group(update=None, migrate=None)]),
        "1 warning:\n\n* cron is deprecated and may be removed in a future release. Use crons instead",
    ),
    (
        grouped(services=(a_service(),)),
        '1 warning:\n\n* group "app" defines services, but neither the group nor any of its tasks have shutdown_delay'
        " set",
    ),
]


@pytest.mark.parametrize(("job", "text"), RECORDED)
def test_a_warning_reads_as_recorded(job: Job, text: str) -> None:
    assert warning_text(warnings(job)) == text


def test_several_warnings_are_counted() -> None:
    assert warning_text([Problem("", "a"), Problem("", "b")]) == "2 warnings:\n\n* a\n* b"
