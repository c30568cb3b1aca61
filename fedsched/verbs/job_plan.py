"""`job plan`: what submitting a job would do, without doing it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fedsched.model.errors import FedschedError
from fedsched.model.record import to_api
from fedsched.rpc.methods.job_extras import JOB_PLAN, JobPlanReply, JobPlanRequest, RegionPlan
from fedsched.verbs.diff_text import diff_lines
from fedsched.verbs.flags import Flag, Given
from fedsched.verbs.job_file import FILE, VAR_FLAGS, read_for_submission
from fedsched.verbs.placement import failure_lines
from fedsched.verbs.terminal import Terminal
from fedsched.verbs.verb import OK, TEMPLATE, VERBOSE, Verbs
from fedsched.verbs.view import columns, moment, short

VERBS = Verbs()

WOULD_CHANGE: Final = 1
CANNOT_TELL: Final = 255
"""A plan's own exit code for errors, so that scripts can tell them from "would change"."""

MATTERS: Final = ("place", "migrate", "stop", "in_place_update", "destructive_update", "canary", "preemptions")


@VERBS.verb(
    "job plan",
    "show what submitting a job would do",
    doc="Asks the scheduler what it would do with a job, and does nothing. Exits 0 if nothing would change, 1 if"
    " allocations would be created or destroyed, 255 if that could not be told. A job with a multiregion block is"
    " planned in all its regions, a block for each; the highest code counts.",
    flags=(
        Flag("diff", "show how the job differs from the one that runs", bool, default=True),
        Flag("json", "the file is JSON; the answer is printed as JSON", bool),
        TEMPLATE,
        *VAR_FLAGS,
        VERBOSE,
    ),
    arguments=(FILE,),
)
def plan(terminal: Terminal, given: Given) -> int:
    try:
        read = read_for_submission(terminal, given)
        request = JobPlanRequest(job=read.job, diff=given["diff"])
        reply = terminal.client.call(JOB_PLAN, request)
    except FedschedError as error:
        terminal.warn(f"Error during plan: {error.message}")
        if error.hint:
            terminal.warn(f"  {error.hint}")
        return CANNOT_TELL
    for warning in (*read.warnings, *reply.warnings):
        terminal.warn(f"Warning: {warning}")
    code = max(_code(one) for one in reply.regions) if reply.regions else _code(reply)
    if terminal.formatted(given, lambda: to_api(reply)):
        return code
    if reply.regions:
        _show_regions(terminal, given, reply.regions)
        return code
    _show(terminal, given, reply)
    terminal.say("To submit the job with version verification run:\n")
    terminal.say(f"fedsched job run -check-index {reply.job_modify_index} {given['file']}\n")
    terminal.say(
        "When running the job with the check-index flag, the job will only be run if it has not\n"
        "changed since this plan: if somebody else was faster, the index differs and nothing is\n"
        "submitted."
    )
    return code


def _show_regions(terminal: Terminal, given: Given, regions: Sequence[RegionPlan]) -> None:
    """A block for each region, also for one that could not tell."""
    for number, one in enumerate(regions):
        terminal.write("\n" if number else "")
        terminal.say(terminal.bold(f'Region: "{one.region}"'))
        for warning in one.warnings:
            terminal.warn(f"Warning: region {one.region}: {warning}")
        if one.error:
            terminal.say(f"Error: {one.error}")
        else:
            _show(terminal, given, one)
    failed = [one.region for one in regions if one.error]
    if failed:
        terminal.warn(f"{len(failed)} of {len(regions)} regions could not plan: {', '.join(failed)}")


def _show(terminal: Terminal, given: Given, reply: JobPlanReply | RegionPlan) -> None:
    if given["diff"] and reply.diff is not None:
        for line in diff_lines(reply.diff, verbose=given["verbose"]):
            terminal.say(line)
        terminal.say()
    terminal.say(terminal.bold("Scheduler dry-run:"))
    if reply.failed_tg_allocs:
        terminal.say("- WARNING: Failed to place all allocations.")
        for line in failure_lines(reply.failed_tg_allocs):
            terminal.say(f"  {line}")
    else:
        terminal.say("- All tasks successfully allocated.")
    if reply.next_periodic_launch_ns:
        terminal.say(f"- If submitted now, next periodic launch would be at {moment(reply.next_periodic_launch_ns)}.")
    evicted = reply.annotations.preempted_allocs if reply.annotations else ()
    if evicted:
        terminal.heading("Preemptions:")
        rows = [(short(one.id, verbose=given["verbose"]), one.job_id, one.task_group) for one in evicted]
        terminal.write(columns(("Alloc ID", "Job ID", "Task Group"), rows))
    terminal.say(f"\nJob Modify Index: {reply.job_modify_index}")


def _code(reply: JobPlanReply | RegionPlan) -> int:
    if isinstance(reply, RegionPlan) and reply.error:
        return CANNOT_TELL
    return WOULD_CHANGE if _changes(reply) else OK


def _changes(reply: JobPlanReply | RegionPlan) -> bool:
    if reply.failed_tg_allocs:
        return True
    wanted = reply.annotations.desired_tg_updates.values() if reply.annotations else ()
    return any(getattr(one, name) for one in wanted for name in MATTERS if name != "in_place_update")
