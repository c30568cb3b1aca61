"""Watches deployments: lets them go on as allocations become healthy, and ends those that get nowhere.

Pure: reads the state, is told the time, says what should be written. What is kept here can be found again in the state,
so that a leader that comes to office in the middle of a deployment goes on with it: which healthy allocations have been
acted on (else: those that changed after the job's latest evaluation), and when the next batch of evaluations is due.

A deployment moves on by evaluations. To make few of them, each deployment gathers for a second what happened to it, and
those whose second is over are written together after another quarter of a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from fedsched.model.deployment import DeploymentStatus
from fedsched.model.evaluation import Evaluation
from fedsched.model.job import Job
from fedsched.server.leader.client_updates_core import may_reschedule
from fedsched.server.leader.deployment_rules import (
    DEADLINE,
    UNHEALTHY_ALLOCS,
    Continue,
    DeploymentEffect,
    FailDeployment,
    MoveOn,
    Own,
    PromoteDeployment,
    evaluation_for,
    failure_of,
    is_group_fine,
    is_let_go,
    latest_evaluation_index,
    may_promote_itself,
    own_allocs,
    progress_due_ns,
)
from fedsched.state.changes import Changes
from fedsched.state.columns import Rows, Slots
from fedsched.state.store import State
from fedsched.state.tables.alloc_columns import HEALTHY, RUN, UNHEALTHY, Flag
from fedsched.state.tables.deployments import DeploymentRow

NS: Final = 1_000_000_000
GATHER_NS: Final = NS
"""How long one deployment gathers."""
ACROSS_NS: Final = NS // 4
"""How long those that have gathered wait for one another."""
TOGETHER_MAX: Final = 1000
"""Deployments that go on with one entry of the log."""
LARGE: Final = 1000
REST_NS: Final = NS // 4
"""Looking at a deployment costs with its allocations: so often at most if there are many."""
PAUSED: Final = DeploymentStatus.PAUSED.value
RUNNING: Final = DeploymentStatus.RUNNING.value
BLOCKED: Final = DeploymentStatus.BLOCKED.value
UNBLOCKING: Final = DeploymentStatus.UNBLOCKING.value


@dataclass(slots=True)
class _Watched:
    """One deployment under way."""

    job: Job | None
    """The version of the job that it brings out; versions never change."""
    healthy: Slots = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """Allocations whose becoming healthy has been acted on."""
    wants_evaluation: bool = False
    gather_due_ns: int | None = None
    deadline_ns: int | None = None
    rest_until_ns: int = 0
    """A large one is not looked at again before."""
    is_ending: bool = False
    """It was told to fail or was promoted; nothing more until that shows in the state."""


class DeploymentsCore:
    """All deployments under way."""

    def __init__(self) -> None:
        self._watched: dict[str, _Watched] = {}
        self._dirty: set[str] = set()
        self._gathered: set[str] = set()
        self._across_due_ns: int | None = None

    def note(self, state: State, changes: Iterable[Changes]) -> None:
        """Hear of changes."""
        for change in changes:
            if change.is_everything:
                self._begin(state)
                continue
            for key in change.keys("deployments"):
                self._look_again(str(key[0]))
            for namespace, job_id in change.keys("rollout_shares"):
                row = state.deployments.active_of_job(namespace, job_id)
                if row is not None:
                    self._dirty.add(row.id)
            for allocs in change.allocs:
                for job_key in allocs.jobs:
                    row = state.deployments.active_of_job(*job_key)
                    if row is not None:
                        self._dirty.add(row.id)

    def watched(self) -> list[str]:
        """The deployments under way, as far as they have been looked at."""
        return sorted(self._watched)

    def wake_at_ns(self) -> int | None:
        """When the next review is due even if nothing changes."""
        times = [self._across_due_ns, *(self._rest_until_ns(one) for one in self._dirty)]
        for known in self._watched.values():
            times += [known.gather_due_ns, None if known.is_ending else known.deadline_ns]
        return min((time for time in times if time is not None), default=None)

    def review(self, state: State, now_ns: int, new_id: Callable[[], str]) -> list[DeploymentEffect]:
        """What is to be written now."""
        effects: list[DeploymentEffect] = []
        due = {
            deployment_id
            for deployment_id, known in self._watched.items()
            if known.deadline_ns is not None and known.deadline_ns <= now_ns and not known.is_ending
        }
        ready = {one for one in self._dirty if self._rest_until_ns(one) <= now_ns}
        for deployment_id in sorted(ready | due):
            effects += self._look(state, deployment_id, now_ns, new_id)
        self._dirty -= ready | due
        return [*effects, *self._continue(state, now_ns, new_id)]

    def _rest_until_ns(self, deployment_id: str) -> int:
        known = self._watched.get(deployment_id)
        return known.rest_until_ns if known is not None else 0

    def _begin(self, state: State) -> None:
        self._watched, self._gathered, self._across_due_ns = {}, set(), None
        self._dirty = {row.id for row in state.deployments.active()}

    def _look_again(self, deployment_id: str) -> None:
        self._dirty.add(deployment_id)
        known = self._watched.get(deployment_id)
        if known is not None:
            known.is_ending = False

    def _look(self, state: State, deployment_id: str, now_ns: int, new_id: Callable[[], str]) -> list[DeploymentEffect]:
        row = state.deployments.rows.get(deployment_id)
        if row is None or not row.is_active:
            self._watched.pop(deployment_id, None)
            self._gathered.discard(deployment_id)
            return []
        known = self._watched.get(deployment_id)
        if known is None:
            key = (row.namespace, row.job_id, row.job_create_index, row.job_version)
            known = self._watched[deployment_id] = _Watched(job=state.jobs.version_by_key(key))
        if known.is_ending or known.job is None or not _is_current(state, row):
            known.deadline_ns = None
            return []  # the job was changed, stopped or purged: its evaluation ends the deployment
        return self._judge(state, row, known, known.job, now_ns, new_id)

    def _judge(
        self, state: State, row: DeploymentRow, known: _Watched, job: Job, now_ns: int, new_id: Callable[[], str]
    ) -> list[DeploymentEffect]:
        if row.status == UNBLOCKING:
            known.is_ending = True
            return [MoveOn(row.id, True, evaluation_for(state, row, job, now_ns, new_id))]
        if row.status == BLOCKED and is_let_go(state, row):
            known.is_ending = True
            return [MoveOn(row.id, False)]
        own = own_allocs(state, row)
        known.rest_until_ns = now_ns + REST_NS if len(own.slots) >= LARGE else 0
        bad = self._unhealthy_groups(state, row, job, own, now_ns)
        if bad:
            return [self._end(known, failure_of(state, row, job, bad, UNHEALTHY_ALLOCS, now_ns, new_id))]
        progress = row.progress()
        if row.status == RUNNING and may_promote_itself(state, progress):
            known.is_ending = True
            return [PromoteDeployment(row.id, (), evaluation_for(state, row, job, now_ns, new_id))]
        late = self._late_groups(row, known, own, now_ns)
        if late:
            return [self._end(known, failure_of(state, row, job, late, DEADLINE, now_ns, new_id))]
        self._note_health(state, row, known, own, now_ns)
        return []

    def _end(self, known: _Watched, effect: FailDeployment) -> FailDeployment:
        known.is_ending = True
        known.gather_due_ns = None
        known.wants_evaluation = False
        return effect

    def _unhealthy_groups(self, state: State, row: DeploymentRow, job: Job, own: Own, now_ns: int) -> list[str]:
        """The groups in which an allocation is unhealthy that nothing may take the place of."""
        progress = row.progress()
        found = set()
        for at in np.flatnonzero(_unhealthy_and_unanswered(own.rows)).tolist():
            name = own.group_at(at)
            if name in found or name not in progress:
                continue
            group = job.group(name)
            policy = group.reschedule_policy if group is not None else None
            tracker = None
            if policy is not None and not policy.unlimited and policy.attempts:
                tracker = state.allocations.records(own.slots[at : at + 1])[0].reschedule_tracker
            if not progress[name].progress_deadline_ns or not may_reschedule(policy, tracker, now_ns):
                found.add(name)
        return sorted(found)

    def _late_groups(self, row: DeploymentRow, known: _Watched, own: Own, now_ns: int) -> list[str]:
        """The groups whose deadline has passed without enough to show for it; sets the next deadline."""
        progress = row.progress()
        if row.status == PAUSED:
            known.deadline_ns = None
            return []
        due_ns = progress_due_ns(progress, own.healthy())
        late = [name for name, due in sorted(due_ns.items()) if due <= now_ns and not is_group_fine(progress[name])]
        known.deadline_ns = min((due for due in due_ns.values() if due > now_ns), default=None)
        return late

    def _note_health(self, state: State, row: DeploymentRow, known: _Watched, own: Own, now_ns: int) -> None:
        """Newly healthy allocations, and unhealthy ones that may be replaced, want an evaluation."""
        healthy = own.slots[own.rows["health"] == HEALTHY]
        new = np.setdiff1d(healthy, known.healthy)
        known.healthy = healthy
        wants = bool(_unhealthy_and_unanswered(own.rows).any())
        if len(new) and not wants:
            seen = latest_evaluation_index(state, row.namespace, row.job_id)
            wants = int(state.allocations.columns.read(new)["modify_index"].max()) > seen
        known.wants_evaluation |= wants
        if known.wants_evaluation and known.gather_due_ns is None and row.id not in self._gathered:
            known.gather_due_ns = now_ns + GATHER_NS

    def _continue(self, state: State, now_ns: int, new_id: Callable[[], str]) -> list[DeploymentEffect]:
        for deployment_id, known in sorted(self._watched.items()):
            if known.gather_due_ns is not None and known.gather_due_ns <= now_ns:
                if self._across_due_ns is None:
                    self._across_due_ns = known.gather_due_ns + ACROSS_NS
                known.gather_due_ns = None
                self._gathered.add(deployment_id)
        if self._across_due_ns is None or now_ns < self._across_due_ns:
            return []
        self._across_due_ns = None
        gathered, self._gathered = sorted(self._gathered), set()
        return [
            effect
            for start in range(0, len(gathered), TOGETHER_MAX)
            for effect in self._batch(state, gathered[start : start + TOGETHER_MAX], now_ns, new_id)
        ]

    def _batch(
        self, state: State, gathered: list[str], now_ns: int, new_id: Callable[[], str]
    ) -> list[DeploymentEffect]:
        ids = b""
        evaluations: list[Evaluation] = []
        for deployment_id in gathered:
            row = state.deployments.rows.get(deployment_id)
            known = self._watched.get(deployment_id)
            if row is None or known is None or known.is_ending or known.job is None or not _is_current(state, row):
                continue
            known.wants_evaluation = False
            rows = own_allocs(state, row).rows
            ids += rows["id"][_unhealthy_and_unanswered(rows)].astype(">u8").tobytes()
            evaluations.append(evaluation_for(state, row, known.job, now_ns, new_id))
        return [Continue(ids, tuple(evaluations))] if evaluations else []


def _unhealthy_and_unanswered(rows: Rows) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Unhealthy allocations that are still wanted and that nobody has allowed to be replaced."""
    answered = (rows["flags"] & np.uint32(Flag.RESCHEDULE)) != 0
    found: np.ndarray[tuple[int], np.dtype[np.bool_]] = (
        (rows["health"] == UNHEALTHY) & (rows["desired"] == RUN) & ~answered
    )
    return found


def _is_current(state: State, row: DeploymentRow) -> bool:
    """Whether the job is still at the version that this deployment brings out."""
    job = state.jobs.row(row.namespace, row.job_id)
    if job is None or job.stop:
        return False
    return (job.create_index, job.version) == (row.job_create_index, row.job_version)
