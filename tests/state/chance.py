"""Commands drawn by chance with an eye on the store, so that most of them meet something: a history worth checking."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from fedsched.codec import to_bytes
from fedsched.model.deployment import DeploymentState, DeploymentStatus
from fedsched.model.node import DrainStrategy
from fedsched.model.rollout import Rollout, RolloutShare, RolloutStatus
from fedsched.state.fields import Command, pack
from fedsched.state.tables.alloc_updates import AllocStatusUpdate, AllocTransition, JobName, Reap
from fedsched.state.tables.deployment_groups import pack_states
from fedsched.state.tables.deployment_updates import (
    DeploymentAllocHealth,
    DeploymentPromote,
    DeploymentStatusUpdate,
    DeploymentStatusWrite,
)
from fedsched.state.tables.deployments import DeploymentsUpsert, DeploymentWrite
from fedsched.state.tables.evaluations import EvaluationsUpsert, EvaluationWrite
from fedsched.state.tables.jobs import JobDeregister, JobRegister, JobStable, JobTag
from fedsched.state.tables.launches import JobDispatch, PeriodicLaunch
from fedsched.state.tables.meta import ClusterBegin, SchedulerConfigSet
from fedsched.state.tables.namespaces import NamespaceDelete, NamespaceUpsert, NodePoolDelete, NodePoolUpsert
from fedsched.state.tables.node_events import NodeEventWrite
from fedsched.state.tables.node_updates import (
    NodeDrainUpdate,
    NodeDrainWrite,
    NodeEligibilityUpdate,
    NodeRegister,
    NodeStatusUpdate,
    NodeStatusWrite,
)
from fedsched.state.tables.nodes import NodeDeregister, NodeUpsert
from fedsched.state.tables.plans import OfficeBegin, PlacedGroup, PlanApply, StoppedBatch, UpdatedGroup
from fedsched.state.tables.rollout_steps import RolloutStepCarry
from fedsched.state.tables.rollouts import JobPart, RolloutsReap, rollout_write, share_write
from fedsched.state.tables.scaling_events import JobScale
from fedsched.state.tables.services import ServiceDelete, ServicesDeregister, ServicesRegister, ServiceWrite
from fedsched.state.tables.sessions import RequestId
from fedsched.state.tables.variables import VariableDelete, VariablePut
from tests.builders import an_id
from tests.state.worlds import EMPTY_MAP, World, column, ids

JOBS = ("web", "db", "batch")
GROUPS = ("group", "other")
ALLOCS = 60
NODES = 8
REPORT = b"\xa1\x71ClientDescription\x62ok"


class Chance:
    """Draws commands for a world; equal seeds and equal worlds give equal commands."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def steps(self, world: World, count: int) -> None:
        """Begin with a fleet and a job, then so many commands."""
        if world.index == 0:
            world.nodes(4)
            world.do(JobRegister(namespace="default", id="web", spec=EMPTY_MAP))
        for _ in range(count):
            world.do(self.command(world), request=self.request())

    def request(self) -> RequestId | None:
        if self.rng.random() < 0.7:
            return None
        return RequestId(self.rng.choice([b"alice", b"bob"]), self.rng.randint(1, 40), self.rng.randint(0, 20))

    def command(self, world: World) -> Command:
        draw: Callable[[World], Command] = self.rng.choices(
            [
                *(self._plan, self._report, self._register, self._node, self._reap, self._small, self._evaluations),
                *(self._node_update, self._rollout, self._launch, self._service, self._variable),
                self._federated,
            ],
            [15, 9, 4, 2, 5, 3, 2, 2, 3, 2, 4, 1, 3],
        )[0]
        return draw(world)

    def _numbers(self, at_most: int = 8) -> list[int]:
        return self.rng.sample(range(1, ALLOCS), self.rng.randint(1, at_most))

    def _plan(self, world: World) -> Command:
        rng = self.rng
        row = world.store.jobs.row("default", rng.choice(JOBS))
        created, version = (row.create_index, row.version) if row else (1, 0)
        stopped = [
            StoppedBatch(
                ids=ids(self._numbers()),
                desired=rng.randint(1, 3),
                client_status=rng.choice([0, 0, 5, 6]),
                fields=rng.choice([b"", EMPTY_MAP]),
            )
            for _ in range(rng.choice([0, 0, 1, 2]))
        ]
        updated = [UpdatedGroup(group=rng.choice(GROUPS), ids=ids(self._numbers()))] if rng.random() < 0.3 else []
        return PlanApply(
            namespace="default",
            job_id=row.id if row else "web",
            job_create_index=created,
            job_version=max(0, version - rng.choice([0, 0, 0, 1])),
            evaluation_id=an_id(rng.randint(1, 9)),
            deployment_id=rng.choice(["", an_id(1)]),
            snapshot_index=world.index - rng.choice([0, 0, 0, 5]) if world.index > 5 else world.index,
            placed=tuple(self._placed() for _ in range(rng.choice([0, 1, 1, 2]))),
            stopped=tuple(stopped),
            updated=tuple(updated),
            evaluations=self._some_evaluations(),
        )

    def _placed(self) -> PlacedGroup:
        rng = self.rng
        numbers = self._numbers(12)
        fields: dict[str, Any] = {}
        if rng.random() < 0.4:
            before = [rng.choice([0, *range(1, ALLOCS)]) for _ in numbers]
            fields["previous"] = b"".join(ids([n]) if n else bytes(16) for n in before)
        if rng.random() < 0.4:
            own, sizes = pack([EMPTY_MAP])
            fields |= {"own_at": column([rng.randrange(len(numbers))]), "own": own, "own_sizes": sizes}
        return PlacedGroup(
            group=rng.choice(GROUPS),
            ids=ids(numbers),
            node_slots=column([rng.randrange(NODES) for _ in numbers]),
            name_indexes=column([rng.randrange(99) for _ in numbers]),
            flags=rng.randrange(16),
            shared=rng.choice([b"", EMPTY_MAP]),
            **fields,
        )

    def _report(self, _: World) -> Command:
        numbers = [self.rng.randint(1, ALLOCS) for _ in range(self.rng.randint(1, 10))]
        client, sizes = (
            pack([self.rng.choice([b"", REPORT]) for _ in numbers]) if self.rng.random() < 0.7 else (b"", b"")
        )
        if self.rng.random() < 0.1:
            return AllocTransition(ids=ids(numbers), flags=self.rng.randrange(64))
        return AllocStatusUpdate(
            ids=ids(numbers),
            statuses=bytes(self.rng.randint(1, 6) for _ in numbers),
            healths=bytes(self.rng.randrange(3) for _ in numbers) if self.rng.random() < 0.5 else b"",
            client=client,
            client_sizes=sizes,
            evaluations=self._some_evaluations(),
        )

    def _register(self, world: World) -> Command:
        rng = self.rng
        job_id = rng.choice(JOBS)
        if rng.random() < 0.25:
            return JobDeregister(namespace="default", id=job_id, purge=rng.random() < 0.5)
        row = world.store.jobs.row("default", job_id)
        return JobRegister(
            namespace="default",
            id=job_id,
            spec=rng.choice([EMPTY_MAP, b"\xa1\x64Name\x61a", b"\xa1\x64Name\x61b"]),
            type=rng.choice(["service", "service", "batch", "system"]),
            parent_id=rng.choice(["", "", "web"]),
            stop=rng.random() < 0.05,
            enforce_index=rng.random() < 0.2,
            check_index=row.job_modify_index if row else 0,
            evaluation=next(iter(self._some_evaluations()), None),
        )

    def _node(self, _: World) -> Command:
        node = an_id(self.rng.randint(1, NODES))
        if self.rng.random() < 0.35:
            return NodeDeregister(ids=(node,))
        return NodeUpsert(id=node, name=self.rng.choice(["a", "b"]), node_pool=self.rng.choice(["default", "gpu"]))

    def _reap(self, _: World) -> Command:
        gone = tuple(an_id(n) for n in self.rng.sample(range(1, 10), 2))
        return Reap(allocs=ids(self._numbers(20)), evaluations=gone)

    def _service(self, world: World) -> Command:
        rng = self.rng
        ids = tuple(f"s{rng.randrange(30)}" for _ in range(rng.randint(1, 6)))
        kind = rng.random()
        if kind < 0.2:
            return ServicesDeregister(ids=ids, node_id=rng.choice(["", an_id(1)]))
        if kind < 0.3:
            return ServiceDelete(id=ids[0], namespace="default", name=rng.choice(JOBS))
        live = [record.id for record in world.store.allocations.records(world.store.allocations.live.in_use(0, ALLOCS))]
        return ServicesRegister(services=tuple(self._registration(world, one, live) for one in ids))

    def _registration(self, world: World, identity: str, allocs: list[str]) -> ServiceWrite:
        rng = self.rng
        alloc = world.store.allocations.get(rng.choice(allocs)) if allocs else None
        return ServiceWrite(
            id=identity,
            name=rng.choice(JOBS),
            namespace="default",
            node_id=alloc.node_id if alloc and rng.random() < 0.9 else an_id(1),
            alloc_id=alloc.id if alloc else an_id(1),
            body=rng.choice([b"", EMPTY_MAP]),
        )

    def _variable(self, _: World) -> Command:
        rng = self.rng
        fields: dict[str, Any] = {"namespace": rng.choice(["default", "prod"]), "path": rng.choice(["a", "a/b", "c"])}
        fields |= {"check_and_set": rng.random() < 0.3, "check_index": rng.randrange(3)}
        if rng.random() < 0.3:
            return VariableDelete(**fields)
        return VariablePut(sealed=rng.randbytes(3), **fields)

    def _federated(self, world: World) -> Command:
        """Records of rollouts and shares in them, some of them from somebody who has seen an older state."""
        rng = self.rng
        job_id = rng.choice(JOBS)
        row = world.store.rollouts.row(job_id)
        rollout = Rollout(
            id=job_id,
            job_id=job_id,
            job_version=row.job_version if row else rng.randrange(6),
            owner=rng.choice(["eu", "us"]),
            epoch=rng.choice([1, 1, 2]),
            revision=row.revision + rng.choice([1, 1, 2]) if row else 0,
            status=rng.choice([RolloutStatus.RUNNING, RolloutStatus.SUCCESSFUL]),
        )
        kind = rng.random()
        if kind < 0.3:
            return rollout_write(rollout, is_new=row is None)
        names = (JobPart(namespace="default", id=job_id),)
        if kind < 0.35:
            return RolloutsReap(rollouts=(job_id,), shares=names, seen_index=world.index)
        known = world.store.rollouts.share_row("default", job_id)
        share = RolloutShare(
            region="eu",
            rollout=rollout,
            status=rng.choice([DeploymentStatus.PENDING, DeploymentStatus.RUNNING, DeploymentStatus.FAILED]),
            deployment_id=an_id(rng.randint(1, 3)),
        )
        job = world.store.jobs.row("default", job_id)
        registers = rng.random() < 0.3
        return RolloutStepCarry(
            namespace="default",
            job_id=job_id,
            share=share_write(share, with_job=False),
            seen_index=known.modify_index if known and rng.random() < 0.9 else 0,
            registration=JobRegister(namespace="default", id=job_id, spec=EMPTY_MAP) if registers else None,
            version=(job.version if job else 0) + rng.choice([0, 1, 3]),
            deployment=DeploymentWrite(id=share.deployment_id, job_id=job_id, status="pending") if registers else None,
            status=DeploymentStatusWrite(id=share.deployment_id, status="running") if not registers else None,
            stop=JobDeregister(namespace="default", id=job_id) if rng.random() < 0.1 else None,
            evaluations=self._some_evaluations(),
        )

    def _some_evaluations(self) -> tuple[EvaluationWrite, ...]:
        rng = self.rng
        return tuple(
            EvaluationWrite(
                id=an_id(rng.randint(1, 9)),
                job_id=rng.choice(JOBS),
                status=rng.choice(["pending", "blocked", "blocked", "complete", "failed"]),
                failed_groups=rng.random() < 0.3,
                queued={group: rng.randrange(5) for group in GROUPS if rng.random() < 0.3},
            )
            for _ in range(rng.choice([0, 0, 0, 1, 2]))
        )

    def _evaluations(self, _: World) -> Command:
        return EvaluationsUpsert(evaluations=self._some_evaluations())

    def _small(self, _: World) -> Command:
        rng = self.rng
        version = rng.randrange(4)
        deployment = DeploymentWrite(
            id=an_id(rng.randint(1, 3)), job_id=rng.choice(JOBS), status=rng.choice(["running", "successful"])
        )
        return rng.choice(
            [
                JobTag(namespace="default", id=rng.choice(JOBS), version=version, name=rng.choice(["", "x", "y"])),
                JobStable(namespace="default", id=rng.choice(JOBS), version=version, is_stable=rng.random() < 0.7),
                DeploymentsUpsert(deployments=(deployment,)),
                ClusterBegin(cluster_id=rng.choice(["one", "two"])),
                OfficeBegin(term=rng.randrange(3)),
                SchedulerConfigSet(config=EMPTY_MAP, check_and_set=rng.random() < 0.5),
                NamespaceUpsert(name=rng.choice(["default", "prod"])),
                NamespaceDelete(name="prod"),
                NodePoolUpsert(name="gpu"),
                NodePoolDelete(name="gpu"),
            ]
        )

    def _node_update(self, _: World) -> Command:
        rng = self.rng
        node = an_id(rng.randint(1, NODES))
        status: Any = rng.choice(["ready", "down", "initializing", "disconnected"])
        strategy = to_bytes(DrainStrategy(deadline_s=5.0)) if rng.random() < 0.5 else b""
        event = rng.choice([None, NodeEventWrite(message="seen")])
        return rng.choice(
            [
                NodeRegister(
                    id=node, name="a", node_pool=rng.choice(["default", "new"]), create_pool=True, event=event
                ),
                NodeStatusUpdate(updates=(NodeStatusWrite(id=node, status=status, event=event),)),
                NodeEligibilityUpdate(ids=(node,), eligibility=rng.choice(["eligible", "ineligible"])),
                NodeDrainUpdate(
                    updates=(NodeDrainWrite(id=node, strategy=strategy, mark_eligible=rng.random() < 0.5),)
                ),
            ]
        )

    def _rollout(self, world: World) -> Command:
        """Deployments with groups, placements in them, and what becomes of them."""
        rng = self.rng
        row = world.store.jobs.row("default", rng.choice(JOBS))
        deployment_id = an_id(rng.randint(1, 3))
        if row is not None and rng.random() < 0.5:
            state = DeploymentState(desired_total=3, desired_canaries=rng.choice([0, 1]), progress_deadline_s=60.0)
            write = DeploymentWrite(
                id=deployment_id,
                job_id=row.id,
                job_version=row.version,
                job_create_index=row.create_index,
                groups=pack_states(dict.fromkeys(GROUPS, state)),
            )
            return PlanApply(
                namespace="default",
                job_id=row.id,
                job_create_index=row.create_index,
                job_version=row.version,
                evaluation_id=an_id(rng.randint(1, 9)),
                snapshot_index=world.index,
                deployment_id=deployment_id,
                deployments=(write,),
                placed=(self._placed(),),
            )
        numbers = self._numbers()
        status: Any = rng.choice(["running", "paused", "failed", "successful"])
        return rng.choice(
            [
                DeploymentStatusUpdate(updates=(DeploymentStatusWrite(id=deployment_id, status=status),)),
                DeploymentPromote(id=deployment_id),
                DeploymentAllocHealth(id=deployment_id, healthy=ids(numbers[:1]), unhealthy=ids(numbers[1:2])),
            ]
        )

    def _launch(self, world: World) -> Command:
        rng = self.rng
        parent = rng.choice(JOBS)
        row = world.store.jobs.row("default", parent)
        child = JobRegister(
            namespace="default",
            id=f"{parent}/{rng.randint(1, 5)}",
            spec=EMPTY_MAP,
            type="batch",
            parent_id=parent,
            dispatch_token=rng.choice(["", "once"]),
            evaluation=next(iter(self._some_evaluations()), None),
        )
        return rng.choice(
            [
                JobDispatch(namespace="default", id=parent, child=child),
                PeriodicLaunch(namespace="default", id=parent, launch_ns=rng.randint(1, 50), child=child),
                PeriodicLaunch(namespace="default", id=parent, launch_ns=rng.randint(1, 50)),
                JobScale(
                    namespace="default",
                    id=parent,
                    group="group",
                    spec=rng.choice([b"", b"\xa1\x64Name\x61c"]),
                    check_index=row.job_modify_index if row else 0,
                ),
                Reap(jobs=(JobName(id=parent),), deployments=(an_id(rng.randint(1, 3)),)),
            ]
        )
