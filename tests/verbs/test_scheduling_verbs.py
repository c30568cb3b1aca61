"""Nodes, allocations and deployments, as a person sees them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from fedsched.model.alloc import (
    Allocation,
    AllocDeploymentStatus,
    ClientStatus,
    DesiredStatus,
    DesiredTransition,
    RescheduleTracker,
)
from fedsched.model.alloc_metric import AllocMetric, NodeScoreMeta
from fedsched.model.deployment import DeploymentState, DeploymentStatus
from fedsched.model.evaluation import Evaluation, EvaluationStub
from fedsched.model.namespace import Namespace
from fedsched.model.network import PortMapping
from fedsched.model.node import Eligibility, Node
from fedsched.model.node_pool import NodePool
from fedsched.model.plan import DesiredUpdates, PlanAnnotations
from fedsched.model.resources import AllocatedResources, AllocatedSharedResources, AllocatedTaskResources
from fedsched.model.summary import job_stub
from fedsched.model.task_state import TaskEvent, TaskState, TaskStatus
from fedsched.rpc.methods import alloc as allocs
from fedsched.rpc.methods import deployment as deployments
from fedsched.rpc.methods import evaluation as evaluations
from fedsched.rpc.methods import job_extras as extras
from fedsched.rpc.methods import node as nodes
from fedsched.rpc.methods import places
from tests.verbs.commands import NOW_NS, STAMP
from tests.verbs.scenes import (
    ALLOC,
    CHANGED,
    DEPLOYMENT,
    EVAL,
    HAS_DEPLOYMENT,
    HAS_JOB,
    HAS_NODE,
    NODE,
    a_deployment,
    a_job,
    a_stub,
    complete,
    in_sequence,
    run,
    the_node,
)


def test_nodes_are_listed_with_the_columns_people_know() -> None:
    seen = run("node status", HAS_NODE)

    assert seen.out == (
        "ID        Node Pool  DC   Name    Class   Drain  Eligibility  Status\n"
        "6e01b7c2  default    dc1  host-1  <none>  false  eligible     ready\n"
    )
    wide = run("node status -verbose -os -allocs", HAS_NODE)
    assert wide.out.splitlines()[0].split("  ")[0] == "ID"
    assert "Running Allocs" in wide.out
    assert json.loads(run("node status -json", HAS_NODE).out)[0]["ID"] == NODE
    assert run("node status", {nodes.NODE_LIST: lambda _: nodes.NodeListReply()}).out == "No nodes registered\n"


def test_one_node_shows_its_head_events_resources_and_allocations() -> None:
    given = AllocatedResources(tasks={"server": AllocatedTaskResources()}, shared=AllocatedSharedResources(disk_mb=300))
    held = {nodes.NODE_ALLOCS: lambda _: nodes.NodeAllocsReply(allocs=(a_stub(allocated_resources=given),))}
    node = the_node(meta={"rack": "r1"}, reserved_resources=Node(id=NODE).reserved_resources, host_volumes={})
    got = {nodes.NODE_GET: lambda _: nodes.NodeGetReply(node=node)}
    seen = run("node status -verbose 6e01", HAS_NODE, held, got)

    assert "Eligibility     = eligible\nStatus          = ready\n" in seen.out
    assert f"{STAMP}  Cluster    Node registered" in seen.out
    assert "0/4000 MHz  0 MiB/8 GiB  300 MiB/97.7 GiB  1" in seen.out
    assert "rack = r1" in seen.out
    assert run("node status -short 6e01", HAS_NODE).out.endswith("\nAllocations\nNo allocations placed\n")
    assert json.loads(run("node status -json 6e01", HAS_NODE).out)["Name"] == "host-1"


def test_a_prefix_of_one_character_or_of_nothing_is_refused() -> None:
    assert "at least two characters" in run("node status 6", HAS_NODE).err
    nobody = {nodes.NODE_LIST: lambda _: nodes.NodeListReply()}
    assert 'No node(s) with prefix or id "77" found' in run("node status 77", nobody).err


def test_eligibility_is_set_in_one_line() -> None:
    done = {nodes.NODE_ELIGIBILITY: lambda _: nodes.NodeWriteReply()}
    seen = run("node eligibility -disable 6e01", HAS_NODE, done)

    assert seen.out == f'Node "{NODE}" scheduling eligibility set: ineligible for scheduling\n'
    request = seen.agent.requests(nodes.NODE_ELIGIBILITY)[0]
    assert request.eligibility is Eligibility.INELIGIBLE
    assert "either -enable or -disable" in run("node eligibility 6e01", HAS_NODE, done).err


def test_a_drain_is_watched_until_all_have_stopped() -> None:
    marked = a_stub(desired_transition=DesiredTransition(migrate=True), client_status=ClientStatus.RUNNING)
    ended = replace(marked, desired_status=DesiredStatus.STOP, client_status=ClientStatus.COMPLETE)
    answers = {
        nodes.NODE_DRAIN: lambda _: nodes.NodeWriteReply(),
        nodes.NODE_ALLOCS: in_sequence(nodes.NodeAllocsReply(allocs=(marked,)), nodes.NodeAllocsReply(allocs=(ended,))),
    }
    seen = run(f"node drain -enable -deadline 30m -m why -meta a=b {NODE}", HAS_NODE, answers)

    assert seen.out.splitlines() == [
        f"{STAMP}: Ctrl-C to stop monitoring: will not cancel the node drain",
        f'{STAMP}: Node "{NODE}" drain strategy set',
        f'{STAMP}: Alloc "{ALLOC}" marked for migration',
        f"{STAMP}: Drain complete for node {NODE}",
        f'{STAMP}: Alloc "{ALLOC}" draining',
        f'{STAMP}: Alloc "{ALLOC}" status running -> complete',
        f'{STAMP}: All allocations on node "{NODE}" have stopped',
    ]
    request = seen.agent.requests(nodes.NODE_DRAIN)[0]
    assert request.drain_strategy.deadline_s == 1800.0
    assert request.meta == {"message": "why", "a": "b"}


@pytest.mark.parametrize(
    ("flags", "deadline_s"), [("-force", -1.0), ("-no-deadline", 0.0), ("", 3600.0), ("-ignore-system", 3600.0)]
)
def test_the_ways_to_drain(flags: str, deadline_s: float) -> None:
    done = {nodes.NODE_DRAIN: lambda _: nodes.NodeWriteReply()}
    seen = run(f"node drain -enable -detach {flags} {NODE}", HAS_NODE, done)

    assert seen.code == 0
    assert seen.agent.requests(nodes.NODE_DRAIN)[0].drain_strategy.deadline_s == deadline_s


def test_the_end_of_a_drain_makes_the_node_eligible_unless_told_not_to() -> None:
    done = {nodes.NODE_DRAIN: lambda _: nodes.NodeWriteReply()}
    ended = run(f"node drain -disable {NODE}", HAS_NODE, done)
    kept = run(f"node drain -disable -keep-ineligible -json {NODE}", HAS_NODE, done)

    assert ended.out == f'Node "{NODE}" drain strategy unset\n'
    assert [one.agent.requests(nodes.NODE_DRAIN)[0].mark_eligible for one in (ended, kept)] == [True, False]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"node drain {NODE}", "one of -enable"),
        (f"node drain -enable -force -no-deadline {NODE}", "exclude each other"),
        (f"node drain -enable -deadline 0s {NODE}", "positive drain duration"),
        (f"node drain -enable -meta x {NODE}", "no key=value"),
    ],
)
def test_a_drain_that_makes_no_sense_is_refused(line: str, words: str) -> None:
    seen = run(line, HAS_NODE)

    assert (seen.code, words in seen.err) == (1, True)


def test_draining_and_purging_by_prefix_ask_first() -> None:
    done = {
        nodes.NODE_DRAIN: lambda _: nodes.NodeWriteReply(),
        nodes.NODE_DEREGISTER: lambda _: nodes.NodeWriteReply(eval_ids=(EVAL,)),
    }
    assert run("node drain -enable 6e01", HAS_NODE, done, typed="n\n").code == 1
    assert run("node purge 6e01", HAS_NODE, done, typed="n\n").code == 1
    assert run("node purge -yes 6e01", HAS_NODE, done).out.endswith("1 job is evaluated\n")


def test_node_pools_and_namespaces_have_their_verbs() -> None:
    gpu = NodePool(name="gpu", description="fast", meta={"a": "b"})
    answers: dict[Any, Any] = {
        places.NODE_POOL_LIST: lambda _: places.NodePoolListReply(node_pools=(gpu,)),
        places.NODE_POOL_GET: lambda _: places.NodePoolGetReply(node_pool=gpu),
        places.NODE_POOL_UPSERT: lambda _: places.PlaceWriteReply(),
        places.NODE_POOL_DELETE: lambda _: places.PlaceWriteReply(),
        places.NODE_POOL_NODES: lambda _: places.NodePoolNodesReply(nodes=(the_node().stub(),)),
        places.NODE_POOL_JOBS: lambda _: places.NodePoolJobsReply(jobs=(job_stub(a_job(), None),)),
        places.NAMESPACE_LIST: lambda _: places.NamespaceListReply(namespaces=(Namespace(name="prod"),)),
        places.NAMESPACE_GET: lambda _: places.NamespaceGetReply(namespace=Namespace(name="prod", meta={"c": "d"})),
        places.NAMESPACE_UPSERT: lambda _: places.PlaceWriteReply(),
        places.NAMESPACE_DELETE: lambda _: places.PlaceWriteReply(),
    }
    assert run("node pool list", answers).out == "Name  Description\ngpu   fast\n"
    assert "a = b" in run("node pool info gpu", answers).out
    assert run("node pool apply -description fast gpu", answers).out == 'Successfully applied node pool "gpu"!\n'
    assert run("node pool delete gpu", answers).out == 'Successfully deleted node pool "gpu"!\n'
    assert "host-1" in run("node pool nodes gpu", answers).out
    assert "web" in run("node pool jobs gpu", answers).out
    assert "prod" in run("namespace list", answers).out
    assert run("namespace apply prod", answers).out == 'Successfully applied namespace "prod"!\n'
    assert "c = d" in run("namespace status prod", answers).out
    assert json.loads(run("namespace inspect prod", answers).out)["Name"] == "prod"
    assert run("namespace delete prod", answers).out == 'Successfully deleted namespace "prod"!\n'


def test_allocations_are_listed_newest_first_with_times_as_ages() -> None:
    answers = {allocs.ALLOC_LIST: lambda _: allocs.AllocListReply(allocs=(a_stub(),))}
    seen = run("alloc list -job web", answers)

    assert seen.out == (
        "ID        Node ID   Task Group  Version  Desired  Status   Created  Modified\n"
        "a3d1f1b9  6e01b7c2  front       0        run      pending  2m ago   1m ago\n"
    )
    assert seen.agent.requests(allocs.ALLOC_LIST)[0].job_id == "web"


def an_alloc() -> Allocation:
    state = TaskState(
        state=TaskStatus.RUNNING,
        started_at_ns=NOW_NS,
        events=(TaskEvent(type="Received", time_ns=NOW_NS, display_message="Task received by client"),),
    )
    given = AllocatedResources(
        tasks={"server": AllocatedTaskResources()},
        shared=AllocatedSharedResources(
            disk_mb=300, ports=(PortMapping(label="http", value=20000, host_ip="10.0.0.1"),)
        ),
    )
    return Allocation(
        id=ALLOC,
        name="web.front[0]",
        eval_id=EVAL,
        node_id=NODE,
        job_id="web",
        job=a_job(),
        task_group="front",
        task_states={"server": state},
        allocated_resources=given,
        deployment_id=DEPLOYMENT,
        deployment_status=AllocDeploymentStatus(healthy=True, canary=True),
        next_allocation=EVAL,
        metrics=AllocMetric(
            nodes_in_pool=1,
            nodes_evaluated=1,
            score_meta_data=(NodeScoreMeta(node_id=NODE, scores={"binpack": 0.5}, norm_score=0.5),),
        ),
    )


def test_one_allocation_shows_its_tasks_and_events() -> None:
    answers = {
        allocs.ALLOC_LIST: lambda _: allocs.AllocListReply(allocs=(a_stub(),)),
        allocs.ALLOC_GET: lambda _: allocs.AllocGetReply(alloc=an_alloc()),
    }
    whole = run("alloc status -verbose a3d1", answers).out
    assert "Deployment Health    = healthy\nCanary               = true\n" in whole
    assert '\nTask "server" is "running"\n' in whole
    assert f"{STAMP}  Received  Task received by client" in whole
    assert "*http  yes      10.0.0.1:20000" in whole
    assert f"{NODE}  0.5      0.5" in whole
    brief = run("alloc status -short a3d1", answers).out
    assert brief.endswith(
        f"Name    State    Last Event  Time                  Lifecycle\nserver  running  Received    {STAMP}  main\n"
    )
    assert json.loads(run("alloc status -json a3d1", answers).out)["ID"] == ALLOC


def test_stopping_an_allocation_follows_the_evaluation() -> None:
    answers = {
        allocs.ALLOC_LIST: lambda _: allocs.AllocListReply(allocs=(a_stub(),)),
        allocs.ALLOC_STOP: lambda _: allocs.AllocStopReply(eval_id=EVAL),
        evaluations.EVAL_GET: complete(),
    }
    assert 'finished with status "complete"' in run("alloc stop a3d1", answers).out
    assert run("alloc stop -detach -no-shutdown-delay a3d1", answers).out == f"{EVAL}\n"


def test_deployments_are_listed_and_shown() -> None:
    assert run("deployment list", HAS_DEPLOYMENT).out == (
        "ID        Job ID  Job Version  Status   Description\n51c9e0d4  web     0            running  so it goes\n"
    )
    shown = run("deployment status 51c9", HAS_DEPLOYMENT).out
    assert shown == (
        "ID          = 51c9e0d4\nJob ID      = web\nJob Version = 0\n"
        "Status      = running\nDescription = so it goes\n\n"
        "Deployed\n"
        "Task Group  Desired  Placed  Healthy  Unhealthy  Progress Deadline\n"
        "front       2        2       1        0          N/A\n"
    )
    held = {deployments.DEPLOYMENT_ALLOCS: lambda _: deployments.DeploymentAllocsReply(allocs=(a_stub(),))}
    assert ALLOC in run("deployment status -verbose 51c9", HAS_DEPLOYMENT, held).out
    empty = {deployments.DEPLOYMENT_LIST: lambda _: deployments.DeploymentListReply()}
    assert run("deployment status", empty).out == "No deployments found\n"


def test_canaries_and_auto_revert_add_their_columns() -> None:
    state = DeploymentState(auto_revert=True, desired_canaries=1, desired_total=2)
    found = a_deployment(task_groups={"front": state})
    answers = {deployments.DEPLOYMENT_GET: lambda _: deployments.DeploymentGetReply(deployment=found)}
    shown = run("deployment status 51c9", HAS_DEPLOYMENT, answers).out

    head = "Task Group  Auto Revert  Promoted  Desired  Canaries  Placed  Healthy  Unhealthy  Progress Deadline"
    assert head in shown


@pytest.mark.parametrize(
    ("verb", "method", "words"),
    [
        ("promote", deployments.DEPLOYMENT_PROMOTE, "promoted"),
        ("fail", deployments.DEPLOYMENT_FAIL, "marked as failed"),
        ("pause", deployments.DEPLOYMENT_PAUSE, "paused"),
        ("resume", deployments.DEPLOYMENT_PAUSE, "resumed"),
        ("unblock", deployments.DEPLOYMENT_UNBLOCK, "unblocked"),
    ],
)
def test_deployments_are_decided_about_in_one_line(verb: str, method: Any, words: str) -> None:
    seen = run(f"deployment {verb} -detach 51c9", HAS_DEPLOYMENT, {method: lambda _: CHANGED})

    assert seen.out == f'Deployment "51c9e0d4" {words}\nEvaluation ID: {EVAL}\n'
    followed = run(f"deployment {verb} 51c9", HAS_DEPLOYMENT, {method: lambda _: CHANGED})
    assert 'finished with status "complete"' in followed.out


def test_failing_a_deployment_tells_of_the_version_gone_back_to() -> None:
    back = deployments.DeploymentWriteReply(reverted_job_version=3)
    seen = run("deployment fail 51c9", HAS_DEPLOYMENT, {deployments.DEPLOYMENT_FAIL: lambda _: back})

    assert seen.out.endswith("went back to version 3\n")


def test_a_monitored_deployment_prints_each_change_once_and_how_it_ends() -> None:
    answers = {
        deployments.DEPLOYMENT_GET: in_sequence(
            deployments.DeploymentGetReply(deployment=a_deployment()),
            deployments.DeploymentGetReply(deployment=a_deployment()),
            deployments.DeploymentGetReply(deployment=a_deployment(DeploymentStatus.SUCCESSFUL)),
        )
    }
    seen = run("deployment status -monitor 51c9", HAS_DEPLOYMENT, answers)

    assert seen.code == 0
    assert seen.out.count("front: 1 of 2 healthy") == 1
    assert '[ok] Deployment "51c9e0d4" successful' in seen.out
    failed = {
        deployments.DEPLOYMENT_GET: lambda _: deployments.DeploymentGetReply(
            deployment=a_deployment(DeploymentStatus.FAILED)
        )
    }
    assert run("deployment status -monitor 51c9", HAS_DEPLOYMENT, failed).code == 1


HAS_ALLOC: Mapping[Any, Any] = {
    allocs.ALLOC_LIST: lambda _: allocs.AllocListReply(allocs=(a_stub(),)),
    allocs.ALLOC_GET: lambda _: allocs.AllocGetReply(alloc=an_alloc()),
    allocs.ALLOC_STOP: lambda _: allocs.AllocStopReply(eval_id=EVAL),
}


def test_lists_of_allocations_can_be_had_as_json_and_say_when_they_are_empty() -> None:
    of_job = {extras.JOB_ALLOCS: lambda _: extras.JobAllocsReply(allocs=(a_stub(),))}

    assert json.loads(run("alloc list -json", HAS_ALLOC).out)[0]["ID"] == ALLOC
    assert json.loads(run("job allocs -json web", HAS_JOB, of_job).out)[0]["ID"] == ALLOC
    assert json.loads(run("alloc stop -json a3d1", HAS_ALLOC).out)["EvalID"] == EVAL
    empty = {allocs.ALLOC_LIST: lambda _: allocs.AllocListReply()}
    assert run("alloc list", empty).out == "No allocations found\n"
    assert run("job allocs web", HAS_JOB).out == "No allocations placed\n"


def test_an_allocation_tells_its_story() -> None:
    told = replace(
        an_alloc(),
        reschedule_tracker=RescheduleTracker(events=()),
        followup_eval_id=EVAL,
        preempted_by_allocation=ALLOC,
        allocated_resources=None,
        metrics=AllocMetric(nodes_evaluated=1, nodes_in_pool=1, nodes_exhausted=1, coalesced_failures=2),
    )
    seen = run("alloc status a3d1", HAS_ALLOC, {allocs.ALLOC_GET: lambda _: allocs.AllocGetReply(alloc=told)}).out

    for line in (
        "Reschedule Attempts  = 0",
        "Followup Eval ID     = 8f0b2a77",
        "Preempted By         = a3d1f1b9",
        "  * Resources exhausted on 1 nodes",
    ):
        assert f"{line}\n" in seen
    assert "Task Resources" not in seen
    assert "Allocation Addresses" not in seen


def test_an_evaluation_shows_what_it_planned_placed_and_could_not_place() -> None:
    one = Evaluation(
        id=EVAL,
        job_id="web",
        type="service",
        related_evals=(EvaluationStub(id=DEPLOYMENT, status="blocked"),),
        plan_annotations=PlanAnnotations(desired_tg_updates={"front": DesiredUpdates(place=2)}),
        failed_tg_allocs={"front": AllocMetric(nodes_evaluated=1, nodes_in_pool=1, nodes_exhausted=1)},
    )
    answers = {
        evaluations.EVAL_LIST: lambda _: evaluations.EvaluationListReply(evaluations=(one,)),
        evaluations.EVAL_GET: lambda _: evaluations.EvaluationGetReply(evaluation=one),
        evaluations.EVAL_ALLOCS: lambda _: evaluations.EvaluationAllocsReply(allocs=(a_stub(),)),
        evaluations.EVAL_DELETE: lambda _: evaluations.EvaluationDeleteReply(count=1),
    }
    seen = run("eval status 8f0b", answers).out

    assert "Related Evaluations\nID        Priority  Triggered By  Node ID  Status\n51c9e0d4" in seen
    assert "Plan Annotations\nTask Group  Ignore  Place  Stop  InPlace  Destructive\nfront       0       2" in seen
    assert "Placed Allocations\nID        Node ID" in seen
    assert 'Failed Placements\nTask Group "front" (failed to place 1 allocation):\n' in seen
    assert run("eval delete 8f0b", answers).out == "Successfully deleted 1 evaluation\n"
