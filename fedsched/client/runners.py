"""The runners of one client, one per allocation: started, updated, stopped and removed as servers want it.

Everything that servers say comes in as frames and goes through the desired core; everything that becomes of an
allocation goes out as its newest report. A runner that breaks takes no other with it: its allocation is reported as
failed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Protocol

import trio

from fedsched.client.context import AllocContext, ClientParts
from fedsched.client.desired import DesiredCore, Step, What
from fedsched.client.journal import Journal, Refused
from fedsched.client.journal_records import AllocReport, StoredAlloc
from fedsched.model.alloc import Allocation, ClientStatus
from fedsched.model.errors import BadRequest
from fedsched.model.ids import is_uuid, uuid_text
from fedsched.rpc.methods.node_frames import WatchFrame
from fedsched.rpc.node_watch import FRAME_MAX, WATCH_DTYPE, WatchedAllocations
from fedsched.telemetry.log import Logger
from fedsched.telemetry.metrics import Registry, gauge

if TYPE_CHECKING:
    from fedsched.client.uplink import Uplink

ALLOCATIONS: Final = gauge("client.allocations", "allocations on this host, by state", labels=("state",))
STOPPED_BEFORE: Final = "servers stopped it before it was started here"
STATES: Final = ("pending", "running", "complete", "failed")


class Runner(Protocol):
    """What a client needs of an allocation's runner; `alloc_runner.AllocRunner` is it."""

    @property
    def context(self) -> AllocContext: ...

    async def run(self) -> None:
        """Until all tasks are over and everything after that is done."""

    def update(self, alloc: Allocation) -> None: ...

    def stop(self) -> None: ...

    async def restart(self, task: str = "", *, all_tasks: bool = False) -> None: ...

    async def signal(self, task: str, signal: str) -> None: ...

    def report(self) -> AllocReport: ...

    @property
    def is_terminal(self) -> bool: ...

    async def destroy(self) -> None:
        """Remove what is left of it, on disk and in the journal."""


class MakeRunner(Protocol):
    def __call__(
        self,
        parts: ClientParts,
        alloc: Allocation,
        journal: Journal,
        *,
        stored: StoredAlloc | None,
        on_change: Callable[[str], None],
    ) -> Runner: ...


