"""`job why`, `alloc why`, `node why-not` as a person sees them."""

from __future__ import annotations

import json
from typing import Any

from fedsched.model.why import AllocWhy, Candidate, Change, GroupWhy, JobWhy, NodeGroupWhy, NodeWhyNot
from fedsched.rpc.methods import alloc as allocs
from fedsched.rpc.methods import why as methods
from tests.verbs.commands import fedsched
from tests.verbs.scenes import ALLOC, HAS_JOB, HAS_NODE, NODE, a_stub

HAS_ALLOC: dict[Any, Any] = {allocs.ALLOC_LIST: lambda _: allocs.AllocListReply(allocs=(a_stub(),))}
BEST = Candidate(node_id=NODE, node_name="n3", score=0.72, scores={"binpack": 0.9, "job-anti-affinity": -0.1})
BLOCKED = JobWhy(
    job_id="web",
    verdict="blocked",
    words=('Group "front": 1 allocation without a place.', "It fits if memory is 212 MB less."),
    groups=(
        GroupWhy(
            group="front",
            unplaced=1,
            words=('2 nodes are without enough "memory".',),
            changes=(
                Change(words="fits if memory is 212 MB less", node_id=NODE, node_name="n3", nodes=3),
                Change(words="fits if node n4 is eligible", node_id=NODE, node_name="n4"),
            ),
            candidates=(BEST, Candidate(node_id=ALLOC, node_name="n5", score=0.5)),
        ),
        GroupWhy(group="back", running=2),
    ),
)


def of_job(why: JobWhy) -> dict[Any, Any]:
    return {**HAS_JOB, methods.JOB_WHY: lambda _: methods.JobWhyReply(why=why)}


def test_job_why_gives_the_shortest_explanation_first_and_then_what_would_help() -> None:
    seen = fedsched("job why web", of_job(BLOCKED))

    assert (seen.code, seen.out) == (
        0,
        'Group "front": 1 allocation without a place.\n'
        "It fits if memory is 212 MB less.\n"
        "\n"
        'Group "front"\n'
        '2 nodes are without enough "memory".\n'
        "Fits if memory is 212 MB less, on n3 (or 2 other nodes alike).\n"
        "Fits if node n4 is eligible.\n",
    )


def test_job_why_verbose_shows_every_group_and_the_scores() -> None:
    out = fedsched("job why -verbose web", of_job(BLOCKED)).out

    assert 'Group "back"' in out
    assert "binpack" in out
    assert "0.720" in out


def test_job_why_asks_about_one_group_if_one_is_named() -> None:
    asked: list[methods.JobWhyRequest] = []

    def answer(request: methods.JobWhyRequest) -> methods.JobWhyReply:
        asked.append(request)
        return methods.JobWhyReply(why=BLOCKED)

    fedsched("job why -group=front web", {**HAS_JOB, methods.JOB_WHY: answer})

    assert [(one.job_id, one.group) for one in asked] == [("web", "front")]


def test_job_why_speaks_json() -> None:
    told = json.loads(fedsched("job why -json web", of_job(BLOCKED)).out)

    assert told["Verdict"] == "blocked"
    assert told["Groups"][0]["Changes"][0]["Words"] == "fits if memory is 212 MB less"


def test_alloc_why_tells_the_state_and_the_scores_of_the_placement() -> None:
    why = AllocWhy(alloc_id=ALLOC, words=("It is running.",), candidates=(BEST,))

    seen = fedsched(
        f"alloc why {ALLOC[:8]}", {**HAS_ALLOC, methods.ALLOC_WHY: lambda _: methods.AllocWhyReply(why=why)}
    )

    assert seen.code == 0
    assert seen.out.startswith("It is running.\n\nScores When It Was Placed\n")
    assert "n3" in seen.out


def test_alloc_why_speaks_json() -> None:
    why = AllocWhy(alloc_id=ALLOC, words=("It is running.",))
    answers = {**HAS_ALLOC, methods.ALLOC_WHY: lambda _: methods.AllocWhyReply(why=why)}

    assert json.loads(fedsched(f"alloc why -json {ALLOC}", answers).out)["Words"] == ["It is running."]
    assert fedsched(f"alloc why {ALLOC}", answers).out == "It is running.\n"


def test_node_why_not_tells_group_by_group() -> None:
    groups = (
        NodeGroupWhy(group="front", words=("n3 is not eligible.", "Fits if node n3 is eligible.")),
        NodeGroupWhy(group="back", fits=True, words=("The group fits here.",)),
    )
    why = NodeWhyNot(node_id=NODE, node_name="n3", job_id="web", groups=groups)
    answers = {**HAS_JOB, **HAS_NODE, methods.NODE_WHY_NOT: lambda _: methods.NodeWhyNotReply(why=why)}

    seen = fedsched(f"node why-not {NODE[:8]} web", answers)

    assert (seen.code, seen.out) == (
        0,
        'Group "front" on n3\nn3 is not eligible.\nFits if node n3 is eligible.\n\n'
        'Group "back" on n3\nThe group fits here.\n',
    )
    assert json.loads(fedsched(f"node why-not -json {NODE[:8]} web", answers).out)["Groups"][1]["Fits"] is True
