"""`eval ...`: notes that a job's wanted and actual state may differ, and what came of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedsched.model.evaluation import Evaluation
from fedsched.model.record import to_api
from fedsched.rpc.methods.evaluation import (
    EVAL_ALLOCS,
    EVAL_DELETE,
    EVAL_GET,
    EVAL_LIST,
    EvaluationDeleteRequest,
    EvaluationListRequest,
    EvaluationRequest,
)
from fedsched.verbs.flags import Argument, BadUsage, Flag, Given
from fedsched.verbs.job_monitor import failures, monitor
from fedsched.verbs.lookup import PAGE, check_prefix, one_of, pages
from fedsched.verbs.placement import failure_lines
from fedsched.verbs.terminal import Terminal
from fedsched.verbs.verb import JSON, OK, TEMPLATE, VERBOSE, Regions, Verbs
from fedsched.verbs.view import columns, moment, pairs, quoted, short

VERBS = Verbs()

HEAD = ("ID", "Priority", "Triggered By", "Job ID", "Namespace", "Node ID", "Status", "Placement Failures")


@VERBS.verb(
    "eval list",
    "list evaluations",
    flags=(
        Flag("status", "only with this status", value="status"),
        Flag("job", "only of this job", value="id"),
        Flag("filter", "only those that this expression holds for: 'Status == \"blocked\"'", value="expression"),
        Flag("per-page", "only so many, and say where the next page begins", int, value="number"),
        Flag("page-token", "where the page begins", value="token"),
        VERBOSE,
        JSON,
        TEMPLATE,
    ),
    regions=Regions.EACH,
)
def list_(terminal: Terminal, given: Given) -> int:
    found, token = _page(terminal, given)
    if terminal.formatted(given, lambda: [to_api(one) for one in found]):
        return OK
    if not found:
        terminal.say("No evals found")
        return OK
    terminal.write(columns(HEAD, [_row(one, verbose=given["verbose"]) for one in found]))
    if token:
        again = " ".join(f"-{name} {quoted(given[name])}" for name in ("status", "job", "filter") if given[name])
        if terminal.target.region:
            again = f"-region {quoted(terminal.target.region)} {again}".rstrip()
        terminal.say("\nResults have been paginated. To get the next page run:\n")
        terminal.say(f"fedsched eval list {again}{' ' * bool(again)}-per-page {given['per-page']} -page-token {token}")
    return OK


@VERBS.verb(
    "eval status",
    "show one evaluation",
    flags=(Flag("monitor", "follow it until it is done", bool), VERBOSE, JSON, TEMPLATE),
    arguments=(Argument("eval", "id of the evaluation, or the beginning of it"),),
    regions=Regions.EACH,
)
def status(terminal: Terminal, given: Given) -> int:
    check_prefix(given["eval"])
    stub = one_of(_with_prefix(terminal, given["eval"]), given["eval"], "evaluation", _table)
    if given["monitor"]:
        return monitor(terminal, stub.id, namespace=stub.namespace, verbose=given["verbose"])
    one = terminal.client.call(
        EVAL_GET, EvaluationRequest(eval_id=stub.id, related=True), namespace=stub.namespace
    ).evaluation
    if not terminal.formatted(given, lambda: to_api(one)):
        terminal.write(pairs(_head(one, verbose=given["verbose"])))
        _show_related(terminal, one, verbose=given["verbose"])
        _show_annotations(terminal, one)
        _show_placed(terminal, one, verbose=given["verbose"])
        _show_failures(terminal, one)
    return OK


def _page(terminal: Terminal, given: Given) -> tuple[Sequence[Evaluation], str]:
    if given["filter"]:
        return _filtered(terminal, given)

    def fetch(token: str) -> tuple[Sequence[Evaluation], str]:
        request = EvaluationListRequest(
            job_id=given["job"] or "",
            status=given["status"] or "",
            next_token=token or given["page-token"] or "",
            per_page=given["per-page"] or PAGE,
        )
        reply = terminal.client.call(EVAL_LIST, request)
        return reply.evaluations, reply.next_token

    return fetch("") if given["per-page"] else (list(pages(fetch)), "")


def _filtered(terminal: Terminal, given: Given) -> tuple[Sequence[Evaluation], str]:
    """Those that an expression holds for, and where the next page of them begins."""
    from fedsched.model.filter import compile_filter

    if given["job"] or given["status"]:
        raise BadUsage(
            "Filter expression cannot be used with other filter parameters",
            hint='say it all in the expression: \'JobID == "web" and Status == "blocked"\'',
        )
    is_wanted = compile_filter(given["filter"], to_api(Evaluation(id="")).keys())

    def fetch(token: str) -> tuple[Sequence[Evaluation], str]:
        request = EvaluationListRequest(next_token=token or given["page-token"] or "", per_page=PAGE)
        reply = terminal.client.call(EVAL_LIST, request)
        return reply.evaluations, reply.next_token

    limit = given["per-page"]
    found: list[Evaluation] = []
    for one in pages(fetch):
        if is_wanted(to_api(one)):
            if limit and len(found) == limit:
                return found, one.id
            found.append(one)
    return found, ""


def _with_prefix(terminal: Terminal, prefix: str) -> list[Evaluation]:
    def fetch(token: str) -> tuple[Sequence[Evaluation], str]:
        request = EvaluationListRequest(prefix=prefix, next_token=token, per_page=PAGE)
        reply = terminal.client.call(EVAL_LIST, request)
        return reply.evaluations, reply.next_token

    return list(pages(fetch))


def _table(found: Sequence[Evaluation]) -> str:
    return columns(HEAD, [_row(one, verbose=True) for one in found])


def _row(one: Evaluation, *, verbose: bool) -> tuple[Any, ...]:
    return (
        short(one.id, verbose=verbose),
        one.priority,
        str(one.triggered_by),
        one.job_id,
        one.namespace,
        short(one.node_id, verbose=verbose),
        one.status.value,
        failures(one),
    )


def _head(one: Evaluation, *, verbose: bool) -> list[tuple[str, Any]]:
    head: list[tuple[str, Any]] = [
        ("ID", short(one.id, verbose=verbose)),
        ("Create Time", moment(one.create_time_ns)),
        ("Modify Time", moment(one.modify_time_ns)),
        ("Status", one.status.value),
        ("Status Description", one.status_description or one.status.value),
        ("Type", one.type),
        ("TriggeredBy", str(one.triggered_by)),
        ("Job ID", one.job_id),
        ("Namespace", one.namespace),
    ]
    if one.node_id:
        head.append(("Node ID", short(one.node_id, verbose=verbose)))
    head += [("Priority", one.priority), ("Placement Failures", failures(one))]
    if one.deployment_id:
        head.append(("Deployment ID", short(one.deployment_id, verbose=verbose)))
    if verbose:
        head += [("Previous Eval", one.previous_eval), ("Next Eval", one.next_eval), ("Blocked Eval", one.blocked_eval)]
    return head


def _show_related(terminal: Terminal, one: Evaluation, *, verbose: bool) -> None:
    if not one.related_evals:
        return
    terminal.heading("Related Evaluations")
    rows = [
        (short(kin.id, verbose=verbose), kin.priority, kin.triggered_by, short(kin.node_id), kin.status)
        for kin in one.related_evals
    ]
    terminal.write(columns(("ID", "Priority", "Triggered By", "Node ID", "Status"), rows))


def _show_annotations(terminal: Terminal, one: Evaluation) -> None:
    if one.plan_annotations is None or not one.plan_annotations.desired_tg_updates:
        return
    terminal.heading("Plan Annotations")
    rows = [
        (name, wish.ignore, wish.place, wish.stop, wish.in_place_update, wish.destructive_update)
        for name, wish in sorted(one.plan_annotations.desired_tg_updates.items())
    ]
    terminal.write(columns(("Task Group", "Ignore", "Place", "Stop", "InPlace", "Destructive"), rows))


def _show_placed(terminal: Terminal, one: Evaluation, *, verbose: bool) -> None:
    request = EvaluationRequest(eval_id=one.id)
    allocs = terminal.client.call(EVAL_ALLOCS, request, namespace=one.namespace).allocs
    if allocs:
        from fedsched.verbs.finding import alloc_table

        terminal.heading("Placed Allocations")
        terminal.write(alloc_table(terminal, allocs, verbose=verbose))


def _show_failures(terminal: Terminal, one: Evaluation) -> None:
    if not one.failed_tg_allocs:
        return
    terminal.heading("Failed Placements")
    for line in failure_lines(one.failed_tg_allocs, one.queued_allocations):
        terminal.say(line)


@VERBS.verb(
    "eval delete",
    "forget evaluations that are done",
    flags=(JSON,),
    arguments=(Argument("evals", "ids of the evaluations, or the beginnings of them", many=True),),
)
def delete(terminal: Terminal, given: Given) -> int:
    found = []
    for typed in given["evals"]:
        check_prefix(typed)
        found.append(one_of(_with_prefix(terminal, typed), typed, "evaluation", _table).id)
    reply = terminal.client.call(EVAL_DELETE, EvaluationDeleteRequest(eval_ids=tuple(found)))
    if not terminal.formatted(given, lambda: to_api(reply)):
        terminal.say(f"Successfully deleted {reply.count} evaluation{'s'[: reply.count != 1]}")
    return OK
