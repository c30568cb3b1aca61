"""`alloc logs`, `job logs`: what tasks wrote, and go on writing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from fedsched.model.alloc import AllocListStub
from fedsched.model.errors import FedschedError
from fedsched.rpc.methods.alloc_access import FileFrame
from fedsched.verbs.alloc_choice import CHOICE, CHOSEN, choose, pick_task
from fedsched.verbs.finding import find_job
from fedsched.verbs.flags import Argument, BadUsage, Flag, Given
from fedsched.verbs.lines import LinePrinter, last_lines
from fedsched.verbs.log_follow import LogReader, LogTarget
from fedsched.verbs.terminal import Terminal
from fedsched.verbs.verb import FAILED, OK, Verbs

VERBS = Verbs()

TAIL_LINES: Final = 10
LINE_BYTES: Final = 160
"""What a line is taken to be long when the last few are asked for; if that was too little, more is fetched."""
TAIL_BYTES_MAX: Final = 64 * 1024 * 1024
REFRESH_S: Final = 3.0
"""How often `job logs -f` looks for allocations that are new."""
NOT_STARTED: Final = frozenset({"pending"})

OUTPUT_FLAGS: Final = (
    Flag("stdout", "show the standard output", bool),
    Flag("stderr", "show the standard error output", bool),
    Flag("f", "go on with what is written from now on", bool),
    Flag("tail", f"only the end: the last {TAIL_LINES} lines unless -n or -c say otherwise", bool),
    Flag("n", "the last so many lines", int, value="lines"),
    Flag("c", "the last so many bytes", int, value="bytes"),
    Flag("task", "the task whose log to show", value="name"),
)


@VERBS.verb(
    "alloc logs",
    "show what a task wrote",
    doc="Shows what a task wrote, from the start, over all its rotated files; with -f it goes on with what is written"
    " from now on, whatever happens to servers and links on the way. Without -stdout or -stderr it is the standard"
    " output, and with -f both.",
    flags=(*OUTPUT_FLAGS, *CHOSEN),
    arguments=(CHOICE, Argument("name", "the task; may be left out if there is only one", optional=True)),
)
def logs(terminal: Terminal, given: Given) -> int:
    _check_amounts(given)
    alloc = choose(terminal, given)
    if given["name"] and given["task"] and given["name"] != given["task"]:
        raise BadUsage(f"both {given['name']!r} and -task {given['task']!r} are given", hint="name one task")
    task = pick_task(alloc, given["task"] or given["name"])
    kinds = _kinds(given)
    targets = [LogTarget(alloc.id, alloc.namespace, task, kind) for kind in kinds]
    for target in targets:
        _begin(terminal, given, target)
    reader = LogReader(terminal.client, follow=given["f"])
    for target in targets:
        reader.add(target)
    for target, frame in reader.frames():
        _tell_missed(terminal, target, frame)
        terminal.write_bytes(frame.data, to_err=target.kind == "stderr" and len(kinds) > 1)
    return OK


@VERBS.verb(
    "job logs",
    "show what all tasks of a job wrote",
    doc="Shows the logs of all allocations of a job, each line behind the allocation and task it is from. With -f it"
    " goes on, and takes in allocations that come later, such as replacements.",
    flags=(*OUTPUT_FLAGS, Flag("group", "only allocations of this group", value="name")),
    arguments=(Argument("job", "id of the job, or the beginning of it"),),
)
def job_logs(terminal: Terminal, given: Given) -> int:
    stub = find_job(terminal, given["job"])
    _check_amounts(given)
    kinds = _kinds(given)
    known: set[str] = set()
    failures: list[str] = []

    def trouble(target: LogTarget, error: FedschedError) -> bool:
        failures.append(target.alloc_id)
        terminal.warn(f"{target.alloc_id[:8]} {target.task}: {error.message}")
        return True

    reader = LogReader(terminal.client, follow=given["f"], on_trouble=trouble)
    printer = LinePrinter(terminal)
    shown = 0
    while True:
        is_first = not known
        for target in _new_targets(terminal, given, stub.namespace, stub.id, kinds, known):
            if is_first:
                _begin(terminal, given, target, printer)
            reader.add(target)
            shown += 1
        next_look = time.monotonic() + REFRESH_S
        until = (lambda at=next_look: at) if given["f"] else None
        for target, frame in reader.frames(until):
            _tell_missed(terminal, target, frame)
            printer.add(target, frame.data)
        if not given["f"]:
            break
        if not len(reader):
            terminal.client.wait(REFRESH_S)
    printer.finish()
    if not shown:
        terminal.say("No allocations have written anything yet")
    return FAILED if shown and len(failures) == shown else OK


def _kinds(given: Given) -> list[str]:
    asked = [kind for kind in ("stdout", "stderr") if given[kind]]
    return asked or (["stdout", "stderr"] if given["f"] else ["stdout"])


def _check_amounts(given: Given) -> None:
    for name in ("n", "c"):
        if given[name] is not None and given[name] < 0:
            raise BadUsage(f"flag -{name} {given[name]} is negative")
    if given["n"] is not None and given["c"] is not None:
        raise BadUsage("-n and -c cannot be given together")


def _begin(terminal: Terminal, given: Given, target: LogTarget, printer: LinePrinter | None = None) -> None:
    """Set where to begin; lines are counted here, so their text is shown at once and the rest follows from there."""
    if given["c"] is not None:
        target.origin, target.offset = "end", given["c"]
        return
    lines = given["n"] if given["n"] is not None else TAIL_LINES if given["tail"] else None
    if lines is None:
        return
    data = _tail(terminal, target, lines)
    if printer is not None:
        printer.add(target, data)
    else:
        terminal.write_bytes(data, to_err=target.kind == "stderr" and given["f"])
    if target.place is None:
        target.origin, target.offset = "end", 0


def _tail(terminal: Terminal, target: LogTarget, lines: int) -> bytes:
    """The last lines of a log as it is now; the target's place is then behind them."""
    asked = max(LINE_BYTES * lines, 1024)
    while True:
        target.origin, target.offset, target.place = "end", asked, None
        reader = LogReader(terminal.client, follow=False)
        reader.add(target)
        data = b"".join(frame.data for _, frame in reader.frames())
        found = last_lines(data, lines)
        if len(found) < len(data) or len(data) < asked or asked >= TAIL_BYTES_MAX:
            return found
        asked *= 4


