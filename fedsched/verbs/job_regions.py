"""What `job ...` does with a job of several regions: its rollout, or what came of it in each region."""

from __future__ import annotations

from collections.abc import Sequence

from fedsched.model.errors import FedschedError
from fedsched.model.job import Job
from fedsched.rpc.methods.job import JobWriteReply, RegionWrite
from fedsched.verbs.fan_out import RegionTerminal, in_each
from fedsched.verbs.flags import Given
from fedsched.verbs.job_monitor import monitor
from fedsched.verbs.rollout_follow import follow_rollout
from fedsched.verbs.side_by_side import Part, side_by_side
from fedsched.verbs.terminal import Terminal
from fedsched.verbs.verb import FAILED, NOT_ALL_ANSWERED, OK
from fedsched.verbs.view import columns, short

FOLLOW_S = 600.0
"""How long the evaluations of regions are followed: those of jobs that are done at once."""


def after_registration(terminal: Terminal, given: Given, job: Job, reply: JobWriteReply, namespace: str) -> int:
    """Follow the rollout that a registration began; one without a rollout is done in every region at once."""
    if not reply.rollout_id:
        return after_write(terminal, given, reply.regions, namespace, "registered")
    if given["detach"]:
        terminal.say("Job registration successful")
        terminal.say(f"Rollout ID: {reply.rollout_id}")
        terminal.say(f"Job Version: {reply.job_version}")
        return OK
    listed = [region.name for region in job.multiregion.regions] if job.multiregion is not None else []
    return follow_rollout(terminal, reply.rollout_id, listed, namespace=namespace, verbose=given["verbose"])


def after_write(terminal: Terminal, given: Given, done: Sequence[RegionWrite], namespace: str, words: str) -> int:
    """Say what came of a write in each region and follow its evaluations; 1 if it was done nowhere, 2 if not in all."""
    verbose = given["verbose"]
    rows = [
        (one.region, words if not one.error else "failed", short(one.eval_id, verbose=verbose), one.error)
        for one in done
    ]
    terminal.write(columns(("Region", "Job", "Evaluation", "Error"), rows))
    failed = [one for one in done if one.error]
    code = OK if not failed else FAILED if len(failed) == len(done) else NOT_ALL_ANSWERED
    evaluations = {one.region: one.eval_id for one in done if one.eval_id and not one.error}
    if given["detach"] or not evaluations:
        return code
    terminal.say()

    def follow(one: RegionTerminal) -> tuple[int, Part]:
        try:
            end = monitor(one, evaluations[one.region], namespace=namespace, verbose=verbose)
        except FedschedError as error:
            return FAILED, Part(one.region, one.pieces, error.message)
        return end, Part(one.region, one.pieces)

    found = in_each(terminal, list(evaluations), follow, limit_s=FOLLOW_S)
    ends = [
        (FAILED, Part(region, (), end.message)) if isinstance(end, FedschedError) else end
        for region, end in found.items()
    ]
    terminal.write(side_by_side([part for _, part in ends], terminal.bold))
    codes = [code, *(end for end, _ in ends)]
    return FAILED if FAILED in codes else max(codes)
