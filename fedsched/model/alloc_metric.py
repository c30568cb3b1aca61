"""What the scheduler saw while it placed one allocation or failed to: why here, why not there."""

from __future__ import annotations

from typing import Annotated

from fedsched.model.record import EMPTY, InJson, Record, Seconds
from fedsched.model.resources import Resources


class NodeScoreMeta(Record):
    """How one node scored."""

    node_id: str = ""
    scores: Annotated[dict[str, float], "By scorer."] = EMPTY
    norm_score: float = 0.0


class AllocMetric(Record):
    """Counts and scores of one placement."""

    nodes_evaluated: int = 0
    nodes_filtered: int = 0
    nodes_in_pool: int = 0
    node_pool: str = ""
    nodes_available: Annotated[dict[str, int], InJson.KEEP_EMPTY, "By datacenter."] = EMPTY
    class_filtered: dict[str, int] = EMPTY
    constraint_filtered: dict[str, int] = EMPTY
    nodes_exhausted: int = 0
    class_exhausted: dict[str, int] = EMPTY
    dimension_exhausted: dict[str, int] = EMPTY
    quota_exhausted: tuple[str, ...] = ()
    resources_exhausted: Annotated[dict[str, Resources], "What did not fit, by task."] = EMPTY
    scores: Annotated[dict[str, float], "Legacy, always empty."] = EMPTY
    score_meta_data: Annotated[tuple[NodeScoreMeta, ...], "The best nodes, best first."] = ()
    allocation_time_s: Seconds = 0.0
    coalesced_failures: Annotated[int, "Further placements of the group that failed alike."] = 0
