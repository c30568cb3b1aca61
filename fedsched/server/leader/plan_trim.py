"""A plan without the share of some nodes."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from fedsched.state.columns import Slots
from fedsched.state.fields import pack, unpack
from fedsched.state.id_map import words_of
from fedsched.state.store import Store
from fedsched.state.tables.alloc_columns import Flag
from fedsched.state.tables.alloc_scores import Scores
from fedsched.state.tables.deployment_groups import pack_groups, unpack_groups
from fedsched.state.tables.deployments import DeploymentWrite
from fedsched.state.tables.plans import PlacedGroup, PlanApply, StoppedBatch, UpdatedGroup

Batch = TypeVar("Batch", StoppedBatch, UpdatedGroup)


def trimmed(plan: PlanApply, store: Store, refused: Slots) -> PlanApply:
    """The plan without anything on these nodes. How the evaluation ends is left out too: it is not over."""
    lost: set[bytes] = set()
    placed = [_placed_elsewhere(group, refused, lost) for group in plan.placed]
    stopped = [_told_elsewhere(batch, store, refused) for batch in plan.stopped]
    updated = [_told_elsewhere(group, store, refused) for group in plan.updated]
    return structs.replace(
        plan,
        placed=tuple(group for group in placed if group.ids),
        stopped=tuple(batch for batch in stopped if batch.ids),
        updated=tuple(group for group in updated if group.ids),
        deployments=tuple(_without_canaries(write, lost) for write in plan.deployments) if lost else plan.deployments,
        ends=(),
    )


def _placed_elsewhere(group: PlacedGroup, refused: Slots, lost_canaries: set[bytes]) -> PlacedGroup:
    kept = ~np.isin(np.frombuffer(group.node_slots, dtype="<u4"), refused)
    if kept.all():
        return group
    if group.flags & Flag.CANARY:
        lost_canaries.update(np.frombuffer(group.ids, dtype="V16")[~kept].tolist())
    own_at, own, own_sizes = _own_elsewhere(group, kept)
    return structs.replace(
        group,
        ids=_some(group.ids, "V16", kept),
        node_slots=_some(group.node_slots, "V4", kept),
        name_indexes=_some(group.name_indexes, "V4", kept),
        previous=_some(group.previous, "V16", kept) if group.previous else b"",
        own_at=own_at,
        own=own,
        own_sizes=own_sizes,
        scores=Scores.of(group.score_names, group.scores).only(kept).data,
    )


def _own_elsewhere(group: PlacedGroup, kept: NDArray[np.bool_]) -> tuple[bytes, bytes, bytes]:
    if not group.own_at:
        return b"", b"", b""
    places = np.frombuffer(group.own_at, dtype="<u4")
    moved = np.cumsum(kept) - 1
    own = unpack(group.own, group.own_sizes)
    left = [at for at, place in enumerate(places.tolist()) if kept[place]]
    if not left:
        return b"", b"", b""
    data, sizes = pack([own[at] for at in left])
    return moved[places[left]].astype("<u4").tobytes(), data, sizes


def _told_elsewhere(batch: Batch, store: Store, refused: Slots) -> Batch:
    slots = store.allocations.find(words_of(batch.ids))
    nodes = np.full(len(slots), -1, dtype=np.int64)
    nodes[slots >= 0] = store.allocations.live.read(slots[slots >= 0])["node"]
    kept = ~np.isin(nodes, refused)
    return batch if kept.all() else structs.replace(batch, ids=_some(batch.ids, "V16", kept))


def _without_canaries(write: DeploymentWrite, lost: set[bytes]) -> DeploymentWrite:
    """The deployment must not count on canaries that were not placed."""
    groups = unpack_groups(write.groups)
    left = [
        structs.replace(group, canaries=b"".join(one for one in group.canary_ids if one not in lost))
        for group in groups.values()
    ]
    return structs.replace(write, groups=pack_groups(left))


def _some(column: bytes, kind: str, kept: NDArray[np.bool_]) -> bytes:
    return np.frombuffer(column, dtype=kind)[kept].tobytes()