def _tell_missed(terminal: Terminal, target: LogTarget, frame: FileFrame) -> None:
    if frame.missed_files:
        files = f"{frame.missed_files} log file{'s'[: frame.missed_files > 1]}"
        terminal.warn(f"==> {files} of {target.task} ({target.kind}) were rotated away before they were read")


def _new_targets(
    terminal: Terminal, given: Given, namespace: str, job_id: str, kinds: Sequence[str], known: set[str]
) -> list[LogTarget]:
    from fedsched.rpc.methods.job_extras import JOB_ALLOCS, JobAllocsRequest

    found = terminal.client.call(JOB_ALLOCS, JobAllocsRequest(job_id=job_id), namespace=namespace).allocs
    targets: list[LogTarget] = []
    for one in sorted(found, key=lambda one: one.create_index):
        if one.id in known or not _is_wanted(one, given):
            continue
        known.add(one.id)
        names = sorted(one.task_states)
        wanted = [given["task"]] if given["task"] in names else [] if given["task"] else names
        targets += [LogTarget(one.id, one.namespace, task, kind) for task in wanted for kind in kinds]
    return targets


def _is_wanted(one: AllocListStub, given: Given) -> bool:
    if given["group"] and one.task_group != given["group"]:
        return False
    if one.client_status.value in NOT_STARTED or not one.task_states:
        return False
    return not (given["f"] and one.client_status.is_terminal)
