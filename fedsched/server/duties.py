"""What endpoints ask of a leader's services and of the scheduler, as small promises.

Endpoints come before what stands behind them, and tests put something simple there. What is not there yet refuses with
`Unavailable`, which whoever asks tries again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from fedsched.model.errors import Unavailable
from fedsched.model.job import Job
from fedsched.rpc.methods.job_extras import JobPlanReply
from fedsched.server.leader.client_updates_core import Report
from fedsched.state.store import Store


class Heartbeats(Protocol):
    """Keeps the time of silent nodes."""

    def beat(self, node_id: str) -> float:
        """A node gave a sign of life; within how many seconds the next one is expected."""


class ClientUpdates(Protocol):
    """Gathers what clients report for a moment, so that many reports are one entry of the log."""

    async def report(self, report: Report) -> None:
        """Wait until the report is written."""

    async def report_all(self, reports: list[Report]) -> list[str]:
        """Wait until they are all written, but for those of the nodes it returns."""


DryRun = Callable[[Store, Job, bool], Awaitable[JobPlanReply]]
"""What registering this (admitted) job would do, on the state as it is, with the difference if asked for."""

Collect = Callable[[], Awaitable[object]]
"""Forget at once whatever nobody needs any more."""


@dataclass(slots=True)
class Duties:
    """The services that endpoints lean on."""

    heartbeats: Heartbeats
    client_updates: ClientUpdates
    dry_run: DryRun
    collect: Collect


class NotYet:
    """Stands in for a service that is not running."""

    def __init__(self, what: str) -> None:
        self._what = what

    def beat(self, node_id: str) -> float:
        raise self._error()

    async def report(self, report: Report) -> None:
        raise self._error()

    async def report_all(self, reports: list[Report]) -> list[str]:
        raise self._error()

    async def collect(self) -> None:
        raise self._error()

    async def dry_run(self, store: Store, job: Job, diff: bool) -> JobPlanReply:
        raise self._error()

    def _error(self) -> Unavailable:
        return Unavailable(f"{self._what} is not running on this server", hint="try again in a moment")


def no_duties() -> Duties:
    """Nothing behind the endpoints yet."""
    stand_in = NotYet("this service")
    return Duties(
        heartbeats=stand_in,
        client_updates=stand_in,
        dry_run=stand_in.dry_run,
        collect=stand_in.collect,
    )
