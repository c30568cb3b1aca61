"""`alloc ...`: one group placed on one node each: look at them, stop one."""

from __future__ import annotations

from typing import Any

from fedsched.model.alloc import Allocation
from fedsched.model.alloc_metric import AllocMetric
from fedsched.model.record import to_api
from fedsched.model.task_state import TaskState
from fedsched.model.usage import AllocResourceUsage
from fedsched.rpc.methods.alloc import ALLOC_GET, ALLOC_STOP, AllocRequest, AllocStopRequest
from fedsched.verbs import usage
from fedsched.verbs.amounts import share, size, size_share
from fedsched.verbs.finding import all_allocs, alloc_table, find_alloc, find_job
from fedsched.verbs.flags import Argument, Flag, Given
from fedsched.verbs.job_monitor import monitor
from fedsched.verbs.placement import reasons
from fedsched.verbs.terminal import Terminal
from fedsched.verbs.verb import JSON, OK, TEMPLATE, VERBOSE, Regions, Verbs
from fedsched.verbs.view import columns, moment, pairs, short

VERBS = Verbs()

ALLOC = Argument("alloc", "id of the allocation, or the beginning of it")


@VERBS.verb(
    "alloc list",
    "list allocations",
    flags=(Flag("job", "only of this job", value="id"), VERBOSE, JSON, TEMPLATE),
    regions=Regions.EACH,
)
def list_(terminal: Terminal, given: Given) -> int:
    found = all_allocs(terminal, job_id=given["job"] or "")
    if terminal.formatted(given, lambda: [to_api(one) for one in found]):
        return OK
    terminal.write(alloc_table(terminal, found, verbose=given["verbose"]) if found else "No allocations found\n")
    return OK


@VERBS.verb(
    "alloc status",
    "show one allocation",
    flags=(
        Flag("short", "tasks in one table, and no events", bool),
        Flag("stats", "what each task uses, figure by figure", bool),
        VERBOSE,
        JSON,
        TEMPLATE,
    ),
    arguments=(ALLOC,),
    regions=Regions.EACH,
)
def status(terminal: Terminal, given: Given) -> int:
    stub = find_alloc(terminal, given["alloc"])
    alloc = terminal.client.call(ALLOC_GET, AllocRequest(alloc_id=stub.id), namespace=stub.namespace).alloc
    if terminal.formatted(given, lambda: to_api(alloc)):
        return OK
    verbose = given["verbose"]
    terminal.write(pairs(_head(alloc, verbose=verbose)))
    _show_addresses(terminal, alloc)
    if given["short"]:
        _show_short_tasks(terminal, alloc)
        return OK
    found = usage.alloc_usage(terminal, alloc)
    for name in sorted(_task_names(alloc)):
        _show_task(terminal, alloc, name, found)
        if given["stats"] and found is not None:
            usage.show_task_details(terminal, found, name)
    if alloc.metrics is not None and (verbose or alloc.metrics.coalesced_failures):
        _show_metrics(terminal, alloc.metrics)
    return OK


@VERBS.verb(
    "alloc stop",
    "stop one allocation; another takes its place",
    flags=(
        Flag("detach", "return at once and print the evaluation's id", bool),
        Flag("no-shutdown-delay", "do not wait between leaving the registry and the signal", bool),
        VERBOSE,
        JSON,
    ),
    arguments=(ALLOC,),
)
def stop(terminal: Terminal, given: Given) -> int:
    stub = find_alloc(terminal, given["alloc"])
    request = AllocStopRequest(alloc_id=stub.id, no_shutdown_delay=given["no-shutdown-delay"])
    reply = terminal.client.call(ALLOC_STOP, request, namespace=stub.namespace)
    if terminal.formatted(given, lambda: to_api(reply)):
        return OK
    if given["detach"]:
        terminal.say(reply.eval_id)
        return OK
    return monitor(terminal, reply.eval_id, namespace=stub.namespace, verbose=given["verbose"])


@VERBS.verb(
    "job allocs",
    "list the allocations of a job",
    flags=(Flag("all", "also those of earlier jobs of the same id", bool), VERBOSE, JSON, TEMPLATE),
    arguments=(Argument("job", "id of the job, or the beginning of it"),),
    regions=Regions.EACH,
)
def job_allocs(terminal: Terminal, given: Given) -> int:
    from fedsched.rpc.methods.job_extras import JOB_ALLOCS, JobAllocsRequest

    stub = find_job(terminal, given["job"])
    request = JobAllocsRequest(job_id=stub.id, all=given["all"])
    found = terminal.client.call(JOB_ALLOCS, request, namespace=stub.namespace).allocs
    if terminal.formatted(given, lambda: [to_api(one) for one in found]):
        return OK
    terminal.write(alloc_table(terminal, found, verbose=given["verbose"]) if found else "No allocations placed\n")
    return OK


