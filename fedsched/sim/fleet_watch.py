"""What must happen in time, looked at again and again while a simulated region lives.

Deadlines begin anew when nobody leads, when a leader has just begun, and when wall clocks jump: `steady_s` of the world
is how long none of that has happened.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo

import trio

from fedsched.sim.verdict import Broken
from fedsched.state.store import State
from fedsched.state.tables.deployments import DeploymentRow
from fedsched.state.tables.evaluations import EvaluationRow
from fedsched.state.tables.nodes import NodeRow

if TYPE_CHECKING:
    from fedsched.sim.fleet_server import FleetServer
    from fedsched.sim.fleet_world import FleetWorld

NS: Final = 1_000_000_000
LOOK_S: Final = 0.25
UNBLOCK_S: Final = 1.0
"""From the commit that gives room to the moment when the evaluation is back with the broker."""
DELAYED_S: Final = 2.0
"""From the time that an evaluation waits for, by whatever wall clocks say, to the moment when it is up."""
PROGRESS_S: Final = 10.0
LAUNCH_S: Final = 6.0
MINUTE_NS: Final = 60 * NS
PER_NODE: Final = ("system", "sysbatch")


class FleetWatch:
    """Looks at the leader several times a second."""

    def __init__(self, world: FleetWorld) -> None:
        self._world = world
        self._fits_since: dict[tuple[str, int], float] = {}
        """By evaluation and how it is stored: since when it could have been placed."""
        self._looked_at = -1

    async def run(self) -> None:
        while True:
            await trio.sleep(LOOK_S)
            leader = self._world.leader
            if leader is None:
                self._fits_since.clear()
                continue
            self._blocked(leader)
            if self._world.steady_s > DELAYED_S:
                self._delayed(leader)
            if self._world.steady_s > LAUNCH_S:
                self._launches(leader)
            if self._world.steady_s > PROGRESS_S:
                self._deployments(leader)

    # ------------------------------------------------------------------

    def _delayed(self, leader: FleetServer) -> None:
        """R-20: no evaluation waits for a time that has come."""
        now_ns = self._world.wall_ns
        for row in leader.store.evaluations.with_status("pending"):
            if row.wait_until_ns + DELAYED_S * NS < now_ns and leader.broker.core.waits(row.id):
                what = f"{row.id} of {row.job_id} still waits, {(now_ns - row.wait_until_ns) / NS:.0f} s past its time"
                raise Broken("R-20 delays end in time", what, leader.name)

    # ------------------------------------------------------------------

    def _blocked(self, leader: FleetServer) -> None:
        """R-24: whoever could be placed now is not left waiting."""
        store, now = leader.store, trio.current_time()
        tracked = leader.broker.blocked
        rows = [row for row in store.evaluations.with_status("blocked") if tracked.knows(row.id)]
        if store.index != self._looked_at or not rows:
            fits = {self._key(row): now for row in rows if self.would_fit(store, row)}
            self._fits_since = {key: self._fits_since.get(key, since) for key, since in fits.items()}
            self._looked_at = store.index
        for row in rows:
            since = self._fits_since.get(self._key(row))
            if since is not None and now - max(since, now - self._world.steady_s) > UNBLOCK_S + LOOK_S:
                what = f"{row.id} of {row.job_id} could be placed since {since:.2f} s"
                raise Broken("R-24 unblocked within a second", what, leader.name)

    def _key(self, row: EvaluationRow) -> tuple[str, int]:
        return (row.id, row.modify_index)

    def would_fit(self, store: State, row: EvaluationRow) -> list[str]:
        """Where it would fit, for one that is blocked for want of room and that nobody else is about to serve."""
        truth = self._world.checks.truth
        job = truth.current(store, row.namespace, row.job_id)
        evaluation = row.evaluation()
        if job is None or job.stop or row.triggered_by == "max-plan-attempts":
            return []
        if any(one.status == "pending" for one in store.evaluations.of_job(row.namespace, row.job_id)):
            return []  # it changed, or is about to be looked at: that will see whatever this one would
        wanted = [job]
        if any(group.update is not None and group.update.canary for group in job.task_groups):
            wanted += store.jobs.versions(row.namespace, row.job_id)  # while canaries wait, an older one is kept up
        found = []
        for node in ready_nodes(store):
            if row.node_id and row.type in PER_NODE and node.id != row.node_id:
                continue
            for name in sorted(evaluation.failed_tg_allocs):
                groups = [(one, one.group(name)) for one in wanted]
                if all(group is not None and truth.could_place(store, one, group, node) for one, group in groups):
                    found.append(f"{name} on {node.name}")
        return found

    # ------------------------------------------------------------------

    def _launches(self, leader: FleetServer) -> None:
        """R-25: a launch time that came and went while all was steady was launched, or skipped with a note."""
        now_ns = self._world.wall_ns
        since_ns = now_ns - round(self._world.steady_s * NS)
        for row in leader.store.jobs.periodic():
            job = self._world.checks.truth.current(leader.store, row.namespace, row.id)
            if job is None or job.periodic is None or not job.periodic.enabled:
                continue
            begin_ns = max(since_ns, row.submit_time_ns) + NS
            due_ns = last_minute(begin_ns, now_ns - round(LAUNCH_S * NS), job.periodic.time_zone)
            last_ns = leader.store.jobs.last_launch_ns(row.namespace, row.id)
            if due_ns and last_ns < due_ns:
                what = f"{row.id} was due at {due_ns // NS}, last launch {last_ns // NS}"
                raise Broken("R-25 launched in time", what, leader.name)

    # ------------------------------------------------------------------

    def _deployments(self, leader: FleetServer) -> None:
        late = overdue(leader.store, self._world.wall_ns)
        if late:
            raise Broken("R-26 failed at its deadline", "; ".join(late), leader.name)


def ready_nodes(state: State) -> list[NodeRow]:
    return [row for row in state.nodes.rows.scan() if row.is_ready]


def last_minute(after_ns: int, until_ns: int, zone: str) -> int:
    """The last full minute in (after, until] that is not the second showing of its local time; 0 if there is none."""
    minute = until_ns // MINUTE_NS * MINUTE_NS
    while minute > after_ns:
        if not datetime.fromtimestamp(minute // NS, UTC).astimezone(ZoneInfo(zone)).fold:
            return minute
        minute -= MINUTE_NS
    return 0


def overdue(state: State, now_ns: int) -> list[str]:
    """R-26: running past the time by which there had to be progress."""
    late = now_ns - round(PROGRESS_S * NS)
    return [
        f"{row.id} of {row.job_id}: {row.status}, {name} had to move by {one.require_progress_by_ns}"
        for row in state.deployments.active()
        if row.status == "running" and not is_about_to_end(state, row)
        for name, one in row.progress().items()
        if 0 < one.require_progress_by_ns < late
        and one.healthy < max(one.desired_total, one.desired_canaries)
        and not (one.desired_canaries and not one.promoted and one.healthy >= one.desired_canaries)
    ]


def is_about_to_end(state: State, row: DeploymentRow) -> bool:
    """Whether it is of a version that is gone, and an evaluation that will say so is on its way."""
    job = state.jobs.row(row.namespace, row.job_id)
    is_over = job is None or job.stop or (job.create_index, job.version) != (row.job_create_index, row.job_version)
    return is_over and any(one.status == "pending" for one in state.evaluations.of_job(row.namespace, row.job_id))
