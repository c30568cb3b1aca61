"""`operator rollout ...`: how jobs of several regions come along, and who drives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedsched.model.errors import Conflict
from fedsched.model.record import to_api
from fedsched.model.rollout import Rollout
from fedsched.rpc.methods.rollout import (
    ROLLOUT_ADOPT,
    ROLLOUT_GET,
    ROLLOUT_LIST,
    RolloutAdoptRequest,
    RolloutGetRequest,
    RolloutListRequest,
    RolloutView,
)
from fedsched.verbs.finding import ANY_NAMESPACE
from fedsched.verbs.flags import Argument, BadUsage, Flag, Given
from fedsched.verbs.lookup import PAGE, check_prefix
from fedsched.verbs.rollout_view import region_table, show_rollout
from fedsched.verbs.terminal import Terminal
from fedsched.verbs.verb import FAILED, JSON, OK, TEMPLATE, VERBOSE, Regions, Verbs
from fedsched.verbs.view import columns, short

VERBS = Verbs()

ROLLOUT = Argument("rollout", "id of the rollout, or the beginning of it")
HEAD = ("ID", "Job ID", "Version", "Driven By", "Status", "Regions")


@VERBS.verb(
    "operator rollout list",
    "list rollouts of multi-region jobs",
    doc="Lists the rollouts that a region takes part in: one for each submission of a job with a multiregion block.",
    flags=(
        Flag("job", "only of this job", value="id"),
        Flag("active", "only those that are not over", bool),
        VERBOSE,
        JSON,
        TEMPLATE,
    ),
    regions=Regions.EACH,
)
def list_(terminal: Terminal, given: Given) -> int:
    found = _all(terminal, given["job"] or "", is_active=given["active"])
    if terminal.formatted(given, lambda: [to_api(one) for one in found]):
        return OK
    if not found:
        terminal.say("No rollouts found")
        return OK
    rows = [_row(one.rollout, verbose=given["verbose"]) for one in found]
    head = list(HEAD)
    if terminal.target.namespace == ANY_NAMESPACE:
        head.insert(2, "Namespace")
        for row, one in zip(rows, found, strict=True):
            row.insert(2, one.rollout.namespace)
    terminal.write(columns(head, rows))
    return OK


@VERBS.verb(
    "operator rollout status",
    "show one rollout, with a line for each region",
    flags=(
        Flag("job", "the newest rollout of this job, instead of naming one", value="id"),
        Flag("monitor", "follow it until it has ended", bool),
        VERBOSE,
        JSON,
        TEMPLATE,
    ),
    arguments=(Argument("rollout", ROLLOUT.doc, optional=True, unless="job"),),
    regions=Regions.EACH,
)
def status(terminal: Terminal, given: Given) -> int:
    if not given["rollout"] and not given["job"]:
        raise BadUsage("which rollout is meant?", hint="name one, or give -job; `operator rollout list` shows all")
    if given["rollout"]:
        check_prefix(given["rollout"])
    request = RolloutGetRequest(rollout_id=given["rollout"] or "", job_id=given["job"] or "")
    view = terminal.client.call(ROLLOUT_GET, request)
    if given["monitor"]:
        from fedsched.verbs.rollout_follow import follow_rollout

        rollout = view.rollout
        names = [one.name for one in rollout.regions]
        return follow_rollout(terminal, rollout.id, names, namespace=rollout.namespace, verbose=given["verbose"])
    if terminal.formatted(given, lambda: to_api(view)):
        return OK
    show_rollout(terminal, view, verbose=given["verbose"])
    return OK


@VERBS.verb(
    "operator rollout adopt",
    "have another region drive a rollout whose own is lost",
    doc="Has the region that is asked (-region, or the agent's own) drive a rollout from now on. For when the region"
    " that drives it is lost: should it return, it sees that it drives it no more. More than half of the job's regions"
    " have to agree. With -force it is done although the driving region answers and, with two, without its word.",
    flags=(
        Flag("force", "although the driving region answers, or nobody else can agree", bool),
        Flag("yes", "do not ask", bool),
        VERBOSE,
        JSON,
    ),
    arguments=(ROLLOUT,),
)
def adopt(terminal: Terminal, given: Given) -> int:
    check_prefix(given["rollout"])
    rollout = terminal.client.call(ROLLOUT_GET, RolloutGetRequest(rollout_id=given["rollout"])).rollout
    if rollout.status.is_over:
        raise Conflict(
            f'rollout "{short(rollout.id)}" is {rollout.status.value}: there is nothing left to drive',
            hint="`fedsched operator rollout list -active` lists those that are not over",
        )
    if not given["yes"] and not terminal.confirm(_question(terminal, rollout)):
        terminal.say("Cancelled")
        return FAILED
    request = RolloutAdoptRequest(rollout_id=rollout.id, force=given["force"])
    reply = terminal.client.call(ROLLOUT_ADOPT, request, namespace=rollout.namespace)
    if terminal.formatted(given, lambda: to_api(reply)):
        return OK
    now = reply.rollout or rollout
    terminal.say(f'Rollout "{short(now.id, verbose=given["verbose"])}" is driven by region "{now.owner}" now\n')
    terminal.write(region_table(now, verbose=given["verbose"]))
    return OK


def _question(terminal: Terminal, rollout: Rollout) -> str:
    here = f'region "{terminal.target.region}"' if terminal.target.region else "the agent's region"
    return (
        f'Rollout "{short(rollout.id)}" of job "{rollout.job_id}" is driven by region "{rollout.owner}". Is that region'
        f" lost, and shall {here} drive it from now on?"
    )


def _all(terminal: Terminal, job_id: str, *, is_active: bool) -> Sequence[RolloutView]:
    """Newest first."""
    found: list[RolloutView] = []
    token = ""
    while True:
        request = RolloutListRequest(job_id=job_id, active=is_active, per_page=PAGE, next_token=token)
        reply = terminal.client.call(ROLLOUT_LIST, request)
        found += reply.rollouts
        token = reply.next_token
        if not token:
            return sorted(found, key=lambda one: (-one.rollout.create_time_ns, one.rollout.id))


def _row(rollout: Rollout, *, verbose: bool) -> list[Any]:
    regions = ", ".join(f"{one.name} {one.status.value}" for one in rollout.regions)
    return [
        short(rollout.id, verbose=verbose),
        rollout.job_id,
        rollout.job_version,
        rollout.owner,
        rollout.status.value,
        regions,
    ]
