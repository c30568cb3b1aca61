"""A region's side of rollouts: hears what the owner has decided, does it once, and answers with how things stand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import trio

from fedsched.federation.multiregion import job_for_region
from fedsched.federation.rollout_share import Received, received, report_of
from fedsched.model.errors import BadRequest, Conflict, FedschedError
from fedsched.model.job import Job
from fedsched.model.rollout import Rollout, RolloutCommand, RolloutReport, RolloutStep
from fedsched.rpc.method import Method
from fedsched.rpc.methods.rollout import ROLLOUT_COMMAND
from fedsched.rpc.server_side import CallContext, Handler
from fedsched.server.admission import admitted
from fedsched.server.desk import Desk
from fedsched.server.rollout_deeds import Deeds
from fedsched.server.served_types import BuiltInServed, Served, own_type_lacking
from fedsched.server.waits import Look
from fedsched.state.changes import Changes
from fedsched.state.store import State
from fedsched.state.tables.rollouts import SHARES, ShareRow

HOLD_S: Final = 8.0
"""How long a question for the status waits for news: shorter than the time in which a call has to be answered."""
ATTEMPTS: Final = 5
"""A share changes a handful of times in its life: whoever meets a change so often has met something else."""

_Key = tuple[str, str]


class RolloutPartEndpoint:
    """Answers `Rollout.Command`."""

    def __init__(
        self,
        desk: Desk,
        served: Served | None = None,
        *,
        heard: Callable[[Rollout], None],
        hold_s: float = HOLD_S,
    ) -> None:
        """`heard` is told of every record that comes from an owner."""
        self._desk = desk
        self._served = served or BuiltInServed()
        self._hold_s = hold_s
        self._heard_owner = heard
        self._heard: dict[_Key, trio.Event] = {}
        """Those who wait for a share to change; one event for all who wait for the same."""
        desk.machine.listen(self._hear)

    def handlers(self) -> Mapping[Method[Any, Any], Handler]:
        return {ROLLOUT_COMMAND: self.command}

    def looks(self) -> Mapping[Method[Any, Any], Look]:
        return {}

    async def command(self, request: RolloutCommand, context: CallContext) -> RolloutReport:
        if request.region != self._desk.region:
            raise BadRequest(
                f"a command for region {request.region!r} came to region {self._desk.region!r}",
                hint="do two regions have servers with the same addresses?",
            )
        if not request.adopts:
            self._heard_owner(request.rollout)
        with trio.move_on_after(self._hold_s):
            while self._has_no_news(request):
                await self._wait((request.rollout.namespace, request.rollout.job_id))
        for _ in range(ATTEMPTS):
            try:
                return await self._carry_out(request)
            except Conflict as faster:
                why = faster
        raise why

    def _has_no_news(self, request: RolloutCommand) -> bool:
        """Whether this is a question whose answer would be what the owner has seen already."""
        row = self._share(request)
        is_question = request.step is None and not request.adopts
        return is_question and row is not None and row.rollout_id == request.rollout.id and row.status == request.seen

    async def _carry_out(self, request: RolloutCommand) -> RolloutReport:
        known = self._share(request)
        share = known.share() if known is not None else None
        job, refusal = await self._job_to_prepare(request)
        outcome = received(share, request, refusal=refusal)
        if outcome.share is None or outcome.share == share:
            return outcome.report
        deeds = Deeds(self._state, known, self._desk.proposals.now_ns(), self._desk.env.new_id)
        command = deeds.command(outcome, request, job)
        await self._desk.proposals.propose(command, is_essential=True)
        self._tell(request, outcome)
        if request.adopts:
            return outcome.report
        written = self._share(request)
        return report_of(written.header()) if written is not None else outcome.report

    async def _job_to_prepare(self, request: RolloutCommand) -> tuple[Job | None, str]:
        """This region's version of the job, or why it is refused."""
        rollout = request.rollout
        if request.step is not RolloutStep.PREPARE or rollout.job is None:
            return None, "the owner sent no job" if request.step is RolloutStep.PREPARE else ""
        known = self._state.jobs.row(rollout.namespace, rollout.job_id)
        if known is not None and known.version >= rollout.job_version:
            return None, f"the job is at version {known.version} here already, so {rollout.job_version} is not new"
        try:
            job = admitted(
                self._state,
                job_for_region(rollout.job, self._desk.region),
                namespace=rollout.namespace,
                region=self._desk.region,
                now_ns=self._desk.proposals.now_ns(),
                lacking=await own_type_lacking(self._served, rollout.job.type),
            )
        except FedschedError as refused:
            return None, str(refused)
        return job, ""

    def _tell(self, request: RolloutCommand, outcome: Received) -> None:
        deed = outcome.deed
        if deed is not None:
            self._desk.log.info(
                "rollout_step",
                rollout=request.rollout.id,
                job=request.rollout.job_id,
                step=deed.step.value,
                owner=request.rollout.owner,
            )

    def _share(self, request: RolloutCommand) -> ShareRow | None:
        return self._state.rollouts.share_row(request.rollout.namespace, request.rollout.job_id)

    @property
    def _state(self) -> State:
        return self._desk.machine.store

    async def _wait(self, key: _Key) -> None:
        await self._heard.setdefault(key, trio.Event()).wait()

    def _hear(self, gathered: Iterable[Changes]) -> None:
        if not self._heard:
            return
        for changes in gathered:
            keys = list(self._heard) if changes.is_everything else changes.keys(SHARES)
            for key in keys:
                event = self._heard.pop((str(key[0]), str(key[1])), None)
                if event is not None:
                    event.set()
