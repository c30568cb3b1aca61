"""Answers to "why": what stands in the way of a placement, and the smallest change that would let it happen."""

from __future__ import annotations

from typing import Annotated

from fedsched.model.record import EMPTY, Record


class Obstacle(Record):
    """One thing that keeps a group off a node."""

    kind: Annotated[str, "Such as `memory`, `constraint`, `ineligible`."]
    subject: Annotated[str, "Which constraint, driver, port."] = ""
    amount: Annotated[int, "How much is too little."] = 0
    cost: Annotated[float, "How large a change it would be to be rid of it; only good for comparing."] = 0.0
    words: Annotated[str, "What is wrong."] = ""
    change: Annotated[str, "What would have to be so instead; empty if nothing can be done."] = ""


class Change(Record):
    """What would let one more allocation of a group be placed, all else as it is."""

    words: str
    node_id: Annotated[str, "Where it would then fit."] = ""
    node_name: str = ""
    nodes: Annotated[int, "On how many of the nodes looked at the same kind of change would do."] = 1
    obstacles: Annotated[tuple[Obstacle, ...], "What the change takes out of the way."] = ()


class Candidate(Record):
    """A node that has room, and how it scores."""

    node_id: str
    node_name: str = ""
    score: float = 0.0
    scores: Annotated[dict[str, float], "By scorer."] = EMPTY


class GroupWhy(Record):
    """One group of a job."""

    group: str
    wanted: Annotated[int, "Allocations there should be; for jobs that run on every node, how many more."] = 0
    running: int = 0
    starting: int = 0
    complete: int = 0
    failed: Annotated[int, "Of all its allocations that are still known."] = 0
    unknown: Annotated[int, "On clients that are cut off."] = 0
    unplaced: Annotated[int, "Allocations that find no place now."] = 0
    words: Annotated[tuple[str, ...], "The shortest first."] = ()
    changes: Annotated[tuple[Change, ...], "The smallest first."] = ()
    candidates: Annotated[tuple[Candidate, ...], "Nodes for the next allocation, best first."] = ()


class JobWhy(Record):
    """Why a job is as it is."""

    job_id: str
    namespace: str = "default"
    verdict: Annotated[str, "One word: `running`, `complete`, `stopped`, `waiting`, `blocked`, `failed`, `idle`."] = ""
    words: Annotated[tuple[str, ...], "The shortest true explanation first, one idea per line."] = ()
    groups: tuple[GroupWhy, ...] = ()


class AllocWhy(Record):
    """Why an allocation is where it is, and in the state it is in."""

    alloc_id: str
    name: str = ""
    words: Annotated[tuple[str, ...], "The shortest true explanation first, one idea per line."] = ()
    candidates: Annotated[tuple[Candidate, ...], "The nodes as they scored when it was placed, best first."] = ()


class NodeGroupWhy(Record):
    """One group of a job and one node."""

    group: str
    fits: bool = False
    here: Annotated[int, "Allocations of the group that are on the node now."] = 0
    words: tuple[str, ...] = ()
    obstacles: tuple[Obstacle, ...] = ()
    score: Annotated[float | None, "None where there is no room."] = None
    best: Annotated[Candidate | None, "The node that would be taken instead."] = None


class NodeWhyNot(Record):
    """Why a job is not on a node."""

    node_id: str
    node_name: str = ""
    job_id: str = ""
    groups: tuple[NodeGroupWhy, ...] = ()
