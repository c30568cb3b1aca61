"""Decides when periodic jobs are launched. Pure: the time is an argument, the state is read and never written.

For every active periodic job there is one next launch time in a heap. When it comes, the following one is worked out
first and then the launch is asked for. The store takes a launch only if it is later than the last one it has noted for
the job, so that a launch time happens once, whatever leaders and clocks do. Launches that could not happen in time
(nobody led, the clock jumped, the process was stopped) are not made up for one by one: the latest of them is launched
and the others are skipped, which is said. A launch that an overlap forbids is skipped for good, and noted as well.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import tzinfo
from typing import Final

from msgspec import structs

from fedsched.model.cron import Cron, earliest_after, latest_until
from fedsched.model.errors import BadRequest, Conflict, NotFound
from fedsched.model.evaluation import Evaluation, EvaluationStatus, Trigger
from fedsched.model.job import Job, JobStatus
from fedsched.model.periodic import is_launched_by_time, schedule_of, zone_of
from fedsched.state.changes import Changes
from fedsched.state.store import State
from fedsched.state.tables.evaluations import evaluation_write
from fedsched.state.tables.job_rows import JobRow
from fedsched.state.tables.jobs import job_register
from fedsched.state.tables.launches import PeriodicLaunch

NS: Final = 1_000_000_000
LAUNCH_SUFFIX: Final = "/periodic-"
JobKey = tuple[str, str]


@dataclass(frozen=True, slots=True)
class LaunchPeriodic:
    """Register this child, for this launch time."""

    namespace: str
    job_id: str
    launch_ns: int
    child: Job
    evaluation: Evaluation


@dataclass(frozen=True, slots=True)
class SkipLaunch:
    """Launch nothing for this time."""

    namespace: str
    job_id: str
    launch_ns: int
    reason: str
    is_noted: bool = True
    """Whether the store has to note it. Not where it only tells of times before one that is launched or noted."""


PeriodicEffect = LaunchPeriodic | SkipLaunch


def command_of(effect: PeriodicEffect) -> PeriodicLaunch | None:
    """The command that carries an effect out; None for one that is only told."""
    match effect:
        case LaunchPeriodic(namespace, job_id, launch_ns, child, evaluation):
            register = job_register(child, evaluation=evaluation_write(evaluation))
            return PeriodicLaunch(namespace=namespace, id=job_id, launch_ns=launch_ns, child=register)
        case SkipLaunch(namespace, job_id, launch_ns, is_noted=True):
            return PeriodicLaunch(namespace=namespace, id=job_id, launch_ns=launch_ns)
        case SkipLaunch():
            return None


@dataclass(slots=True)
class _Tracked:
    """A job that is launched by time, as it was last read."""

    job_modify_index: int
    create_index: int
    crons: tuple[Cron, ...]
    zone: tzinfo
    due_ns: int | None


def child_of(parent: Job, launch_ns: int, *, submit_time_ns: int) -> Job:
    """The job that a launch registers: its parent without the schedule, named after the launch time."""
    child_id = f"{parent.id}{LAUNCH_SUFFIX}{launch_ns // NS}"
    return structs.replace(
        parent,
        id=child_id,
        name=child_id,
        parent_id=parent.id,
        periodic=None,
        stop=False,
        status=JobStatus.PENDING,
        status_description="",
        stable=False,
        version=0,
        version_tag=None,
        submit_time_ns=submit_time_ns,
        create_index=0,
        modify_index=0,
        job_modify_index=0,
    )


def has_running_child(state: State, namespace: str, parent_id: str) -> bool:
    """Whether any child has an evaluation that is not terminal, or an allocation that is not.

    A job with either is pending or running, and how many children are that is counted: a hundred thousand that ended
    need not be looked at.
    """
    counts = state.jobs.child_counts(namespace, parent_id)
    if not counts.pending and not counts.running:
        return False
    for row in state.jobs.children(namespace, parent_id):
        if next(state.evaluations.rows.by("open", namespace, row.id), None) is not None:
            return True
        if state.allocations.has_live(namespace, row.id, row.create_index):
            return True
    return False


def launch_of(parent: Job, launch_ns: int, now_ns: int, new_id: Callable[[], str]) -> LaunchPeriodic:
    """The launch of a job for one moment."""
    child = child_of(parent, launch_ns, submit_time_ns=now_ns)
    evaluation = Evaluation(
        id=new_id(),
        namespace=child.namespace,
        priority=child.priority,
        type=child.type,
        triggered_by=Trigger.PERIODIC_JOB.value,
        job_id=child.id,
        status=EvaluationStatus.PENDING,
        create_time_ns=now_ns,
        modify_time_ns=now_ns,
    )
    return LaunchPeriodic(parent.namespace, parent.id, launch_ns, child, evaluation)


def forced_launch(state: State, namespace: str, job_id: str, now_ns: int, new_id: Callable[[], str]) -> LaunchPeriodic:
    """A launch that somebody asks for at once, whatever the schedule says; only an overlap forbids it."""
    job = state.jobs.get(namespace, job_id)
    if job is None:
        raise NotFound(f"job {job_id!r} not found", hint="`fedsched job status` lists the jobs")
    if not is_launched_by_time(job):
        raise BadRequest(
            f"job {job_id!r} is not launched by time: it is not periodic, is switched off or has been stopped",
            hint="a stopped job is registered again with `fedsched job run`",
        )
    assert job.periodic is not None
    if job.periodic.prohibit_overlap and has_running_child(state, namespace, job_id):
        raise Conflict(
            f"an earlier launch of job {job_id!r} still runs, and the job prohibits overlap",
            hint="wait for it, or stop it",
        )
    return launch_of(job, now_ns // NS * NS, now_ns, new_id)


class PeriodicCore:
    """The heap of launch times."""

    def __init__(self) -> None:
        self._tracked: dict[JobKey, _Tracked] = {}
        self._heap: list[tuple[int, JobKey]] = []
        self.refused: dict[JobKey, str] = {}
        """Stored jobs whose schedule cannot be read: a broken one must not keep the others from being launched."""

    def begin(self, state: State, now_ns: int, new_id: Callable[[], str]) -> list[PeriodicEffect]:
        """Take up office: track every active job and catch up once on whatever was due since it was last launched."""
        self._tracked, self._heap, self.refused = {}, [], {}
        effects: list[PeriodicEffect] = []
        for row in state.jobs.periodic():
            self._note_job(state, row, now_ns)
            effects += self._catch_up(state, row, now_ns, new_id)
        return effects

    def note(self, state: State, changes: Iterable[Changes], now_ns: int) -> None:
        """Hear of changed jobs."""
        for change in changes:
            if change.is_everything:
                self._note_all(state, now_ns)
                continue
            for key in change.keys("jobs"):
                row = state.jobs.row(*key)
                if row is None or not row.is_template:
                    self._forget((key[0], key[1]))
                else:
                    self._note_job(state, row, now_ns)

    def tracked(self) -> dict[JobKey, int | None]:
        """The next launch of every tracked job; None for one whose schedule has run out."""
        return {key: known.due_ns for key, known in sorted(self._tracked.items())}

    def wake_at_ns(self) -> int | None:
        """When `wake` next has something to say."""
        while self._heap and not self._is_current(*self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def wake(self, state: State, now_ns: int, new_id: Callable[[], str]) -> list[PeriodicEffect]:
        """Launch or skip what is due."""
        effects: list[PeriodicEffect] = []
        while (due_ns := self.wake_at_ns()) is not None and due_ns <= now_ns:
            key = heapq.heappop(self._heap)[1]
            effects += self._launch(state, key, due_ns, now_ns, new_id)
        return effects

    def _launch(
        self, state: State, key: JobKey, due_ns: int, now_ns: int, new_id: Callable[[], str]
    ) -> list[PeriodicEffect]:
        known = self._tracked[key]
        latest = latest_until(known.crons, due_ns, now_ns, known.zone) or due_ns
        self._schedule(key, known, earliest_after(known.crons, max(now_ns, latest), known.zone))
        job = state.jobs.get(*key)
        if job is None or not is_launched_by_time(job):
            return []  # the change that says so is on its way to `note`
        effects: list[PeriodicEffect] = []
        if latest != due_ns:
            effects.append(SkipLaunch(*key, due_ns, "its time passed before anybody could launch it", is_noted=False))
        return [*effects, self._launch_or_skip(state, job, latest, now_ns, new_id)]

    def _launch_or_skip(
        self, state: State, job: Job, launch_ns: int, now_ns: int, new_id: Callable[[], str]
    ) -> PeriodicEffect:
        assert job.periodic is not None
        if job.periodic.prohibit_overlap and has_running_child(state, job.namespace, job.id):
            return SkipLaunch(job.namespace, job.id, launch_ns, "an earlier launch still runs")
        return launch_of(job, launch_ns, now_ns, new_id)

    def _catch_up(self, state: State, row: JobRow, now_ns: int, new_id: Callable[[], str]) -> list[PeriodicEffect]:
        known = self._tracked.get((row.namespace, row.id))
        if known is None:
            return []
        # A schedule holds from when it was registered: what a new line would have named before that was never due.
        since_ns = max(state.jobs.last_launch_ns(row.namespace, row.id), row.submit_time_ns)
        missed = latest_until(known.crons, since_ns, now_ns, known.zone)
        if missed is None:
            return []
        return [self._launch_or_skip(state, state.jobs.of_row(row), missed, now_ns, new_id)]

    def _note_all(self, state: State, now_ns: int) -> None:
        rows = {(row.namespace, row.id): row for row in state.jobs.periodic()}
        for key in sorted(self._tracked.keys() - rows.keys()):
            self._forget(key)
        for row in rows.values():
            self._note_job(state, row, now_ns)

    def _note_job(self, state: State, row: JobRow, now_ns: int) -> None:
        key = (row.namespace, row.id)
        known = self._tracked.get(key)
        if known and (known.job_modify_index, known.create_index) == (row.job_modify_index, row.create_index):
            return  # its status changed, not its schedule; a launch that is due stays due
        self._forget(key)
        job = state.jobs.of_row(row)
        if not is_launched_by_time(job):
            return
        try:
            crons, zone = schedule_of(job), zone_of(job)
        except BadRequest as error:
            self.refused[key] = str(error)
            return
        after_ns = max(now_ns, state.jobs.last_launch_ns(*key))
        self._tracked[key] = tracked = _Tracked(row.job_modify_index, row.create_index, crons, zone, None)
        self._schedule(key, tracked, earliest_after(crons, after_ns, zone))

    def _forget(self, key: JobKey) -> None:
        self._tracked.pop(key, None)
        self.refused.pop(key, None)

    def _schedule(self, key: JobKey, known: _Tracked, due_ns: int | None) -> None:
        known.due_ns = due_ns
        if due_ns is not None:
            heapq.heappush(self._heap, (due_ns, key))

    def _is_current(self, due_ns: int, key: JobKey) -> bool:
        known = self._tracked.get(key)
        return known is not None and known.due_ns == due_ns
