"""Rollouts as people see and decide them: asked in any listed region, decided in the one that drives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar

import trio
from msgspec import structs

from fedsched.federation.rollout_core import FailAsked, UnblockAsked
from fedsched.federation.rollout_rules import failed, unblocked
from fedsched.model.declare import Record
from fedsched.model.errors import BadRequest, Conflict, FedschedError, NotFound, Unavailable
from fedsched.model.rollout import Rollout, RolloutStanding, RolloutStatus
from fedsched.rpc.method import Method
from fedsched.rpc.methods import rollout as methods
from fedsched.rpc.server_side import CallContext, Handler
from fedsched.server.desk import Desk
from fedsched.server.leader.rollouts import Asked, RolloutsService
from fedsched.server.multiregion_jobs import WRITE_S, MultiregionJobs
from fedsched.server.paging import of_few, page_of
from fedsched.server.region_calls import LOOK_S, RegionCalls
from fedsched.server.waits import Look, Looked
from fedsched.state.store import State
from fedsched.state.tables.rollouts import ROLLOUTS, SHARES, RolloutRow, ShareRow
from fedsched.state.waits import whole_table

ADOPT_S: Final = 9.0
"""Shorter than a call may take: gathering what regions know has its five seconds, and goes on without us."""
BY_HAND: Final = "failed by hand"

Q = TypeVar("Q", bound=Record)


class RolloutEndpoint:
    """Answers `Rollout.*`, but for what the owner says to regions."""

    def __init__(self, desk: Desk, service: RolloutsService, jobs: MultiregionJobs, calls: RegionCalls) -> None:
        self._desk = desk
        self._service = service
        self._jobs = jobs
        self._calls = calls

    def handlers(self) -> Mapping[Method[Any, Any], Handler]:
        return {
            methods.ROLLOUT_BEGIN: self._jobs.begin,
            methods.ROLLOUT_LIST: self.list,
            methods.ROLLOUT_GET: self.get,
            methods.ROLLOUT_UNBLOCK: self.unblock,
            methods.ROLLOUT_FAIL: self.fail,
            methods.ROLLOUT_ADOPT: self.adopt,
            methods.ROLLOUT_STATUS: self.status,
        }

    def looks(self) -> Mapping[Method[Any, Any], Look]:
        return {methods.ROLLOUT_LIST: self._look, methods.ROLLOUT_GET: self._look}

    async def list(self, request: methods.RolloutListRequest, context: CallContext) -> methods.RolloutListReply:
        namespace = context.meta.namespace or "default"
        views = (
            view
            for view in self._views()
            if namespace in ("*", view.rollout.namespace)
            and request.job_id in ("", view.rollout.job_id)
            and not (request.active and view.rollout.status.is_over)
        )
        page, next_token = page_of(of_few(views, id_of=_id_of), request, id_of=_id_of)
        return methods.RolloutListReply(rollouts=tuple(page), next_token=next_token)

    async def get(self, request: methods.RolloutGetRequest, context: CallContext) -> methods.RolloutView:
        if request.rollout_id:
            return self._named(request.rollout_id)
        if not request.job_id:
            raise BadRequest("no rollout is named", hint="give its id, or the job whose newest one is meant")
        return self._newest(context.meta.namespace or "default", request.job_id)

    async def unblock(self, request: methods.RolloutUnblockRequest, context: CallContext) -> methods.RolloutWriteReply:
        rollout = self._named(request.rollout_id).rollout
        if rollout.owner != self._desk.region:
            named = structs.replace(request, rollout_id=rollout.id)
            return await self._pass_on(rollout, methods.ROLLOUT_UNBLOCK, named, context)
        _check_regions(rollout, request.regions)
        if unblocked(rollout, request.regions, 0) == rollout:
            raise BadRequest(
                f"no region of rollout {rollout.id!r} waits to be unblocked: {_standing(rollout)}",
                hint="only a region that is blocked can be unblocked, while the rollout is not over",
            )
        return await self._decide(rollout, UnblockAsked(request.regions))

    async def fail(self, request: methods.RolloutFailRequest, context: CallContext) -> methods.RolloutWriteReply:
        rollout = self._named(request.rollout_id).rollout
        if rollout.owner != self._desk.region:
            named = structs.replace(request, rollout_id=rollout.id)
            return await self._pass_on(rollout, methods.ROLLOUT_FAIL, named, context)
        _check_regions(rollout, request.regions)
        reason = request.reason or BY_HAND
        if failed(rollout, request.regions, 0, reverts=request.reverts, reason=reason) == rollout:
            raise BadRequest(
                f"nothing of rollout {rollout.id!r} can be failed any more: {_standing(rollout)}",
                hint="go back with `fedsched job revert` in each region",
            )
        return await self._decide(rollout, FailAsked(request.regions, reverts=request.reverts, reason=reason))

    async def adopt(self, request: methods.RolloutAdoptRequest, context: CallContext) -> methods.RolloutWriteReply:
        share = self._share_to_adopt(request.rollout_id)
        rollout = share.header().rollout
        if rollout.owner == self._desk.region and share.owner in ("", self._desk.region):
            raise BadRequest(f"region {rollout.owner!r} drives rollout {rollout.id!r} already", hint="nothing to adopt")
        epoch, owner = share.header().ballot
        if not request.force:
            await self._check_lost(rollout.id, owner, context)
        with trio.move_on_after(ADOPT_S):
            record = await self._service.adopt(share.share().rollout, epoch + 1)
            return methods.RolloutWriteReply(rollout=structs.replace(record, job=None), index=self._state.index)
        raise Unavailable(
            f"not enough regions have agreed to the adoption of rollout {rollout.id!r} yet",
            hint="it goes on by itself; `fedsched operator rollout status` shows when this region drives",
        )

    async def status(self, request: methods.RolloutStatusRequest, context: CallContext) -> RolloutStanding:
        """What we say to a region that has not heard the owner."""
        row, share = self._state.rollouts.row(request.rollout_id), self._state.rollouts.share_of(request.rollout_id)
        agreed = share.header().ballot if share is not None else (0, "")
        driven = row.ballot if row is not None and row.header().status is not RolloutStatus.ADOPTED else (0, "")
        epoch, owner = max(agreed, driven)
        return RolloutStanding(
            region=self._desk.region,
            rollout_id=request.rollout_id,
            is_known=row is not None or share is not None,
            drives=owner == self._desk.region and (driven == (epoch, owner) or _adopts(row, share)),
            epoch=epoch,
            owner=owner,
            heard_ago_s=self._service.heard_ago_s(request.rollout_id),
        )

    async def _check_lost(self, rollout_id: str, owner: str, context: CallContext) -> None:
        """Refuse to adopt from an owner that answers: for a while both would decide, each for what it reaches."""
        try:
            view = await self._calls.ask(
                owner,
                methods.ROLLOUT_GET,
                methods.RolloutGetRequest(rollout_id=rollout_id),
                within_s=LOOK_S,
                token=context.meta.token,
            )
        except FedschedError as error:
            self._desk.log.info("owner_not_heard", rollout=rollout_id, owner=owner, why=str(error))
            return
        if view.is_owner:
            raise Conflict(
                f"region {owner!r} answers and drives rollout {rollout_id!r} itself: it is {view.rollout.status}",
                hint=f"decide there what is to become of it; force the adoption only if {owner} will not come back",
            )

    def _share_to_adopt(self, rollout_id: str) -> ShareRow:
        share = self._state.rollouts.share_of(self._named(rollout_id).rollout.id)
        if share is None:
            raise NotFound(
                f"region {self._desk.region!r} has no part in rollout {rollout_id!r}",
                hint="adopt it in one of the regions that it lists",
            )
        if share.header().rollout.status is RolloutStatus.SUCCESSFUL:
            raise BadRequest(f"rollout {rollout_id!r} is over: it was successful", hint="there is nothing to adopt")
        return share

    async def _decide(self, rollout: Rollout, asked: Asked) -> methods.RolloutWriteReply:
        record = await self._service.ask(rollout.id, asked)
        return methods.RolloutWriteReply(rollout=structs.replace(record, job=None), index=self._state.index)

    async def _pass_on(
        self, rollout: Rollout, method: Method[Q, methods.RolloutWriteReply], request: Q, context: CallContext
    ) -> methods.RolloutWriteReply:
        meta = context.meta
        return await self._calls.ask(
            rollout.owner,
            method,
            request,
            within_s=WRITE_S,
            namespace=meta.namespace,
            token=meta.token,
            request_id=meta.request_id,
        )

    # -------------------------------------------------------------- what is known here

    def _named(self, rollout_id: str) -> methods.RolloutView:
        rollouts = self._state.rollouts
        row, share = rollouts.row(rollout_id), rollouts.share_of(rollout_id)
        if row is not None or share is not None:
            return self._view(row, share)
        found = [view for view in self._views() if view.rollout.id.startswith(rollout_id)] if rollout_id else []
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(view.rollout.id for view in found[:5])
            raise BadRequest(f"{len(found)} rollouts begin with {rollout_id!r}: {names}", hint="give more of the id")
        raise NotFound(
            f"rollout {rollout_id!r} is not known in region {self._desk.region!r}",
            hint="`fedsched operator rollout list` shows those that this region takes part in",
        )

    def _newest(self, namespace: str, job_id: str) -> methods.RolloutView:
        row = self._state.rollouts.newest(namespace, job_id)
        share = self._state.rollouts.share_row(namespace, job_id)
        if row is None and share is None:
            raise NotFound(
                f"no rollout of job {job_id!r} in namespace {namespace!r} is known in region {self._desk.region!r}",
                hint="only jobs with a multiregion block have any",
            )
        if row is not None and share is not None and row.id != share.rollout_id:
            return self._view(row, None) if row.job_version > share.job_version else self._view(None, share)
        return self._view(row, share)

    def _views(self) -> Iterator[methods.RolloutView]:
        """Everything known here, each rollout once."""
        rollouts = self._state.rollouts
        for row in rollouts.rows.scan():
            yield self._view(row, rollouts.share_of(row.id))
        for share in rollouts.share_rows.scan():
            if rollouts.row(share.rollout_id) is None:
                yield self._view(None, share)

    def _view(self, row: RolloutRow | None, share: ShareRow | None) -> methods.RolloutView:
        part = share.header() if share is not None else None
        mine = row.header() if row is not None else None
        if mine is not None and part is not None and part.rollout.ballot > mine.ballot:
            mine = None  # ours is history: another region has adopted it
        rollout = mine or (part.rollout if part is not None else None)
        assert rollout is not None, "asked for something that is known"
        shown = structs.replace(part, rollout=Rollout(id=rollout.id)) if part is not None else None
        is_owner = mine is not None and mine.owner == self._desk.region and mine.status is not RolloutStatus.ADOPTED
        return methods.RolloutView(rollout=rollout, is_owner=is_owner, share=shown)

    def _look(self, request: Any, context: CallContext) -> Looked:
        index = max(self._state.table_index(ROLLOUTS), self._state.table_index(SHARES))
        return Looked(index, (whole_table(ROLLOUTS), whole_table(SHARES)))

    @property
    def _state(self) -> State:
        return self._desk.machine.store


def _adopts(row: RolloutRow | None, share: ShareRow | None) -> bool:
    """Whether the region has promised to drive and has not got so far yet."""
    return (
        share is not None and share.owner == share.region and (row is None or row.ballot < (share.epoch, share.owner))
    )


def _id_of(view: methods.RolloutView) -> str:
    return view.rollout.id


def _check_regions(rollout: Rollout, names: tuple[str, ...]) -> None:
    for name in names:
        if rollout.region(name) is None:
            listed = ", ".join(one.name for one in rollout.regions)
            raise BadRequest(f"rollout {rollout.id!r} has no region {name!r}", hint=f"it lists {listed}")


def _standing(rollout: Rollout) -> str:
    regions = ", ".join(f"{one.name} is {one.status.value}" for one in rollout.regions)
    return f"it is {rollout.status.value}, {regions}"
