"""Allocations as lists show them; their job's type and version come from where they came from."""

from __future__ import annotations

from msgspec import structs

from fedsched.model.alloc import Allocation, AllocListStub
from fedsched.state.columns import Slots
from fedsched.state.store import State


def alloc_stubs(
    state: State, slots: Slots, *, resources: bool = False, task_states: bool = True
) -> tuple[AllocListStub, ...]:
    """The allocations in these slots in short, in the order of the slots."""
    found = []
    types: dict[tuple[str, str], str] = {}
    for slot, record in zip(slots.tolist(), state.allocations.records(slots), strict=True):
        origin = state.allocations.origin_of(slot)
        if origin.job_key not in types:
            row = state.jobs.row(*origin.job_key)
            types[origin.job_key] = row.type if row else ""
        stub = record.stub(resources=resources, task_states=task_states)
        found.append(structs.replace(stub, job_type=types[origin.job_key], job_version=origin.job_version))
    return tuple(found)


def whole_allocation(state: State, alloc_id: str) -> Allocation | None:
    """One allocation with the version of its job that it runs."""
    slot = state.allocations.slot_of(alloc_id)
    record = state.allocations.get(alloc_id) if slot >= 0 else None
    if record is None:
        return None
    return structs.replace(record, job=state.jobs.version_by_key(state.allocations.origin_of(slot).version_key))
