"""Runs the autopilot core while this server leads: once a second it looks at the set and may propose one change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import trio

from fedsched.model.errors import FedschedError
from fedsched.model.region import MemberStatus, RegionHealth, ServerHealth
from fedsched.raft.autopilot import ALIVE, FAILED, LEFT, UNKNOWN, Autopilot, AutopilotSettings, HealthReport, Member
from fedsched.raft.runner import RaftRunner
from fedsched.server.members import Members
from fedsched.telemetry.log import Logger

REVIEW_S: Final = 1.0


class AutopilotService:
    """Keeps the server set healthy for as long as it is in office."""

    def __init__(
        self,
        raft: RaftRunner,
        members: Members,
        settings: AutopilotSettings,
        log: Logger,
        *,
        gone: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """`gone` gives those that gossip holds for failed or left, by id."""
        self._gone = gone
        self._raft = raft
        self._members = members
        self._settings = settings
        self._log = log
        self._core = Autopilot(settings)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        self._core = Autopilot(self._settings)
        task_status.started()
        while True:
            await trio.sleep(REVIEW_S)
            actions, _ = self._core.review(trio.current_time(), self._raft.core.status(), self._seen())
            for action in actions:
                outcome = "done"
                try:
                    await self._raft.change_config(action.change, action.based_on)
                except FedschedError as refused:
                    outcome = str(refused)
                self._core.record(trio.current_time(), action, outcome)
                self._log.info("autopilot", change=repr(action.change), why=action.reason, outcome=outcome)

    def health(self) -> RegionHealth:
        """The server set at this moment, in the form operators know."""
        _, report = self._core.review(trio.current_time(), self._raft.core.status(), self._seen())
        return _as_record(report, self._raft)

    def _seen(self) -> dict[str, Member]:
        """Whom we have a link to is alive, whatever gossip says. Silence is not death: that is for gossip to say, and
        for operators.

        One address is one server's: where the same name answers with a new id, the former one was wiped and is gone.
        That can be told from the config and the links alone, so a leader knows it who was not there when it happened.
        """
        up = self._raft.transport.links_up()
        servers = self._raft.core.config.servers
        answering = {(server.name, server.address) for server in servers if up.get(server.id)}
        gone = self._gone()
        seen = {}
        for server in servers:
            silent = LEFT if (server.name, server.address) in answering else UNKNOWN
            status = self._members.left.get(server.id) or (ALIVE if up.get(server.id) else gone.get(server.id, silent))
            seen[server.id] = Member(server, status)
        return seen


def _as_record(report: HealthReport, raft: RaftRunner) -> RegionHealth:
    log, builds = raft.core.log, raft.transport.builds
    statuses = {ALIVE: MemberStatus.ALIVE, UNKNOWN: MemberStatus.NONE, FAILED: MemberStatus.FAILED}
    return RegionHealth(
        healthy=report.is_healthy,
        failure_tolerance=report.failure_tolerance,
        leader=report.leader,
        voters=tuple(server.id for server in report.servers if server.is_voter),
        servers=tuple(
            ServerHealth(
                id=server.id,
                name=server.name,
                address=server.address,
                serf_status=statuses.get(server.gossip, MemberStatus.LEFT),
                version=builds.get(server.id, ""),
                leader=server.is_leader,
                last_term=log.term(server.last_index) or 0,
                last_index=server.last_index,
                last_contact_s=server.last_contact_s,
                healthy=server.is_healthy,
                voter=server.is_voter,
            )
            for server in report.servers
        ),
    )
