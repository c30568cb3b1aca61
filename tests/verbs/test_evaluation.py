from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from fedsched.model.alloc_metric import AllocMetric
from fedsched.model.evaluation import Evaluation, EvaluationStatus
from fedsched.rpc.methods.evaluation import (
    EVAL_GET,
    EVAL_LIST,
    EvaluationGetReply,
    EvaluationListReply,
    EvaluationListRequest,
)
from tests.verbs.commands import NOW_NS, STAMP, fedsched


def an_evaluation(start: str = "8f0b2a77", **more: Any) -> Evaluation:
    fields: dict[str, Any] = {"job_id": "web", "priority": 50, "triggered_by": "job-register", "type": "service"}
    return Evaluation(id=f"{start}-0000-4000-8000-000000000000", **(fields | more))


def listing(*found: Evaluation, page: int = 100) -> Callable[[EvaluationListRequest], EvaluationListReply]:
    def answer(request: EvaluationListRequest) -> EvaluationListReply:
        size = min(page, request.per_page)
        rows = [one for one in found if one.id.startswith(request.prefix) and one.id >= request.next_token]
        following = rows[size].id if len(rows) > size else ""
        return EvaluationListReply(evaluations=tuple(rows[:size]), next_token=following)

    return answer


FIRST = an_evaluation("11111111", node_id="6e01b7c2-0000-4000-8000-000000000000")
SECOND = an_evaluation("22222222", status=EvaluationStatus.COMPLETE, failed_tg_allocs={"front": AllocMetric()})


def test_list_shows_every_evaluation_page_by_page() -> None:
    seen = fedsched("eval list -job web -status pending", {EVAL_LIST: listing(FIRST, SECOND, page=1)})

    assert seen.out == (
        "ID        Priority  Triggered By  Job ID  Namespace  Node ID   Status    Placement Failures\n"
        "11111111  50        job-register  web     default    6e01b7c2  pending   false\n"
        "22222222  50        job-register  web     default    <none>    complete  true\n"
    )
    assert [(one.job_id, one.status) for one in seen.agent.requests(EVAL_LIST)] == [("web", "pending")] * 2


def test_one_page_says_where_the_next_begins() -> None:
    seen = fedsched("eval list -per-page 1", {EVAL_LIST: listing(FIRST, SECOND)})

    assert "22222222  50" not in seen.out
    assert seen.out.endswith(f"\nfedsched eval list -per-page 1 -page-token {SECOND.id}\n")
    following = fedsched(f"eval list -per-page 1 -page-token {SECOND.id}", {EVAL_LIST: listing(FIRST, SECOND)})
    assert following.out.splitlines()[1].startswith("22222222")


def test_list_of_nothing_and_as_json() -> None:
    assert fedsched("eval list", {EVAL_LIST: listing()}).out == "No evals found\n"
    assert json.loads(fedsched("eval list -json", {EVAL_LIST: listing(FIRST)}).out)[0]["ID"] == FIRST.id


def test_status_shows_one_by_its_beginning() -> None:
    one = an_evaluation(create_time_ns=NOW_NS, modify_time_ns=NOW_NS)
    answers = {EVAL_LIST: listing(one, FIRST), EVAL_GET: lambda _: EvaluationGetReply(evaluation=one)}

    seen = fedsched("eval status 8f", answers)

    assert seen.out == (
        "ID                 = 8f0b2a77\n"
        f"Create Time        = {STAMP}\n"
        f"Modify Time        = {STAMP}\n"
        "Status             = pending\n"
        "Status Description = pending\n"
        "Type               = service\n"
        "TriggeredBy        = job-register\n"
        "Job ID             = web\n"
        "Namespace          = default\n"
        "Priority           = 50\n"
        "Placement Failures = false\n"
    )
    assert json.loads(fedsched("eval-status -json 8f", answers).out)["ID"] == one.id


def test_status_shows_what_there_is_more_to_say() -> None:
    one = an_evaluation(
        node_id="6e01b7c2-1",
        deployment_id="51c9e0d4-1",
        failed_tg_allocs={"front": AllocMetric(coalesced_failures=2)},
        next_eval="n1",
    )
    answers = {EVAL_LIST: listing(one), EVAL_GET: lambda _: EvaluationGetReply(evaluation=one)}

    out = fedsched("eval status -verbose 8f", answers).out

    assert "Node ID            = 6e01b7c2-1\n" in out
    assert "Deployment ID      = 51c9e0d4-1\n" in out
    assert "Next Eval          = n1\n" in out
    assert out.endswith(
        '\nFailed Placements\nTask Group "front" (failed to place 3 allocations):\n'
        "  * No nodes were eligible for evaluation\n"
    )


def test_status_can_follow_it() -> None:
    one = an_evaluation(status=EvaluationStatus.COMPLETE)
    answers = {EVAL_LIST: listing(one), EVAL_GET: lambda _: EvaluationGetReply(evaluation=one)}

    seen = fedsched("eval status -monitor 8f", answers)

    assert seen.out.endswith('Evaluation "8f0b2a77" finished with status "complete"\n')


def test_one_character_several_matches_and_none() -> None:
    answers = {EVAL_LIST: listing(FIRST, an_evaluation("11112222"))}

    short = fedsched("eval status 1", answers)
    assert short.err.startswith("Error: Identifier must contain at least two characters.\n")
    assert fedsched("eval status 11", answers).err.startswith("Error: Prefix matched multiple evaluations\n\nID ")
    none = fedsched("eval status ff", answers)
    assert none.err.startswith('Error: No evaluation(s) with prefix or id "ff" found\n')
    assert "`fedsched eval list` lists them" in none.err
    assert fedsched("eval status 11", answers).code == 1


def test_a_filter_keeps_what_it_holds_for_page_by_page() -> None:
    answers = {EVAL_LIST: listing(FIRST, SECOND, an_evaluation("33333333"), page=1)}

    some = fedsched("eval list -filter 'Status == pending'", answers)
    first = fedsched("eval list -per-page 1 -filter 'Status == \"pending\"'", answers)

    assert [line[:8] for line in some.out.splitlines()[1:]] == ["11111111", "33333333"]
    assert first.out.splitlines()[1].startswith("11111111")
    assert first.out.endswith(
        "fedsched eval list -filter 'Status == \"pending\"' -per-page 1"
        " -page-token 33333333-0000-4000-8000-000000000000\n"
    )


def test_a_filter_that_makes_no_sense_is_refused() -> None:
    answers = {EVAL_LIST: listing(FIRST)}

    assert "Filter expression cannot be used with other" in fedsched("eval list -job web -filter 'a == b'", answers).err
    assert "did you mean Status?" in fedsched("eval list -filter 'Staus == b'", answers).err