class Runners:
    """All of them. Call `start` before anything else."""

    def __init__(
        self, make: MakeRunner, journal: Journal, *, node_id: str, node_name: str, log: Logger, metrics: Registry
    ) -> None:
        self._make = make
        self._journal = journal
        self._log = log
        self._gauges = metrics.gauges(ALLOCATIONS)
        self._desired = DesiredCore()
        self._watched = WatchedAllocations(node_id, node_name)
        self._by_id: dict[str, Runner] = {}
        self._done: dict[str, trio.Event] = {}
        """Set when a runner's `run` is over."""
        self._ended_ns: dict[str, int] = {}
        self._acked: dict[str, AllocReport] = {}
        self._counts = Counter(dict.fromkeys(STATES, 0))
        self._last_words: dict[str, AllocReport] = {}
        """Of allocations without a runner: those that could not be constructed, and those stopped before they came."""
        self._broken: dict[str, AllocReport] = {}
        self._finished: dict[str, int] = {}
        self._removing: set[str] = set()
        self._parts: ClientParts
        self._uplink: Uplink
        self._nursery: trio.Nursery
        self._on_over: Callable[[], None]

    async def start(
        self,
        parts: ClientParts,
        uplink: Uplink,
        nursery: trio.Nursery,
        on_over: Callable[[], None],
        remove: Callable[[str], object],
    ) -> None:
        """Take up what an earlier run of this agent had; runners live in `nursery` from here on.

        `on_over` hears when one came or is over, `remove` gets rid of one that servers have forgotten.
        """
        self._parts, self._uplink, self._nursery = parts, uplink, nursery
        self._on_over, self._remove = on_over, remove
        for alloc_id, refused in self._journal.refused.items():
            self._desired.refused(alloc_id, refused.alloc_modify_index)
            if not refused.is_acked:
                self._say_last(alloc_id, _refusal(refused.reason))
        for stored in self._journal.load():
            if not stored.tasks and stored.local.acked is None:
                self._log.info("allocation_never_started", alloc_id=stored.alloc.id)
                await self._journal.forget(stored.alloc.id)
                continue
            if stored.local.acked is not None:
                self._acked[stored.alloc.id] = stored.local.acked
            self._desired.restored(stored.alloc)
            self._begin(stored.alloc, stored)

    # ---- for others -----------------------------------------------------------------------------------------

    def get(self, alloc_id: str) -> Runner | None:
        return self._by_id.get(alloc_id)

    @property
    def all(self) -> Mapping[str, Runner]:
        return self._by_id

    def other(self, alloc_id: str) -> AllocContext | None:
        runner = self._by_id.get(alloc_id)
        return runner.context if runner is not None else None

    def live(self) -> list[str]:
        """Allocations that are not over."""
        return [alloc_id for alloc_id, runner in self._by_id.items() if not runner.is_terminal]

    def finished(self) -> Mapping[str, int]:
        """Those that are over, and whose end servers have acknowledged, with the times of their end."""
        return self._finished

    # ---- what servers say -----------------------------------------------------------------------------------

    def take_frame(self, frame: WatchFrame) -> None:
        """Heed a frame. Never waits."""
        changed = self._watched.take(frame)
        removed = [uuid_text(frame.removed[at : at + 16]) for at in range(0, len(frame.removed), 16)]
        has_more = len(frame.rows) >= FRAME_MAX * WATCH_DTYPE.itemsize
        steps = self._desired.take(frame.index, changed, removed, is_whole=frame.is_whole, has_more=has_more)
        for step in steps:
            self._do(step)
        if self._desired.has_whole:
            self._parts.has_contact.set()

    def _do(self, step: Step) -> None:
        runner = self._by_id.get(step.alloc_id)
        match step.what:
            case What.START:
                assert step.alloc is not None
                self._begin(step.alloc, None)
            case What.UPDATE if runner is not None and step.alloc is not None:
                runner.update(step.alloc)
            case What.STOP if runner is not None and step.alloc is not None:
                runner.update(step.alloc)
                runner.stop()
            case What.DISMISS:
                self._say_last(
                    step.alloc_id, AllocReport(client_status=ClientStatus.COMPLETE, client_description=STOPPED_BEFORE)
                )
            case What.REMOVE:
                self._forget(step.alloc_id)

    def _begin(self, alloc: Allocation, stored: StoredAlloc | None) -> None:
        try:
            runner = self._construct(alloc, stored)
        except Exception as error:
            self._log.warn("allocation_refused", alloc_id=alloc.id, job_id=alloc.job_id, why=str(error))
            self._refuse(alloc, str(error) or type(error).__name__)
            return
        self._by_id[alloc.id] = runner
        self._count(alloc.id, 1)
        self._done[alloc.id] = trio.Event()
        self._nursery.start_soon(self._run, alloc, runner)
        if stored is None:
            self._on_over()
        else:
            self._uplink.changed(alloc.id)

    def _construct(self, alloc: Allocation, stored: StoredAlloc | None) -> Runner:
        if not is_uuid(alloc.id):
            raise BadRequest(f"allocation id {alloc.id[:64]!r} is not a UUID")
        if alloc.job is None or alloc.job.group(alloc.task_group) is None:
            raise BadRequest(f"its job has no group {alloc.task_group!r}")
        return self._make(self._parts, alloc, self._journal, stored=stored, on_change=self._changed)

    async def _run(self, alloc: Allocation, runner: Runner) -> None:
        try:
            await runner.run()
        except Exception as error:
            self._log.exception("allocation_broke", error, alloc_id=alloc.id)
            self._broken[alloc.id] = AllocReport(
                client_status=ClientStatus.FAILED,
                client_description=f"the client could not go on with it: {error}",
                task_states=runner.report().task_states,
            )
        ends = [state.finished_at_ns for state in runner.report().task_states.values()]
        self._ended_ns[alloc.id] = max(ends, default=0) or self._parts.now_ns()
        self._done[alloc.id].set()
        self._changed(alloc.id)
        if alloc.id in self._removing:
            self._remove(alloc.id)
        self._on_over()

    # ---- reports --------------------------------------------------------------------------------------------

    def _changed(self, alloc_id: str) -> None:
        self._uplink.changed(alloc_id)
        self._see_whether_finished(alloc_id)

    def _see_whether_finished(self, alloc_id: str) -> None:
        done = self._done.get(alloc_id)
        if done is None or not done.is_set():
            return
        if self._acked.get(alloc_id) == self.report_of(alloc_id):
            self._finished[alloc_id] = self._ended_ns.get(alloc_id, 0)
        else:
            self._finished.pop(alloc_id, None)

    def report_of(self, alloc_id: str) -> AllocReport | None:
        """What is to be said about an allocation now."""
        said = self._last_words.get(alloc_id) or self._broken.get(alloc_id)
        if said is not None:
            return said
        runner = self._by_id.get(alloc_id)
        return runner.report() if runner is not None else None

    async def save_acked(self, acked: dict[str, AllocReport]) -> None:
        """Servers have acknowledged these: remembered, so that they are not told again after a restart."""
        for alloc_id in acked.keys() & self._by_id.keys():
            self._count(alloc_id, -1)
            self._acked[alloc_id] = acked[alloc_id]
            self._count(alloc_id, 1)
        self._show_counts()
        for alloc_id in acked.keys() & self._last_words.keys():
            del self._last_words[alloc_id]
            refused = self._journal.refused.get(alloc_id)
            if refused is not None:
                said = Refused(alloc_modify_index=refused.alloc_modify_index, reason=refused.reason, is_acked=True)
                await self._journal.put_refused(alloc_id, said)
        for alloc_id in acked:
            self._see_whether_finished(alloc_id)
        await self._journal.put_acked(acked)
        if any(self._done[alloc_id].is_set() for alloc_id in acked if alloc_id in self._done):
            self._on_over()

    def _refuse(self, alloc: Allocation, reason: str) -> None:
        self._desired.refused(alloc.id, alloc.alloc_modify_index)
        refused = Refused(alloc_modify_index=alloc.alloc_modify_index, reason=reason)
        self._nursery.start_soon(self._journal.put_refused, alloc.id, refused)
        self._say_last(alloc.id, _refusal(reason))

    def _say_last(self, alloc_id: str, report: AllocReport) -> None:
        self._last_words[alloc_id] = report
        self._uplink.changed(alloc_id)

    def _count(self, alloc_id: str, number: int) -> None:
        """One more, or one less, in the state that servers know of."""
        report = self._acked.get(alloc_id)
        self._counts[(report.client_status if report else ClientStatus.PENDING).value] += number

    def _show_counts(self) -> None:
        for status, number in self._counts.items():
            self._gauges.labels(status).set(number)

    # ---- the end --------------------------------------------------------------------------------------------

    def _forget(self, alloc_id: str) -> None:
        """Servers know nothing of it any more: it ends if it runs, and then goes."""
        self._uplink.forget(alloc_id)
        self._last_words.pop(alloc_id, None)
        runner = self._by_id.get(alloc_id)
        if runner is None:
            self._nursery.start_soon(self._journal.forget, alloc_id)
            return
        self._removing.add(alloc_id)
        if self._done[alloc_id].is_set():
            self._remove(alloc_id)
        else:
            runner.stop()

    async def destroy(self, alloc_id: str) -> None:
        """Remove one that is over, with all its traces."""
        runner = self._by_id.get(alloc_id)
        if runner is None or not self._done[alloc_id].is_set():
            return
        await runner.destroy()
        if alloc_id in self._by_id:
            self._count(alloc_id, -1)
        self._desired.gone(alloc_id)
        self._uplink.forget(alloc_id)
        for known in (self._by_id, self._done, self._ended_ns, self._acked, self._broken, self._finished):
            known.pop(alloc_id, None)
        self._removing.discard(alloc_id)

    async def end_all(self) -> None:
        """Stop everything and wait until it is over and gone."""
        for runner in list(self._by_id.values()):
            runner.stop()
        for alloc_id, done in list(self._done.items()):
            await done.wait()
            await self.destroy(alloc_id)


def _refusal(reason: str) -> AllocReport:
    return AllocReport(client_status=ClientStatus.FAILED, client_description=f"cannot be run here: {reason}")
