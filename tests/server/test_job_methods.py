"""What can be asked of a region about jobs beyond running them, and about its settings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import trio

from fedsched.model.errors import BadRequest, Conflict, NotFound
from fedsched.model.evaluation import EvaluationStatus
from fedsched.model.ids import uuid_bytes
from fedsched.model.job import JobSubmission, ParameterizedJobConfig, PeriodicConfig
from fedsched.model.namespace import Namespace
from fedsched.model.node_pool import NodePool
from fedsched.model.policies import ReschedulePolicy
from fedsched.model.scaling import ScalingPolicy
from fedsched.model.scheduler_config import PreemptionConfig, SchedulerAlgorithm, SchedulerConfiguration
from fedsched.rpc.context import CallMeta
from fedsched.rpc.methods import alloc as allocs
from fedsched.rpc.methods import deployment as deployments
from fedsched.rpc.methods import evaluation as evaluations
from fedsched.rpc.methods import job as jobs
from fedsched.rpc.methods import job_extras as extras
from fedsched.rpc.methods import node as nodes
from fedsched.rpc.methods import operator, places
from fedsched.rpc.methods.paging import ListRequest
from fedsched.state.tables.alloc_columns import HEALTHY
from fedsched.state.tables.evaluations import EvaluationsUpsert, evaluation_write
from fedsched.state.tables.launches import PeriodicLaunch
from tests.builders import a_group, a_job, a_task, an_evaluation, an_id
from tests.server.around import (
    COMPLETE,
    FAILED,
    RUNNING,
    a_system_group,
    deployed,
    join,
    place,
    propose,
    report,
    with_server,
)
from tests.server.region import Member, until
from tests.state.worlds import ids


def test_a_group_is_scaled_within_its_bounds_and_every_wish_is_kept(tmp_path: Path) -> None:
    async def story(member: Member) -> None:
        group = a_group(count=2, scaling=ScalingPolicy(min=1, max=5))
        await member.register(a_job("web", region="", groups=[group]))

        def wish(count: int | None, **fields: Any) -> extras.JobScaleRequest:
            return extras.JobScaleRequest(job_id="web", group="group", count=count, **fields)

        done = await member.call(extras.JOB_SCALE, wish(4, message="busy"))
        assert done.eval_id
        assert (await member.job("web")).task_groups[0].count == 4
        with pytest.raises(BadRequest, match="outside its scaling bounds"):
            await member.call(extras.JOB_SCALE, wish(6))
        with pytest.raises(BadRequest, match="negative"):
            await member.call(extras.JOB_SCALE, wish(-1))
        with pytest.raises(BadRequest, match="both a count and an error"):
            await member.call(extras.JOB_SCALE, wish(3, error=True))
        with pytest.raises(BadRequest, match="missing task group"):
            await member.call(extras.JOB_SCALE, extras.JobScaleRequest(job_id="web", count=3))
        with pytest.raises(BadRequest, match="does not exist"):
            await member.call(extras.JOB_SCALE, extras.JobScaleRequest(job_id="web", group="x", count=3))
        with pytest.raises(Conflict):
            await member.call(extras.JOB_SCALE, wish(3, enforce_index=True, job_modify_index=1))
        noted = await member.call(extras.JOB_SCALE, wish(None, message="cannot", error=True))
        assert noted.eval_id == ""

        status = (await member.call(extras.JOB_SCALE_STATUS, jobs.JobRequest(job_id="web"))).status
        events = status.task_groups["group"].events
        assert [(event.message, event.count, event.previous_count) for event in events] == [
            ("cannot", None, 4),
            ("busy", 4, 2),
        ]
        assert events[1].eval_id == done.eval_id

    with_server(tmp_path, story)


def test_a_job_is_not_scaled_while_it_is_being_deployed_and_system_jobs_only_on_and_off(tmp_path: Path) -> None:
    async def story(member: Member) -> None:
        await join(member)
        await deployed(member)
        with pytest.raises(BadRequest, match="active deployment"):
            await member.call(extras.JOB_SCALE, extras.JobScaleRequest(job_id="web", group="group", count=3))
        await member.register(a_job("everywhere", region="", type="system", groups=[a_system_group()]))
        with pytest.raises(BadRequest, match="0 or 1"):
            await member.call(extras.JOB_SCALE, extras.JobScaleRequest(job_id="everywhere", group="group", count=2))

    with_server(tmp_path, story)


def test_a_job_goes_back_to_an_earlier_version_without_its_tag_and_stable_mark(tmp_path: Path) -> None:
    async def story(member: Member) -> None:
        await member.register(a_job("web", region="", priority=50))
        await member.register(a_job("web", region="", priority=60))
        await member.call(extras.JOB_STABLE, extras.JobStableRequest(job_id="web", job_version=0))
        await member.call(extras.JOB_TAG, extras.JobTagRequest(job_id="web", name="good", version=0))

        with pytest.raises(BadRequest, match="current version"):
            await member.call(extras.JOB_REVERT, extras.JobRevertRequest(job_id="web", job_version=1))
        wish = extras.JobRevertRequest(job_id="web", job_version=0, enforce_prior_version=0)
        with pytest.raises(BadRequest, match="enforcing version 0"):
            await member.call(extras.JOB_REVERT, wish)
        with pytest.raises(NotFound, match="no version 9"):
            await member.call(extras.JOB_REVERT, extras.JobRevertRequest(job_id="web", job_version=9))
        await member.call(extras.JOB_REVERT, extras.JobRevertRequest(job_id="web", job_version=0))

        job = await member.job("web")
        assert (job.version, job.priority, job.stable, job.version_tag) == (2, 50, False, None)
        kept = (await member.call(jobs.JOB_VERSIONS, jobs.JobRequest(job_id="web"))).versions
        assert [one.stable for one in kept] == [False, False, True]
        untag = extras.JobTagRequest(job_id="web", name="good", unset=True)
        await member.call(extras.JOB_TAG, untag)
        with pytest.raises(NotFound, match="is tagged"):
            await member.call(extras.JOB_TAG, untag)
        with pytest.raises(BadRequest, match="needs a name"):
            await member.call(extras.JOB_TAG, extras.JobTagRequest(job_id="web", name=""))

    with_server(tmp_path, story)


def a_template(**fields: Any) -> Any:
    config = ParameterizedJobConfig(payload="optional", meta_required=("who",), meta_optional=("why",))
    return a_job(
        "greet",
        region="",
        type="batch",
        groups=[a_group(update=None, migrate=None)],
        parameterized_job=fields.pop("parameterized_job", config),
        **fields,
    )


def test_a_dispatch_makes_a_child_once_per_token_and_its_payload_comes_back_whole(tmp_path: Path) -> None:
    async def story(member: Member) -> None:
        written = await member.register(a_template())
        assert written.eval_id == ""  # a template is never placed itself
        request = extras.JobDispatchRequest(
            job_id="greet", meta={"who": "you"}, payload=b"hello" * 1000, idempotency_token="once"
        )
        first = await member.call(extras.JOB_DISPATCH, request)
        again = await member.call(extras.JOB_DISPATCH, request)

        assert re.fullmatch(r"greet/dispatch-\d{10}-[0-9a-f]{8}", first.dispatched_job_id)
        assert (again.dispatched_job_id, again.eval_id) == (first.dispatched_job_id, "")
        child = await member.job(first.dispatched_job_id)
        assert (child.parent_id, child.dispatched, child.payload) == ("greet", True, b"hello" * 1000)
        assert child.meta["who"] == "you"
        stored = member.server.machine.store.jobs.version_rows.get("default", child.id, child.create_index, 0)
        assert stored is not None
        assert len(stored.spec) < 5000  # compressed
        summary = (await member.call(extras.JOB_SUMMARY, jobs.JobRequest(job_id="greet"))).summary
        assert summary.children is not None
        assert (summary.children.pending, summary.children.running, summary.children.dead) == (1, 0, 0)
        prefixed = extras.JobDispatchRequest(job_id="greet", meta={"who": "me"}, id_prefix_template="mine", priority=70)
        other = await member.call(extras.JOB_DISPATCH, prefixed)
        assert re.fullmatch(r"greet/dispatch-mine-\d{10}-[0-9a-f]{8}", other.dispatched_job_id)
        largest = extras.JobDispatchRequest(job_id="greet", meta={"who": "me"}, payload=bytes(16_384))
        assert (await member.call(extras.JOB_DISPATCH, largest)).eval_id

    with_server(tmp_path, story)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"meta": {}}, "requires meta who"),
        ({"meta": {"who": "you", "what": "x"}}, "does not know meta what"),
        ({"meta": {"who": "you"}, "payload": bytes(16_385)}, "at most 16384"),
        ({"meta": {"who": "you"}, "priority": 101}, "out of range"),
    ],
)
def test_a_dispatch_that_the_job_does_not_allow_is_refused(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    async def story(member: Member) -> None:
        await member.register(a_template())
        with pytest.raises(BadRequest, match=words):
            await member.call(extras.JOB_DISPATCH, extras.JobDispatchRequest(job_id="greet", **fields))

    with_server(tmp_path, story)


def test_payload_rules_and_stopped_or_plain_jobs_refuse_dispatches(tmp_path: Path) -> None:
    async def story(member: Member) -> None:
        await member.register("web")
        with pytest.raises(BadRequest, match="not parameterized"):
            await member.call(extras.JOB_DISPATCH, extras.JobDispatchRequest(job_id="web"))
        for rule, payload, words in (("required", b"", "requires a payload"), ("forbidden", b"x", "takes no payload")):
            await member.register(a_template(parameterized_job=ParameterizedJobConfig(payload=rule)))
            with pytest.raises(BadRequest, match=words):
                await member.call(extras.JOB_DISPATCH, extras.JobDispatchRequest(job_id="greet", payload=payload))
        await member.call(jobs.JOB_DEREGISTER, jobs.JobDeregisterRequest(job_id="greet"))
        with pytest.raises(BadRequest, match="is stopped"):
            await member.call(extras.JOB_DISPATCH, extras.JobDispatchRequest(job_id="greet"))

    with_server(tmp_path, story)


@pytest.mark.parametrize("kind", ["service", "batch", "system", "sysbatch"])
def test_a_stop_is_evaluated_by_the_scheduler_of_the_jobs_own_type(tmp_path: Path, kind: str) -> None:
    async def story(member: Member) -> None:
        group = a_group(update=None, migrate=None, reschedule_policy=None)
        await member.register(a_job("web", region="", type=kind, groups=[group]))
        stopped = await member.call(jobs.JOB_DEREGISTER, jobs.JobDeregisterRequest(job_id="web"))

        made = (
            await member.call(evaluations.EVAL_GET, evaluations.EvaluationRequest(eval_id=stopped.eval_id))
        ).evaluation

        assert (made.type, made.triggered_by, made.status) == (kind, "job-deregister", "pending")

    with_server(tmp_path, story)


def test_a_periodic_job_is_launched_out_of_turn_once_a_second(tmp_path: Path) -> None:
    async def story(member: Member) -> None:
        nightly = a_job(
            "nightly",
            region="",
            type="batch",
            groups=[a_group(update=None, migrate=None)],
            periodic=PeriodicConfig(specs=("0 3 * * *",)),
        )
        await member.register(nightly)
        with pytest.raises(BadRequest, match="periodic"):
            await member.call(extras.JOB_EVALUATE, extras.JobEvaluateRequest(job_id="nightly"))

        forced = await member.call(extras.PERIODIC_FORCE, jobs.JobRequest(job_id="nightly"))

        child = await member.job(forced.dispatched_job_id)
        assert (child.parent_id, child.periodic) == ("nightly", None)
        assert re.fullmatch(r"nightly/periodic-\d{10}", forced.dispatched_job_id)
        again = PeriodicLaunch(
            namespace="default", id="nightly", launch_ns=int(forced.dispatched_job_id.rpartition("-")[2]) * 10**9
        )
        assert not (await propose(member, again)).value["launched"]

    with_server(tmp_path, story)


def test_forcing_an_evaluation_flags_failed_allocations_that_nothing_replaced(tmp_path: Path) -> None:
    async def story(member: Member) -> None:
        await join(member)
        await member.register(a_job("web", region="", groups=[a_group(count=2)]))
        await place(member, [1, 2])
        await report(member, [1, 2], FAILED)
        await place(member, [3], previous=ids([2]))

        await member.call(extras.JOB_EVALUATE, extras.JobEvaluateRequest(job_id="web", force_reschedule=True))
        await member.call(extras.JOB_EVALUATE, extras.JobEvaluateRequest(job_id="web"))

        found = [
            (await member.call(allocs.ALLOC_GET, allocs.AllocRequest(alloc_id=an_id(number)))).alloc
            for number in (1, 2)
        ]
        assert [one.desired_transition.force_reschedule for one in found] == [True, None]

    with_server(tmp_path, story)


def test_forcing_an_evaluation_where_nothing_is_rescheduled_flags_nobody(tmp_path: Path) -> None:
    async def story(member: Member) -> None:
        await join(member)
        off = ReschedulePolicy(attempts=0, unlimited=False)
        await member.register(a_job("web", region="", groups=[a_group(reschedule_policy=off)]))
        await place(member, [1])
        await report(member, [1], FAILED)

        await member.call(extras.JOB_EVALUATE, extras.JobEvaluateRequest(job_id="web", force_reschedule=True))

        found = (await member.call(allocs.ALLOC_GET, allocs.AllocRequest(alloc_id=an_id(1)))).alloc
        assert found.desired_transition.force_reschedule is None

    with_server(tmp_path, story)


def test_type_periodic_and_parameterized_cannot_change_and_pools_must_exist(tmp_path: Path) -> None:
    async def story(member: Member) -> None:
        await member.register("web")
        batch = a_job("web", region="", type="batch", groups=[a_group(update=None, migrate=None)])
        with pytest.raises(BadRequest, match="cannot become a batch job"):
            await member.register(batch)
        with pytest.raises(BadRequest, match="node pool 'gpu' does not exist"):
            await member.register(a_job("other", region="", node_pool="gpu"))
        plain = a_job("greet", region="", type="batch", groups=[a_group(update=None, migrate=None)])
        await member.register(plain)
        with pytest.raises(BadRequest, match="cannot become parameterized"):
            await member.register(a_template())
        with pytest.raises(BadRequest, match="50000"):
            await member.register(a_job("huge", region="", groups=[a_group(count=50_001)]))
        with pytest.raises(BadRequest, match="evaluation priority 101"):
            await member.register("web", eval_priority=101)
        with pytest.raises(BadRequest, match="was dispatched"):
            await member.register(a_job("web", region="", dispatched=True))

    with_server(tmp_path, story)


def test_counts_and_resources_are_preserved_when_asked_and_the_source_is_kept(tmp_path: Path) -> None:
    async def story(member: Member) -> None:
        small = [a_group(count=2, tasks=[a_task(cpu=100)])]
        large = [a_group(count=9, tasks=[a_task(cpu=900)])]
        await member.register(a_job("web", region="", groups=small))
        await member.register(
            a_job("web", region="", groups=large, priority=60),
            preserve_counts=True,
            preserve_resources=True,
            submission=JobSubmission(source='job "web" {}', format="hcl2"),
        )

        group = (await member.job("web")).task_groups[0]
        assert (group.count, group.tasks[0].resources.cpu) == (2, 100)
        request = extras.JobSubmissionRequest(job_id="web", version=1)
        found = (await member.call(extras.JOB_SUBMISSION, request)).submission
        assert (found.source, found.version) == ('job "web" {}', 1)
        with pytest.raises(NotFound, match="no source"):
            await member.call(extras.JOB_SUBMISSION, extras.JobSubmissionRequest(job_id="web", version=0))

    with_server(tmp_path, story)


def test_the_job_list_and_summary_count_allocations_by_state(tmp_path: Path) -> None:
    async def story(member: Member) -> None:
        await join(member)
        await member.register(a_job("web", region="", groups=[a_group(count=3)]))
        await place(member, [1, 2, 3])
        await report(member, [1], RUNNING)
        await report(member, [2], COMPLETE)

        listed = (await member.call(jobs.JOB_LIST, jobs.JobListRequest())).jobs[0].job_summary
        summary = (await member.call(extras.JOB_SUMMARY, jobs.JobRequest(job_id="web"))).summary
        assert listed == summary
        counts = summary.summary["group"]
        assert (counts.starting, counts.running, counts.complete) == (1, 1, 1)

    with_server(tmp_path, story)


def test_the_scheduler_configuration_is_checked_and_set(tmp_path: Path) -> None:
    async def story(member: Member) -> None:
        first = (await member.call(operator.SCHEDULER_GET_CONFIG)).scheduler_config
        assert (first.scheduler_algorithm, first.node_limit_for_feasibility_checks) == (SchedulerAlgorithm.BINPACK, 100)
        assert first.preemption_config == PreemptionConfig(
            system_scheduler_enabled=True,
            sys_batch_scheduler_enabled=False,
            batch_scheduler_enabled=False,
            service_scheduler_enabled=False,
        )
        switches = (first.memory_oversubscription_enabled, first.reject_job_registration, first.pause_eval_broker)
        assert switches == (False, False, False)
        wanted = SchedulerConfiguration(scheduler_algorithm=SchedulerAlgorithm.SPREAD)
        set_ = await member.call(
            operator.SCHEDULER_SET_CONFIG, operator.SchedulerConfigSetRequest(scheduler_config=wanted)
        )
        found = (await member.call(operator.SCHEDULER_GET_CONFIG)).scheduler_config
        assert (found.scheduler_algorithm, found.modify_index) == (SchedulerAlgorithm.SPREAD, set_.index)
        stale = operator.SchedulerConfigSetRequest(scheduler_config=wanted, check_and_set=True, check_index=1)
        with pytest.raises(Conflict):
            await member.call(operator.SCHEDULER_SET_CONFIG, stale)
        odd = SchedulerConfiguration(node_limit_for_feasibility_checks=-1)
        with pytest.raises(BadRequest):
            await member.call(operator.SCHEDULER_SET_CONFIG, operator.SchedulerConfigSetRequest(scheduler_config=odd))

    with_server(tmp_path, story)


def test_clean_up_on_demand_forgets_what_is_over(tmp_path: Path) -> None:
    async def story(member: Member) -> None:
        await join(member)
        await member.register("web")
        await member.call(jobs.JOB_DEREGISTER, jobs.JobDeregisterRequest(job_id="web"))
        for row in list(member.server.machine.store.evaluations.rows.scan()):
            done = an_evaluation(id=row.id, status=EvaluationStatus.COMPLETE)
            await propose(member, EvaluationsUpsert(evaluations=(evaluation_write(done),)))

        await member.call(operator.SYSTEM_GC)
        await member.call(operator.SYSTEM_RECONCILE)

        with pytest.raises(NotFound):
            await member.job("web")

    with_server(tmp_path, story)


def test_a_dry_run_tells_what_would_happen_and_changes_nothing(tmp_path: Path) -> None:
    async def story(member: Member) -> None:
        wish = extras.JobPlanRequest(job=a_job("web", region="", groups=[a_group(count=2)]))
        nowhere = await member.call(extras.JOB_PLAN, wish)
        await join(member)
        somewhere = await member.call(extras.JOB_PLAN, wish)

        assert (set(nowhere.failed_tg_allocs), nowhere.job_modify_index) == ({"group"}, 0)
        assert somewhere.annotations is not None
        assert somewhere.annotations.desired_tg_updates["group"].place == 2
        assert somewhere.diff is not None
        with pytest.raises(NotFound):
            await member.job("web")
        with pytest.raises(BadRequest):
            await member.call(extras.JOB_PLAN, extras.JobPlanRequest(job=a_job("a b", region="")))

    with_server(tmp_path, story)


def test_namespaces_and_node_pools_are_made_read_and_deleted(tmp_path: Path) -> None:
    async def story(member: Member) -> None:
        prod = Namespace(name="prod", description="where it matters", meta={"a": "b"})
        await member.call(places.NAMESPACE_UPSERT, places.NamespaceUpsertRequest(namespace=prod))
        found = (await member.call(places.NAMESPACE_GET, places.NameRequest(name="prod"))).namespace
        assert (found.description, found.meta) == ("where it matters", {"a": "b"})
        listed = (await member.call(places.NAMESPACE_LIST, ListRequest())).namespaces
        assert [one.name for one in listed] == ["default", "prod"]
        await member.register(a_job("web", region="", namespace="prod"))
        with pytest.raises(Conflict, match="still has jobs"):
            await member.call(places.NAMESPACE_DELETE, places.NameRequest(name="prod"))
        odd = places.NamespaceUpsertRequest(namespace=Namespace(name="a b"))
        with pytest.raises(BadRequest, match="invalid namespace name"):
            await member.call(places.NAMESPACE_UPSERT, odd)
        long = places.NamespaceUpsertRequest(namespace=Namespace(name="x", description="y" * 300))
        with pytest.raises(BadRequest, match="300 characters"):
            await member.call(places.NAMESPACE_UPSERT, long)
        with pytest.raises(NotFound):
            await member.call(places.NAMESPACE_GET, places.NameRequest(name="nowhere"))

        gpu = places.NodePoolUpsertRequest(node_pool=NodePool(name="gpu", meta={"fast": "yes"}))
        await member.call(places.NODE_POOL_UPSERT, gpu)
        await member.register(a_job("deep", region="", node_pool="gpu"))
        pool = (await member.call(places.NODE_POOL_GET, places.NameRequest(name="gpu"))).node_pool
        asking = (await member.call(places.NODE_POOL_JOBS, places.NameRequest(name="gpu"))).jobs
        assert (pool.meta, [stub.id for stub in asking]) == ({"fast": "yes"}, ["deep"])
        with pytest.raises(Conflict, match="asked for by jobs"):
            await member.call(places.NODE_POOL_DELETE, places.NameRequest(name="gpu"))
        await member.call(jobs.JOB_DEREGISTER, jobs.JobDeregisterRequest(job_id="deep"))
        await member.call(places.NODE_POOL_DELETE, places.NameRequest(name="gpu"))
        with pytest.raises(NotFound):
            await member.call(places.NODE_POOL_GET, places.NameRequest(name="gpu"))
        with pytest.raises(BadRequest, match="invalid node pool name"):
            await member.call(places.NODE_POOL_UPSERT, places.NodePoolUpsertRequest(node_pool=NodePool(name="a b")))

    with_server(tmp_path, story)


def test_evaluations_are_counted_shown_with_their_kin_and_deleted_when_done(tmp_path: Path) -> None:
    async def story(member: Member) -> None:
        written = await member.register("web")
        kin = an_evaluation(5, previous_eval=written.eval_id, status=EvaluationStatus.COMPLETE)
        await propose(member, EvaluationsUpsert(evaluations=(evaluation_write(kin),)))

        everything = evaluations.EvaluationListRequest(job_id="web")
        assert (await member.call(evaluations.EVAL_COUNT, everything)).count == 2
        request = evaluations.EvaluationRequest(eval_id=written.eval_id, related=True)
        found = (await member.call(evaluations.EVAL_GET, request)).evaluation
        assert [one.id for one in found.related_evals] == [an_id(5)]
        placed = await member.call(evaluations.EVAL_ALLOCS, request)
        assert placed.allocs == ()
        with pytest.raises(BadRequest, match="cannot be deleted"):
            await member.call(evaluations.EVAL_DELETE, evaluations.EvaluationDeleteRequest(eval_ids=(written.eval_id,)))
        gone = await member.call(evaluations.EVAL_DELETE, evaluations.EvaluationDeleteRequest(eval_ids=(an_id(5),)))
        assert gone.count == 1
        with pytest.raises(BadRequest):
            await member.call(evaluations.EVAL_DELETE, evaluations.EvaluationDeleteRequest())

    with_server(tmp_path, story)


def test_reads_around_scheduling_can_wait_for_news(tmp_path: Path) -> None:
    async def story(member: Member) -> None:
        await join(member)
        await deployed(member)
        asked: list[tuple[Any, Any]] = [
            (allocs.ALLOC_GET, allocs.AllocRequest(alloc_id=an_id(1))),
            (allocs.ALLOC_LIST, allocs.AllocListRequest(job_id="web")),
            (nodes.NODE_ALLOCS, nodes.NodeRequest(node_id=an_id(1))),
            (extras.JOB_ALLOCS, extras.JobAllocsRequest(job_id="web")),
            (extras.JOB_SUMMARY, jobs.JobRequest(job_id="web")),
            (deployments.DEPLOYMENT_ALLOCS, deployments.DeploymentRequest(deployment_id=an_id(7))),
            (deployments.DEPLOYMENT_GET, deployments.DeploymentRequest(deployment_id=an_id(7))),
            (deployments.DEPLOYMENT_LIST, deployments.DeploymentListRequest()),
            (extras.JOB_LATEST_DEPLOYMENT, jobs.JobRequest(job_id="web")),
        ]
        woken: list[str] = []

        async def wait_for(method: Any, request: Any) -> None:
            _, meta = await member.caller.call(method, request, CallMeta())
            await member.caller.call(method, request, CallMeta(min_index=meta.index, max_wait_s=60))
            woken.append(method.name)

        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                for method, request in asked:
                    nursery.start_soon(wait_for, method, request)
                await until("all wait", lambda: len(member.server.waits) >= len(asked))
                assert woken == []
                await report(member, [1], RUNNING, health=HEALTHY)
        assert len(woken) == len(asked)

    with_server(tmp_path, story)


def test_ids_of_columns_are_those_of_records() -> None:
    assert ids([1]) == uuid_bytes(an_id(1))
