"""A small region with something in every table. Its image of each version is kept in `fixtures/state`.

`python -m tests.state.golden` writes the image of the version at hand; images of older versions are never rewritten.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from msgspec import structs

from fedsched.codec import to_bytes
from fedsched.federation.rollout_rules import begin
from fedsched.model.deployment import DeploymentState, DeploymentStatus
from fedsched.model.job import JobSubmission, Multiregion, MultiregionRegion, ParameterizedJobConfig, PeriodicConfig
from fedsched.model.node import DrainStrategy
from fedsched.model.rollout import RolloutShare, RolloutStatus, RolloutStep
from fedsched.model.scaling import ScalingEvent
from fedsched.model.service import ServiceRegistration
from fedsched.state.fields import pack
from fedsched.state.image import save
from fedsched.state.tables.alloc_updates import AllocStatusUpdate, AllocTransition, Reap
from fedsched.state.tables.deployment_updates import (
    DeploymentAllocHealth,
    DeploymentPromote,
    DeploymentStatusUpdate,
    DeploymentStatusWrite,
)
from fedsched.state.tables.deployments import deployment_write
from fedsched.state.tables.evaluations import EvaluationsUpsert, evaluation_write
from fedsched.state.tables.jobs import JobDeregister, JobTag, job_register, spec_bytes
from fedsched.state.tables.launches import JobDispatch, PeriodicLaunch
from fedsched.state.tables.meta import AutopilotConfigSet, ClusterBegin, SchedulerConfigSet
from fedsched.state.tables.namespaces import NamespaceUpsert, NodePoolUpsert
from fedsched.state.tables.node_events import NodeEventWrite
from fedsched.state.tables.node_updates import (
    NodeDrainUpdate,
    NodeDrainWrite,
    NodeEligibilityUpdate,
    NodeRegister,
    NodeStatusUpdate,
    NodeStatusWrite,
)
from fedsched.state.tables.nodes import NodeDeregister, node_upsert
from fedsched.state.tables.plans import OfficeBegin, StoppedBatch, UpdatedGroup
from fedsched.state.tables.rollout_steps import RolloutStepCarry
from fedsched.state.tables.rollouts import RolloutsReap, rollout_write, share_write
from fedsched.state.tables.scaling_events import JobScale
from fedsched.state.tables.services import ServiceDelete, ServicesDeregister, ServicesRegister, service_write
from fedsched.state.tables.sessions import RequestId
from fedsched.state.tables.variables import VariableDelete, VariablePut
from tests.builders import a_deployment, a_group, a_job, a_node, an_evaluation, an_id
from tests.state.worlds import EMPTY_MAP, SECOND, World, column, ids, placed_group

FIXTURES = Path(__file__).parents[2] / "fixtures" / "state"
GOLDEN = FIXTURES / "image-5.bin"
"""The image of schema 5, which is the newest."""
GOLDEN_LOG = FIXTURES / "log-5.bin"
"""The log that made it: each entry with its length (32 bits, big-endian) in front."""
OLD_IMAGES = {schema: (FIXTURES / f"image-{schema}.bin", FIXTURES / f"log-{schema}.bin") for schema in (1, 2, 3, 4)}
"""Images of earlier schemas and the logs that made them."""


def a_golden_world() -> World:
    world = World()
    world.do(ClusterBegin(cluster_id="golden"))
    world.do(OfficeBegin(term=2))
    world.do(SchedulerConfigSet(config=EMPTY_MAP))
    world.do(AutopilotConfigSet(config=EMPTY_MAP))
    world.do(NamespaceUpsert(name="prod", description="where it matters"))
    world.do(NodePoolUpsert(name="gpu"))
    for number in (1, 2, 3):
        world.do(node_upsert(a_node(number)))
    web = a_job("web", groups=[a_group("group", count=3), a_group("other")])
    world.register(web, evaluation=evaluation_write(an_evaluation(1, job=web)))
    world.register(a_job("web", priority=70))
    world.register(a_job("db"), evaluation=evaluation_write(an_evaluation(2, job=a_job("db"))))
    world.do(JobTag(namespace="default", id="web", version=0, name="first", tagged_time_ns=SECOND))
    own, own_sizes = pack([b"\xa0"])
    world.plan(
        "web",
        placed=(
            placed_group([1, 2, 3], [0, 1, 0], flags=1, own_at=column([1]), own=own, own_sizes=own_sizes),
            placed_group([4], [2], group="other", previous=ids([1])),
        ),
        deployments=(deployment_write(a_deployment(9, job=web)),),
    )
    world.place([5, 6], [1, 2], job_id="db")
    client, client_sizes = pack([b"\xa1\x71ClientDescription\x62ok", b""])
    world.do(
        AllocStatusUpdate(
            ids=ids([1, 2]), statuses=bytes([2, 4]), healths=bytes([1, 2]), client=client, client_sizes=client_sizes
        ),
        request=RequestId(b"session", 1),
    )
    world.do(AllocTransition(ids=ids([3]), flags=2))
    world.plan("web", stopped=(StoppedBatch(ids=ids([2]), fields=b"\xa1\x72DesiredDescription\x64gone"),))
    world.do(Reap(allocs=ids([5]), evaluations=(an_id(2),)))
    world.do(NodeDeregister(ids=(an_id(3),)))
    world.do(EvaluationsUpsert(evaluations=(evaluation_write(an_evaluation(3, job=web)),)))
    world.do(JobDeregister(namespace="default", id="db"), request=RequestId(b"session", 2, 1))
    world.send(b"not a command")
    _add_around(world)
    _add_scores(world)
    _add_services(world)
    _add_rollouts(world)
    return world


def _add_around(world: World) -> None:
    """What came with schema 2: statuses of nodes and deployments, launches, scaling."""
    host = a_node(4, secret_id="")
    world.do(
        NodeRegister(id=host.id, name=host.name, node_pool="fast", body=to_bytes(host), create_pool=True, event=CAME)
    )
    ready = NodeStatusWrite(id=host.id, status="ready", event=CAME)
    world.do(NodeStatusUpdate(updates=(ready, NodeStatusWrite(id=an_id(1), status="down", description="silent"))))
    world.do(NodeEligibilityUpdate(ids=(an_id(2),), eligibility="ineligible"))
    strategy = to_bytes(DrainStrategy(deadline_s=60.0))
    world.do(NodeDrainUpdate(updates=(NodeDrainWrite(id=host.id, strategy=strategy, meta={"why": "rest"}),)))
    api = a_job("api", groups=[a_group("group", count=2)])
    world.register(api)
    row = world.store.jobs.row("default", "api")
    assert row is not None
    state = DeploymentState(desired_total=2, desired_canaries=1, progress_deadline_s=60.0, auto_revert=True)
    rollout = a_deployment(8, job=api, task_groups={"group": state}, job_create_index=row.create_index)
    world.plan(
        "api",
        placed=(placed_group([7, 8], [0, 1], flags=1),),
        deployment_id=rollout.id,
        deployments=(deployment_write(rollout),),
    )
    world.do(DeploymentAllocHealth(id=rollout.id, healthy=ids([7])))
    world.do(DeploymentPromote(id=rollout.id, groups=("group",)))
    done = DeploymentStatusWrite(id=rollout.id, status="successful", description="well")
    world.do(DeploymentStatusUpdate(updates=(done,)))
    scaled = JobScale(
        namespace="default",
        id="api",
        group="group",
        spec=spec_bytes(a_job("api", groups=[a_group("group", count=5)])),
        check_index=row.job_modify_index,
        event=to_bytes(ScalingEvent(count=5, previous_count=2, message="busy")),
    )
    world.do(scaled)
    child = a_job("greet/dispatch-1", type="batch", parent_id="greet", dispatched=True, payload=b"hello")
    world.register(a_job("greet", type="batch", parameterized_job=ParameterizedJobConfig()))
    world.do(JobDispatch(namespace="default", id="greet", child=job_register(child, evaluation=None)))
    nightly = a_job("nightly", type="batch", periodic=PeriodicConfig(specs=("@daily",)))
    world.register(nightly, submission=to_bytes(JobSubmission(source="job", format="hcl2")))
    launched = a_job("nightly/periodic-1", type="batch", parent_id="nightly")
    world.do(
        PeriodicLaunch(
            namespace="default", id="nightly", launch_ns=SECOND, child=job_register(launched, evaluation=None)
        )
    )


def _add_scores(world: World) -> None:
    """What came with schema 3: what each placement scored, and clean-ups that look again."""
    scored = a_job("scored", groups=[a_group("group", count=3)])
    world.register(scored)
    scores = np.array([[0.5, 0.25, 0.125], [0.0, -0.5, -1.0]], dtype="<f4").tobytes()
    group = placed_group([21, 22, 23], [1, 1, 1], score_names="binpack,job-anti-affinity", scores=scores)
    world.plan("scored", placed=(group,))
    world.register(a_job("scored", groups=[a_group("group", count=3)], priority=60))
    world.plan("scored", updated=(UpdatedGroup(group="group", ids=ids([22, 23])),), job_version=1)
    world.do(Reap(allocs=ids([21]), seen_index=world.store.index))


def _add_services(world: World) -> None:
    """What came with schema 4: services and variables."""
    wanted = [("s1", "db", 22), ("s2", "db", 23), ("s3", "api", 22), ("s4", "late", 99)]
    registrations = [
        ServiceRegistration(id=key, service_name=name, namespace="default", node_id=an_id(2), alloc_id=an_id(alloc))
        for key, name, alloc in wanted
    ]
    world.do(ServicesRegister(services=tuple(map(service_write, registrations))))
    world.do(ServicesDeregister(ids=("s3",), node_id=an_id(2)))
    world.do(ServiceDelete(id="s2", namespace="default", name="db"))
    world.do(VariablePut(namespace="default", path="app/settings", sealed=b"sealed"))
    world.do(VariablePut(namespace="default", path="app/settings", sealed=b"other", check_and_set=True))
    world.do(VariablePut(namespace="prod", path="app", sealed=b"gone soon"))
    world.do(VariableDelete(namespace="prod", path="app"))


def _add_rollouts(world: World) -> None:
    """What came with schema 5: rollouts and a region's shares in them."""
    job = a_job(
        "everywhere", multiregion=Multiregion(regions=(MultiregionRegion(name="eu"), MultiregionRegion(name="us")))
    )
    rollout = begin("golden-rollout", job, version=3, owner="eu", now_ns=SECOND)
    world.do(rollout_write(rollout, is_new=True))
    moved = structs.replace(rollout, status=RolloutStatus.RUNNING, revision=1)
    world.do(rollout_write(moved))
    share = RolloutShare(region="eu", rollout=rollout, status=DeploymentStatus.PENDING, deployment_id=an_id(11))
    waiting = a_deployment(11, job=job, status=DeploymentStatus.INITIALIZING, is_multiregion=True)
    world.do(
        RolloutStepCarry(
            namespace="default",
            job_id=job.id,
            share=share_write(share, with_job=True),
            registration=job_register(job, evaluation=None),
            version=3,
            deployment=deployment_write(waiting),
            evaluations=(evaluation_write(an_evaluation(9, job=job)),),
        )
    )
    row = world.store.rollouts.share_row("default", job.id)
    assert row is not None
    world.do(
        RolloutStepCarry(
            namespace="default",
            job_id=job.id,
            share=share_write(
                structs.replace(share, step=RolloutStep.RUN, status=DeploymentStatus.RUNNING), with_job=False
            ),
            seen_index=row.modify_index,
            status=DeploymentStatusWrite(id=waiting.id, status="running"),
        )
    )
    world.do(RolloutsReap(rollouts=("golden-rollout",), seen_index=world.index))


CAME = NodeEventWrite(message="came")


def main() -> None:
    world = a_golden_world()
    FIXTURES.mkdir(parents=True, exist_ok=True)
    GOLDEN.write_bytes(b"".join(save(world.store.snapshot())))
    GOLDEN_LOG.write_bytes(b"".join(len(entry).to_bytes(4, "big") + entry for entry in world.log))


if __name__ == "__main__":
    main()
