"""A region small enough to see through: a store, a clock in hand, and short ways to what happens in it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Any

from fedsched.codec import to_bytes
from fedsched.model.alloc import ClientStatus
from fedsched.model.deployment import Deployment, DeploymentState
from fedsched.model.evaluation import Evaluation
from fedsched.model.job import Job
from fedsched.model.node import DrainStrategy, NodeStatus
from fedsched.state.apply import ApplyResult, apply_bytes
from fedsched.state.changes import Changes
from fedsched.state.commands import Envelope, encode_command
from fedsched.state.fields import Command
from fedsched.state.store import Store
from fedsched.state.tables.alloc_columns import CLIENT_CODES, stored_fields
from fedsched.state.tables.alloc_updates import AllocStatusUpdate
from fedsched.state.tables.deployments import DeploymentsUpsert, deployment_write
from fedsched.state.tables.evaluations import EvaluationsUpsert, evaluation_write
from fedsched.state.tables.jobs import JobDeregister, job_register
from fedsched.state.tables.node_updates import NodeDrainUpdate, NodeDrainWrite, NodeStatusUpdate, NodeStatusWrite
from fedsched.state.tables.nodes import node_upsert
from fedsched.state.tables.plans import PlacedGroup, PlanApply, StoppedBatch
from tests.builders import a_node, an_evaluation, an_id
from tests.state.worlds import column, ids

NS = 1_000_000_000
START_NS = 1_800_000_000 * NS


class Region:
    """A store with a clock."""

    def __init__(self) -> None:
        self.store = Store()
        self.now_ns = START_NS
        self.unheard: list[Changes] = []
        self._ids = count(0xF000_0000)

    def do(self, command: Command) -> ApplyResult:
        """Carry a command out the way a proposer's is; it has to be accepted."""
        data = encode_command(Envelope(command=command, time_ns=self.now_ns))
        done = apply_bytes(self.store, self.store.index + 1, data)
        assert not done.alarm, done.alarm
        assert done.result.is_done, done.result
        self.unheard.append(done.changes)
        return done

    def changes(self) -> list[Changes]:
        """What changed since this was last asked."""
        heard, self.unheard = self.unheard, []
        return heard

    def everything(self) -> list[Changes]:
        """What a service is told first."""
        self.unheard = []
        return [Changes(self.store.index, is_everything=True)]

    def sleep(self, seconds: float) -> None:
        self.now_ns += round(seconds * NS)

    def new_id(self) -> str:
        return an_id(next(self._ids))

    def register(self, job: Job, *, evaluation: Evaluation | None = None) -> Job:
        made = evaluation_write(evaluation) if evaluation is not None else None
        self.do(job_register(job, evaluation=made))
        known = self.store.jobs.get(job.namespace, job.id)
        assert known is not None
        return known

    def stop(self, job_id: str, *, purge: bool = False) -> None:
        self.do(JobDeregister(namespace="default", id=job_id, purge=purge, submit_time_ns=self.now_ns))

    def node(self, number: int = 1, **fields: Any) -> int:
        """Register a node; its slot."""
        slot: int = self.do(node_upsert(a_node(number, **fields))).result.value["slot"]
        return slot

    def node_status(self, number: int, status: NodeStatus) -> None:
        self.do(NodeStatusUpdate(updates=(NodeStatusWrite(id=an_id(number), status=status.value),)))

    def drain(self, number: int, *, deadline_s: float = 0.0, ignore_system_jobs: bool = False) -> None:
        force_ns = self.now_ns + round(deadline_s * NS) if deadline_s > 0 else 0
        strategy = DrainStrategy(
            deadline_s=deadline_s,
            ignore_system_jobs=ignore_system_jobs,
            force_deadline_ns=force_ns,
            started_at_ns=self.now_ns,
        )
        self.do(NodeDrainUpdate(updates=(NodeDrainWrite(id=an_id(number), strategy=to_bytes(strategy)),)))

    def place(
        self,
        numbers: Iterable[int],
        node_slots: int | Iterable[int],
        *,
        job: str = "web",
        group: str = "group",
        version: int | None = None,
        deployment: str = "",
        evaluation: int = 0xE,
        previous: list[int] | None = None,
        **fields: Any,
    ) -> None:
        """Place allocations of these numbers (see `an_id`) on nodes of these slots."""
        wanted = list(numbers)
        slots = [node_slots] * len(wanted) if isinstance(node_slots, int) else list(node_slots)
        placed = PlacedGroup(
            group=group,
            ids=ids(wanted),
            node_slots=column(slots),
            name_indexes=column(list(range(len(wanted)))),
            previous=ids(previous) if previous else b"",
            **fields,
        )
        self._plan(job, version, deployment, evaluation, placed=(placed,))

    def stop_allocs(self, numbers: Iterable[int], *, job: str = "web", desired: int = 2, **fields: Any) -> None:
        self._plan(job, None, "", 0xE, stopped=(StoppedBatch(ids=ids(list(numbers)), desired=desired, **fields),))

    def _plan(self, job: str, version: int | None, deployment: str, evaluation: int, **fields: Any) -> None:
        row = self.store.jobs.row("default", job)
        self.do(
            PlanApply(
                namespace="default",
                job_id=job,
                job_create_index=row.create_index if row else 1,
                job_version=version if version is not None else row.version if row else 0,
                evaluation_id=an_id(evaluation),
                snapshot_index=self.store.index,
                deployment_id=deployment,
                **fields,
            )
        )

    def client(self, numbers: Iterable[int], status: ClientStatus, *, healthy: bool | None = None) -> None:
        """What a client reports of these allocations."""
        wanted = list(numbers)
        health = b"" if healthy is None else bytes([1 if healthy else 2]) * len(wanted)
        statuses = bytes([CLIENT_CODES[status]]) * len(wanted)
        self.do(AllocStatusUpdate(ids=ids(wanted), statuses=statuses, healths=health))

    def run(self, numbers: Iterable[int], *, healthy: bool | None = True) -> None:
        self.client(numbers, ClientStatus.RUNNING, healthy=healthy)

    def deployment(self, job: Job, groups: dict[str, DeploymentState], *, number: int = 0xD, **fields: Any) -> str:
        known = Deployment(
            id=an_id(number),
            namespace=job.namespace,
            job_id=job.id,
            job_version=job.version,
            job_create_index=job.create_index,
            task_groups=groups,
            create_time_ns=self.now_ns,
            modify_time_ns=self.now_ns,
            **fields,
        )
        self.do(DeploymentsUpsert(deployments=(deployment_write(known),)))
        return known.id

    def evaluation(self, number: int, job: Job, **fields: Any) -> None:
        fields.setdefault("create_time_ns", self.now_ns)
        fields.setdefault("modify_time_ns", self.now_ns)
        self.do(EvaluationsUpsert(evaluations=(evaluation_write(an_evaluation(number, job=job, **fields)),)))

    def alloc(self, number: int) -> Any:
        found = self.store.allocations.get(an_id(number))
        assert found is not None
        return found


def own_fields(at: list[int], records: list[Any], *names: str) -> dict[str, bytes]:
    """The columns of a placed group that give single allocations fields of their own."""
    from fedsched.state.fields import pack

    own, sizes = pack(stored_fields(record, *names) for record in records)
    return {"own_at": column(at), "own": own, "own_sizes": sizes}
