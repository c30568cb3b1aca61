"""Allocations: one group placed on one node each."""

from __future__ import annotations

from typing import Annotated

from fedsched.model.alloc import Allocation, AllocListStub
from fedsched.model.declare import Record
from fedsched.rpc.methods.forms import reads, writes
from fedsched.rpc.methods.paging import ListReply, ListRequest


class AllocListRequest(ListRequest):
    job_id: str = ""
    task_states: Annotated[bool, "Include how each task is doing."] = True
    resources: Annotated[bool, "Include what each was given."] = False


class AllocListReply(ListReply):
    allocs: tuple[AllocListStub, ...] = ()


class AllocRequest(Record):
    alloc_id: str


class AllocGetReply(Record):
    alloc: Allocation


class AllocStopRequest(Record):
    alloc_id: str
    no_shutdown_delay: Annotated[bool, "Do not wait before the signal."] = False
    reschedule: Annotated[bool, "Have a batch allocation run again elsewhere."] = False


class AllocStopReply(Record):
    eval_id: str = ""
    index: int = 0


ALLOC_LIST = reads("Alloc.List", AllocListRequest, AllocListReply, "read-job", "Allocations in short, oldest first.")
ALLOC_GET = reads("Alloc.Get", AllocRequest, AllocGetReply, "read-job", "One allocation, with its job.")
ALLOC_STOP = writes(
    "Alloc.Stop", AllocStopRequest, AllocStopReply, "alloc-lifecycle", "Stop one allocation; another takes its place."
)
