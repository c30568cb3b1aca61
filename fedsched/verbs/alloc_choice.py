"""Which allocation a verb is about: the one that is named, or one of a job."""

from __future__ import annotations

from typing import Final

from fedsched.model.alloc import Allocation, AllocListStub
from fedsched.model.errors import NotFound
from fedsched.rpc.methods.alloc import ALLOC_GET, AllocRequest
from fedsched.verbs.finding import all_allocs, find_alloc, find_job
from fedsched.verbs.flags import Argument, BadUsage, Flag, Given
from fedsched.verbs.terminal import Terminal

CHOICE: Final = Argument("alloc", "id of the allocation, or the beginning of it; left out with -job", unless="job")
CHOSEN: Final = (
    Flag("job", "any allocation of this job, a running one if there is one", value="id"),
    Flag("group", "with -job: of this group", value="name"),
)


def choose(terminal: Terminal, given: Given) -> Allocation:
    """Find it: by `-job`, or by the beginning of its id."""
    if given["job"]:
        stub = _of_job(terminal, given["job"], given["group"] or "")
    else:
        stub = find_alloc(terminal, given["alloc"])
    return terminal.client.call(ALLOC_GET, AllocRequest(alloc_id=stub.id), namespace=stub.namespace).alloc


def pick_task(alloc: Allocation, asked: str | None) -> str:
    """The task that is meant; without a name, the only one there is."""
    names = task_names(alloc)
    if asked:
        if asked not in names:
            raise BadUsage(f"Could not find task named: {asked}", hint=f"there are {', '.join(names)}")
        return asked
    if len(names) != 1:
        listed = "\n".join(f"  * {name}" for name in names)
        raise BadUsage(f"Allocation {alloc.id[:8]!r} has several tasks:\n{listed}", hint="add -task <name>")
    return names[0]


def task_names(alloc: Allocation) -> list[str]:
    """The tasks of its group, in the order of the job."""
    group = alloc.job.group(alloc.task_group) if alloc.job is not None else None
    return [task.name for task in group.tasks] if group is not None else sorted(alloc.task_states)


def _of_job(terminal: Terminal, typed: str, group: str) -> AllocListStub:
    job = find_job(terminal, typed)
    found = [one for one in all_allocs(terminal, job_id=job.id) if group in ("", one.task_group)]
    if not found:
        where = f" and group {group!r}" if group else ""
        raise NotFound(f"No allocations for job {job.id!r}{where}", hint="`fedsched job status` says why")
    return max(found, key=lambda one: (one.client_status.value == "running", one.create_index))
