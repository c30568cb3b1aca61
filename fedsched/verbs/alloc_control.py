"""`alloc restart`, `signal` and `checks`, and what removes what is over: `alloc gc`, `node gc`, `client gc`."""

from __future__ import annotations

from fedsched.model.record import to_api
from fedsched.rpc.methods.node import NodeRequest
from fedsched.rpc.methods.node_calls import (
    ALLOC_CHECKS,
    ALLOC_GC,
    ALLOC_RESTART,
    ALLOC_SIGNAL,
    NODE_GC,
    AllocChecksRequest,
    AllocGcRequest,
    AllocRestartRequest,
    AllocSignalRequest,
)
from fedsched.verbs.finding import find_alloc, find_node
from fedsched.verbs.flags import Argument, BadUsage, Flag, Given
from fedsched.verbs.terminal import Terminal
from fedsched.verbs.verb import JSON, OK, TEMPLATE, VERBOSE, Regions, Verbs
from fedsched.verbs.view import columns, moment, short

VERBS = Verbs()

ALLOC = Argument("alloc", "id of the allocation, or the beginning of it")
TASK = Argument("name", "the task; all that run if left out", optional=True)
TASK_FLAG = Flag("task", "the task; all that run if left out", value="name")
NODE = Argument("node", "id of the node, or the beginning of it")


@VERBS.verb(
    "alloc restart",
    "restart the tasks of an allocation where they are",
    flags=(TASK_FLAG, Flag("all-tasks", "also those that are over: the whole allocation runs anew", bool), VERBOSE),
    arguments=(ALLOC, TASK),
)
def restart(terminal: Terminal, given: Given) -> int:
    task = _task(given)
    if task and given["all-tasks"]:
        raise BadUsage("a task and -all-tasks cannot be given together")
    stub = find_alloc(terminal, given["alloc"])
    request = AllocRestartRequest(alloc_id=stub.id, task=task, all_tasks=given["all-tasks"])
    terminal.client.call(ALLOC_RESTART, request, namespace=stub.namespace)
    what = f"task {task!r}" if task else "all tasks" if given["all-tasks"] else "running tasks"
    terminal.say(f"Restarted {what} of allocation {short(stub.id, verbose=given['verbose'])}")
    return OK


@VERBS.verb(
    "alloc signal",
    "send a signal to the tasks of an allocation",
    flags=(
        Flag("s", "the signal, such as SIGHUP or hup", default="SIGINT", value="signal"),
        TASK_FLAG,
        VERBOSE,
    ),
    arguments=(ALLOC, TASK),
)
def signal(terminal: Terminal, given: Given) -> int:
    task = _task(given)
    stub = find_alloc(terminal, given["alloc"])
    request = AllocSignalRequest(alloc_id=stub.id, task=task, signal=given["s"])
    terminal.client.call(ALLOC_SIGNAL, request, namespace=stub.namespace)
    whom = f"task {task!r}" if task else "running tasks"
    terminal.say(f"Sent {given['s']} to {whom} of allocation {short(stub.id, verbose=given['verbose'])}")
    return OK


@VERBS.verb(
    "alloc checks",
    "show how the service checks of an allocation went",
    flags=(VERBOSE, JSON, TEMPLATE),
    arguments=(ALLOC,),
    regions=Regions.EACH,
)
def checks(terminal: Terminal, given: Given) -> int:
    stub = find_alloc(terminal, given["alloc"])
    found = terminal.client.call(ALLOC_CHECKS, AllocChecksRequest(alloc_id=stub.id), namespace=stub.namespace).checks
    if terminal.formatted(given, lambda: {check_id: to_api(one) for check_id, one in found.items()}):
        return OK
    if not found:
        terminal.say("No checks found")
        return OK
    ordered = sorted(found.values(), key=lambda one: (one.service, one.task, one.check))
    head = ["Service", "Task", "Name", "Mode", "Status"]
    rows = [[one.service, one.task or "(group)", one.check, str(one.mode), str(one.status)] for one in ordered]
    if given["verbose"]:
        head += ["Code", "Time", "Output"]
        for row, one in zip(rows, ordered, strict=True):
            row += [str(one.status_code), moment(one.timestamp_ns), one.output.strip()]
    terminal.write(columns(head, rows))
    return OK


@VERBS.verb(
    "alloc gc",
    "remove one finished allocation from its node",
    doc="Removes what a finished allocation left on its node: its directory with logs and data. Refuses one that runs.",
    arguments=(ALLOC,),
)
def gc_alloc(terminal: Terminal, given: Given) -> int:
    stub = find_alloc(terminal, given["alloc"])
    terminal.client.call(ALLOC_GC, AllocGcRequest(alloc_id=stub.id), namespace=stub.namespace)
    terminal.say(f"Removed allocation {short(stub.id)} from node {short(stub.node_id)}")
    return OK


@VERBS.verb("node gc", "remove all finished allocations from a node", arguments=(NODE,))
@VERBS.verb("client gc", "remove all finished allocations from a node", arguments=(NODE,))
def gc_node(terminal: Terminal, given: Given) -> int:
    stub = find_node(terminal, given["node"])
    collected = terminal.client.call(NODE_GC, NodeRequest(node_id=stub.id)).collected
    terminal.say(f"Removed {collected} finished allocation{'' if collected == 1 else 's'} from node {short(stub.id)}")
    return OK


def _task(given: Given) -> str:
    if given["task"] and given["name"] and given["task"] != given["name"]:
        raise BadUsage(f"both {given['name']!r} and -task {given['task']!r} are given", hint="name one task")
    return given["task"] or given["name"] or ""
