"""What must hold in a simulated region at every commit. Slow and simple on purpose.

What only time can show is in `fleet_watch`, what only rest can in `fleet_quiet`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from zoneinfo import ZoneInfo

from fedsched.codec import from_bytes
from fedsched.model.ids import uuid_text
from fedsched.model.node import DrainStrategy
from fedsched.sim.fleet_jobs import PROGRESS_S
from fedsched.sim.fleet_truth import UNKNOWN, Held, Truth, need_of
from fedsched.sim.verdict import Broken
from fedsched.state.fields import Command
from fedsched.state.result import Result
from fedsched.state.store import State
from fedsched.state.tables.alloc_columns import DESIRED_CODES
from fedsched.state.tables.deployment_updates import (
    DeploymentAllocHealth,
    DeploymentStatusUpdate,
    DeploymentStatusWrite,
)
from fedsched.state.tables.launches import JobDispatch, PeriodicLaunch
from fedsched.state.tables.node_updates import NodeDrainUpdate
from fedsched.state.tables.plans import PlanApply

if TYPE_CHECKING:
    from fedsched.sim.fleet_clients import SimNode
    from fedsched.sim.fleet_world import FleetWorld

NS: Final = 1_000_000_000
EVICT: Final = next(code for status, code in DESIRED_CODES.items() if status.value == "evict")
PREEMPT_POINTS: Final = 10
PER_NODE: Final = ("system", "sysbatch")
EARLY_S: Final = 10.0
"""How much earlier than its progress deadline a deployment may fail for it."""
RACE_S: Final = 3.0
"""The longest way of a decision into the log."""


class FleetChecks:
    """The invariants of a region's scheduling, one command at a time."""

    def __init__(self, world: FleetWorld) -> None:
        self._world = world
        self.truth = Truth()
        self.nodes: dict[str, SimNode] = {}
        self.plans_of: defaultdict[str, list[PlanApply]] = defaultdict(list)
        """By evaluation: what was committed for it."""
        self._launches: set[tuple[str, str, int]] = set()
        self._local_launches: set[tuple[str, str, str]] = set()
        self._dispatched: dict[tuple[str, str], str] = {}
        self._strategies: dict[str, DrainStrategy] = {}
        self.failed_versions: set[tuple[str, int, int]] = set()
        """Of jobs whose deployment failed: they stay as they are, also when the deployment is forgotten."""
        self._types: dict[str, str] = {}
        """Of every job that was ever planned for: an allocation outlives its purged job."""

    def committed(self, state: State, command: Command, result: Result) -> None:
        """The first server has applied this command."""
        if not result.is_done:
            return
        match command:
            case PlanApply():
                self._plan(state, command)
            case PeriodicLaunch():
                self._launch(state, command, result)
            case JobDispatch():
                self._dispatch(state, command, result)
            case NodeDrainUpdate():
                self._drain(state, command)
            case DeploymentStatusUpdate():
                self._note_failed(state, command.updates)
                self._deployments(state, command)
            case DeploymentAllocHealth() if command.status is not None:
                self._note_failed(state, (command.status,))
            case _:
                pass

    # ------------------------------------------------------------------ plans

    def proposed(self, state: State, plan: PlanApply) -> None:
        """A worker is about to submit this plan, made from this very state."""
        self._world.counts["plans proposed"] += 1
        try:
            self._evicts_little(state, plan)
        except Broken as broken:  # the worker would take it for a failure of its scheduler
            self._world.nursery.start_soon(_raise, broken)

    def _plan(self, state: State, plan: PlanApply) -> None:
        self.plans_of[plan.evaluation_id].append(plan)
        slots = {slot for group in plan.placed for slot in memoryview(group.node_slots).cast("I").tolist()}
        for slot in sorted(slots):
            row = state.nodes.of_slot(slot)
            problems = self.truth.overcommitted(state, row) if row is not None else []
            if row is not None and problems:
                raise Broken("R-21 no over-commit", f"{row.name}: {'; '.join(problems)} after a plan of {plan.job_id}")
        job = self.truth.current(state, plan.namespace, plan.job_id)
        if job is not None:
            self._types[job.id] = job.type
        self._names(state, plan)
        self._preempted(state, plan)
        self._world.counts["placed"] += sum(len(group.ids) // 16 for group in plan.placed)

    def _names(self, state: State, plan: PlanApply) -> None:
        """R-23, for one job. Whoever goes on in place keeps its name, also one that a smaller count leaves behind."""
        taken: Counter[tuple[tuple[Any, ...], str]] = Counter()
        current = self.truth.current(state, plan.namespace, plan.job_id)
        for held in self.truth.of_job(state, plan.namespace, plan.job_id):
            job = self.truth.job(state, held.version_key)
            if not held.is_live or job is None or job.type in PER_NODE or held.is_canary:
                continue
            if held.client == UNKNOWN or self._is_coming_back(state, held):
                continue
            taken[(held.version_key, held.name)] += 1
            # While canaries wait, an older version is kept up in the number that the newer one wants.
            groups = [one.group(held.group) for one in (job, current) if one is not None]
            most = max((group.count for group in groups if group is not None), default=0)
            if held.create_index == state.index and not 0 <= held.name_index < most:
                what = f"{held.name} was placed for version {job.version} with a count of {most}"
                raise Broken("R-23 names in range", what)
        twice = [f"{name} of version {key[3]}" for (key, name), count in taken.items() if count > 1]
        if twice:
            raise Broken("R-23 names unique", "; ".join(sorted(twice)))

    def _is_coming_back(self, state: State, held: Held) -> bool:
        """Whether its client is back after it was cut off, and nobody has chosen between it and its copy yet."""
        record = state.allocations.get(held.id)
        states = record.alloc_states if record is not None else ()
        return bool(states) and states[-1].value == "unknown"

    def _preempted(self, state: State, plan: PlanApply) -> None:
        """R-28: nobody within ten points is touched."""
        mine = self.truth.job(state, (plan.namespace, plan.job_id, plan.job_create_index, plan.job_version))
        for held in self.truth.of_ids(state, evicted(plan)):
            job = self.truth.job(state, held.version_key)
            if job is None or mine is None:
                continue
            self._world.counts["preempted"] += 1
            if job.priority + PREEMPT_POINTS > mine.priority:
                what = f"{mine.id} ({mine.priority}) evicted {held.name} ({job.priority})"
                raise Broken("R-28 preemption keeps its distance", what)

    def _evicts_little(self, state: State, plan: PlanApply) -> None:
        """R-28: of the allocations that a plan evicts from a node, per allocation it places there, at most one could
        have stayed. All choices are tried.
        """
        victims = self.truth.of_ids(state, evicted(plan))
        at = {slot: self._node_slot(state, slot) for slot in (victim.slot for victim in victims)}
        gone = {
            uuid_text(batch.ids[start : start + 16])
            for batch in plan.stopped
            for start in range(0, len(batch.ids), 16)
            if not (batch.desired == EVICT and not batch.client_status)
        }
        for slot in sorted(set(at.values())):
            row = state.nodes.of_slot(slot)
            if row is None:
                continue
            node = self.truth.node(row)
            needs = []
            for part in plan.placed:
                version = part.of_version if part.of_version >= 0 else plan.job_version
                job = self.truth.job(state, (plan.namespace, plan.job_id, plan.job_create_index, version))
                group = job.group(part.group) if job is not None else None
                count = memoryview(part.node_slots).cast("I").tolist().count(slot)
                needs += [need_of(group, node)] * count if group is not None else []
            here = [victim for victim in victims if at[victim.slot] == slot]
            least = self.truth.fewest(state, row, gone, here, needs)
            self._world.counts["evictions tried"] += 1
            if least <= len(here) and len(here) > least + max(1, len(needs)):
                names = sorted(victim.name for victim in here)
                what = f"{plan.job_id} evicts {names} from {row.name} for {len(needs)}, {least} would have done"
                raise Broken("R-28 no more than needed", what)

    def _node_slot(self, state: State, slot: int) -> int:
        return int(state.allocations.columns.one(slot)["node"])

    # ------------------------------------------------------------------ launches

    def _launch(self, state: State, command: PeriodicLaunch, result: Result) -> None:
        """R-25: each moment at most once, each local time at most once, and no overlap where none is wanted."""
        if not result.value["launched"]:
            self._world.counts["periodic launches skipped"] += 1
            return
        parent = self.truth.current(state, command.namespace, command.id)
        assert parent is not None
        self._once(parent.id, str(parent.create_index), command.launch_ns)
        self._world.counts["periodic launches"] += 1
        periodic = parent.periodic
        if periodic is None:
            return
        if command.launch_ns % (60 * NS):
            return  # a person forced it, at any second, and whatever else runs
        self._at_its_time(parent.id, str(parent.create_index), command.launch_ns, periodic.time_zone)
        if not periodic.prohibit_overlap:
            return
        others = [
            row.id
            for row in state.jobs.scan(command.namespace)
            if row.parent_id == command.id and row.id != result.value["child_id"] and row.status != "dead"
        ]
        if others:
            raise Broken("R-25 no overlap", f"{result.value['child_id']} was launched while {others} had not ended")

    def _once(self, job_id: str, incarnation: str, launch_ns: int) -> None:
        key = (job_id, incarnation, launch_ns)
        if key in self._launches:
            raise Broken("R-25 each launch once", f"{job_id} was launched twice for {launch_ns}")
        self._launches.add(key)

    def _at_its_time(self, job_id: str, incarnation: str, launch_ns: int, zone: str) -> None:
        """A local time that clocks show twice is launched the first time."""
        local = datetime.fromtimestamp(launch_ns // NS, UTC).astimezone(ZoneInfo(zone))
        key = (job_id, incarnation, local.replace(tzinfo=None, fold=0).isoformat() + zone)
        if local.fold or key in self._local_launches:
            raise Broken("R-25 each local time once", f"{job_id} was launched again at {local.isoformat()}")
        self._local_launches.add(key)

    def _dispatch(self, state: State, command: JobDispatch, result: Result) -> None:
        """The same token again gives the child of the first time, as long as that is remembered."""
        key, child = (command.id, command.child.dispatch_token), str(result.value["child_id"])
        earlier = self._dispatched.get(key, child)
        is_there = state.jobs.row(command.namespace, earlier) is not None
        if command.child.dispatch_token and earlier != child and is_there:
            raise Broken("dispatched once", f"{earlier} and {child} of {command.id} have one token")
        self._dispatched[key] = child
        self._world.counts["dispatches" if result.value["is_new"] else "dispatches repeated"] += 1

    # ------------------------------------------------------------------ drains and deployments

    def _drain(self, state: State, command: NodeDrainUpdate) -> None:
        """R-27: a drain ends only when nothing runs there any more that it had to see off."""
        for update in command.updates:
            node, row = self.nodes.get(update.id), state.nodes.get(update.id)
            was = self._strategies.get(update.id)
            if row is not None and row.draining:
                self._strategies[update.id] = from_bytes(row.drain, DrainStrategy)
            else:
                self._strategies.pop(update.id, None)
            if not update.is_complete or node is None or was is None or (row is not None and row.draining):
                continue
            self._world.counts["drains ended"] += 1
            spared = ("system",) if was.ignore_system_jobs else ()
            running = [
                held.name
                for held in self.truth.of_ids(state, node.running())
                if self._types.get(held.job_id) not in spared and held.occupies
            ]
            if running and not node.is_gone:
                raise Broken("R-27 drained means empty", f"{node.name} still runs {running}")

    def _note_failed(self, state: State, updates: Iterable[DeploymentStatusWrite]) -> None:
        for update in updates:
            row = state.deployments.rows.get(update.id)
            if row is not None and update.status == "failed":
                self.failed_versions.add((row.job_id, row.job_create_index, row.job_version))

    def _deployments(self, state: State, command: DeploymentStatusUpdate) -> None:
        """R-26: nobody is failed for its deadline much before that has passed."""
        for update in command.updates:
            row = state.deployments.get(update.id)
            if row is None or update.status != "failed" or "deadline" not in update.description:
                continue
            self._world.counts["deployments late"] += 1
            groups = row.task_groups.values()
            dues = [one.require_progress_by_ns for one in groups if one.require_progress_by_ns]
            early_s = (min(dues, default=0) - self._world.wall_ns) / NS
            # Progress of the last moments came after the decision, which was right when it was taken.
            if EARLY_S < early_s < PROGRESS_S - RACE_S and self._world.steady_s > EARLY_S:
                raise Broken("R-26 not before its deadline", f"{row.id} of {row.job_id} failed {early_s:.1f} s early")


async def _raise(broken: Broken) -> None:
    raise broken


def evicted(plan: PlanApply) -> list[str]:
    """The ids of those that a plan evicts for room."""
    ids = b"".join(batch.ids for batch in plan.stopped if batch.desired == EVICT and not batch.client_status)
    return [uuid_text(ids[at : at + 16]) for at in range(0, len(ids), 16)]
