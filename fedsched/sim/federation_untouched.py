"""R-62 and R-67: tasks go on whatever becomes of servers, in every region of a simulated federation.

Nodes of a federation never fall silent and nobody drains them. So an allocation is stopped only because its job has
changed or it has ended by itself; and while a new version waits for its region's turn, not even because of that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fedsched.model.ids import uuid_text
from fedsched.raft.entry import Entry
from fedsched.sim.fleet_truth import ENDED, Held
from fedsched.sim.verdict import Broken
from fedsched.state.commands import decode_command
from fedsched.state.result import Result
from fedsched.state.store import State
from fedsched.state.tables.node_updates import NodeStatusUpdate
from fedsched.state.tables.plans import PlanApply

if TYPE_CHECKING:
    from fedsched.sim.federation_region import FederationRegion

UNTOUCHED: Final = "R-67 tasks are left alone"
NOT_SILENT: Final = "R-62 nobody is taken for silent"


def check_untouched(region: FederationRegion, state: State, entry: Entry, result: Result) -> None:
    """The first server of a region has applied this."""
    command = decode_command(entry.payload).command
    match command:
        case PlanApply() if result.is_done and command.stopped:
            ids = b"".join(batch.ids for batch in command.stopped)
            stopped = (uuid_text(ids[at : at + 16]) for at in range(0, len(ids), 16))
            for held in region.checks.truth.of_ids(state, stopped):
                region.counts["stopped for a reason"] += 1
                _check_reason(region, state, held)
        case NodeStatusUpdate() if result.is_done:
            down = [one.id for one in command.updates if one.status != "ready"]
            if down and not region.was_frozen:
                raise Broken(NOT_SILENT, f"{down} were heard all the time", region.region)
        case _:
            pass


def _check_reason(region: FederationRegion, state: State, held: Held) -> None:
    namespace, job_id, *version = held.version_key
    row = state.jobs.row(namespace, job_id)
    if held.client in ENDED or row is None or row.stop or region.was_frozen:
        return
    if [row.create_index, row.version] == version:
        raise Broken(UNTOUCHED, f"{held.name} was stopped, and its job has not changed", region.region)
    job = region.checks.truth.current(state, namespace, job_id)
    group = job.group(held.group) if job is not None else None
    is_surplus = group is not None and held.name_index >= group.count
    if not is_surplus and region.federation.steps.waits(region.region, job_id, row.version):
        what = f"{held.name} was stopped for version {row.version}, whose turn has not come"
        raise Broken(UNTOUCHED, what, region.region)