def _head(alloc: Allocation, *, verbose: bool) -> list[tuple[str, Any]]:
    head: list[tuple[str, Any]] = [
        ("ID", alloc.id),
        ("Eval ID", short(alloc.eval_id, verbose=verbose)),
        ("Name", alloc.name),
        ("Node ID", short(alloc.node_id, verbose=verbose)),
        ("Node Name", alloc.node_name),
        ("Job ID", alloc.job_id),
        ("Job Version", alloc.job.version if alloc.job else None),
        ("Client Status", alloc.client_status.value),
        ("Client Description", alloc.client_description),
        ("Desired Status", alloc.desired_status.value),
        ("Desired Description", alloc.desired_description),
        ("Created", moment(alloc.create_time_ns)),
        ("Modified", moment(alloc.modify_time_ns)),
    ]
    if alloc.deployment_id:
        health = alloc.deployment_status.healthy if alloc.deployment_status else None
        words = {True: "healthy", False: "unhealthy", None: "unset"}[health]
        head += [("Deployment ID", short(alloc.deployment_id, verbose=verbose)), ("Deployment Health", words)]
        if alloc.is_canary:
            head.append(("Canary", True))
    if alloc.reschedule_tracker is not None:
        head.append(("Reschedule Attempts", len(alloc.reschedule_tracker.events)))
    if alloc.next_allocation:
        head.append(("Replacement Alloc ID", short(alloc.next_allocation, verbose=verbose)))
    if alloc.followup_eval_id:
        head.append(("Followup Eval ID", short(alloc.followup_eval_id, verbose=verbose)))
    if alloc.preempted_by_allocation:
        head.append(("Preempted By", short(alloc.preempted_by_allocation, verbose=verbose)))
    return head


def _show_addresses(terminal: Terminal, alloc: Allocation) -> None:
    ports = alloc.allocated_resources.shared.ports if alloc.allocated_resources else ()
    if not ports:
        return
    terminal.heading("Allocation Addresses:")
    rows = [(f"*{one.label}", "yes" if one.to >= 0 else "no", f"{one.host_ip}:{one.value}") for one in ports]
    terminal.write(columns(("Label", "Dynamic", "Address"), rows))


def _task_names(alloc: Allocation) -> set[str]:
    given = alloc.allocated_resources.tasks if alloc.allocated_resources else {}
    return {*alloc.task_states, *given}


def _show_short_tasks(terminal: Terminal, alloc: Allocation) -> None:
    rows = []
    for name in sorted(_task_names(alloc)):
        state = alloc.task_states.get(name, TaskState())
        last = state.events[-1] if state.events else None
        cycle = alloc.allocated_resources.task_lifecycles.get(name) if alloc.allocated_resources else None
        rows.append(
            (
                name,
                state.state.value,
                last.type if last else None,
                moment(last.time_ns) if last else None,
                cycle.hook if cycle else "main",
            )
        )
    terminal.heading("Tasks")
    terminal.write(columns(("Name", "State", "Last Event", "Time", "Lifecycle"), rows))


def _show_task(terminal: Terminal, alloc: Allocation, name: str, found: AllocResourceUsage | None) -> None:
    state = alloc.task_states.get(name, TaskState())
    terminal.heading(f'Task "{name}" is "{state.state.value}"')
    given = alloc.allocated_resources.tasks.get(name) if alloc.allocated_resources else None
    if given is not None and alloc.allocated_resources is not None:
        terminal.say("Task Resources:")
        disk = size(alloc.allocated_resources.shared.disk_mb)
        row = (f"{given.cpu.cpu_shares} MHz", size(given.memory.memory_mb), disk)
        task = found.tasks.get(name) if found is not None else None
        if task is not None:
            used = task.resource_usage
            row = (
                share(round(used.cpu_stats.total_ticks), given.cpu.cpu_shares, "MHz"),
                size_share(max(used.memory_stats.usage, used.memory_stats.rss) / usage.MIB, given.memory.memory_mb),
                disk,
            )
        terminal.write(columns(("CPU", "Memory", "Disk"), [row]))
    terminal.say("\nTask Events:")
    terminal.write(
        pairs(
            [
                ("Started At", moment(state.started_at_ns)),
                ("Finished At", moment(state.finished_at_ns)),
                ("Total Restarts", state.restarts),
                ("Last Restart", moment(state.last_restart_ns)),
            ]
        )
    )
    if state.events:
        terminal.say("\nRecent Events:")
        rows = [(moment(one.time_ns), one.type, one.display_message or one.message) for one in reversed(state.events)]
        terminal.write(columns(("Time", "Type", "Description"), rows))


def _show_metrics(terminal: Terminal, metric: AllocMetric) -> None:
    terminal.heading("Placement Metrics")
    for reason in reasons(metric):
        terminal.say(f"  * {reason}")
    scorers = sorted({scorer for one in metric.score_meta_data for scorer in one.scores})
    if metric.score_meta_data:
        rows = [
            (one.node_id, *(f"{one.scores.get(scorer, 0):.3g}" for scorer in scorers), f"{one.norm_score:.3g}")
            for one in metric.score_meta_data
        ]
        terminal.write(columns(("Node", *scorers, "final score"), rows))
