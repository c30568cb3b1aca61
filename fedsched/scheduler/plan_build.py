"""A plan on its way into columns: what a scheduler decides for one job, gathered group by group.

Placements come in bulk (a group's fresh allocations, all alike) or one by one (replacements, canaries, anything with
ports of its own). Both end in the same columns; only what differs is stored per allocation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsched.codec import dumps
from fedsched.model.deployment import DeploymentStatusUpdate
from fedsched.model.ids import uuid_bytes
from fedsched.model.job import Job
from fedsched.model.score_names import COUNT_AT_ZERO, ORDER
from fedsched.state.fields import pack
from fedsched.state.tables.alloc_scores import NO_SCORES, Scores, joined
from fedsched.state.tables.deployment_updates import DeploymentStatusWrite
from fedsched.state.tables.deployments import DeploymentWrite
from fedsched.state.tables.evaluations import EvaluationWrite
from fedsched.state.tables.plans import PlacedGroup, PlanApply, StoppedBatch, UpdatedGroup

NO_ID: Final = bytes(16)


class Older(NamedTuple):
    """A version of the job before the plan's, from which something is placed, and the deployment it belongs to."""

    version: int
    deployment_id: str


CURRENT: Final = Older(-1, "")
"""Nothing older: the plan's own version and deployment."""


@dataclass(slots=True)
class _Batch:
    """Placements of one group that share everything but their columns."""

    ids: list[bytes] = field(default_factory=list)
    node_slots: list[NDArray[np.uint32]] = field(default_factory=list)
    name_indexes: list[NDArray[np.uint32]] = field(default_factory=list)
    previous: list[bytes] = field(default_factory=list)
    has_previous: bool = False
    own: dict[int, bytes] = field(default_factory=dict)
    scores: list[tuple[Scores, int]] = field(default_factory=list)
    count: int = 0


class PlanBuilder:
    """Collects one attempt's plan."""

    def __init__(
        self, job: Job | None, *, namespace: str, job_id: str, evaluation_id: str, snapshot_index: int
    ) -> None:
        self._job = job
        self._namespace = namespace
        self._job_id = job_id
        self._evaluation_id = evaluation_id
        self._snapshot_index = snapshot_index
        self._placed: dict[tuple[str, int, bytes, Older], _Batch] = {}
        self._stopped: dict[tuple[int, int, bytes], list[bytes]] = {}
        self._updated: dict[tuple[str, bytes], list[bytes]] = {}
        self._deployments: list[DeploymentWrite] = []
        self._statuses: list[DeploymentStatusWrite] = []
        self._evaluations: list[EvaluationWrite] = []
        self.deployment_id = ""
        self.placed_count = 0

    @property
    def is_empty(self) -> bool:
        """Follow-up evaluations alone do not make a plan, but they must be stored: they count."""
        parts = (self._placed, self._stopped, self._updated, self._deployments, self._statuses, self._evaluations)
        return not any(parts)

    def place_many(
        self,
        group: str,
        ids: bytes,
        node_slots: NDArray[Any],
        name_indexes: NDArray[Any],
        shared: bytes,
        *,
        scores: Mapping[str, NDArray[Any]] | None = None,
        previous: bytes = b"",
        own: Mapping[int, dict[str, Any]] | None = None,
        flags: int = 0,
        older: Older = CURRENT,
    ) -> None:
        """New allocations of one group.

        `scores` has per scorer one figure for each. `previous` has the ids of those that they replace (zeros for none),
        or is empty if none replaces anybody. `own` are fields of the record (by their stored names) that only one has,
        by its position here.
        """
        batch, count = self._batch(group, flags, shared, older), len(node_slots)
        batch.ids.append(ids)
        batch.node_slots.append(node_slots.astype("<u4"))
        batch.name_indexes.append(name_indexes.astype("<u4"))
        batch.previous.append(previous or NO_ID * count)
        batch.has_previous |= bool(previous)
        batch.scores.append((_scores(scores), count))
        for at, fields in (own or {}).items():
            batch.own[batch.count + at] = dumps(fields)
        batch.count += count
        self.placed_count += count

    def stop(
        self, ids: Iterable[str], *, desired: int, client_status: int = 0, fields: dict[str, Any] | None = None
    ) -> None:
        """Allocations that get a new desired status (see the codes of `alloc_columns`) for one reason."""
        self.stop_known(list(map(uuid_bytes, ids)), desired, client_status, dumps(fields) if fields else b"")

    def stop_known(self, ids: list[bytes], desired: int, client_status: int, encoded: bytes) -> None:
        """The same with ids and fields as they will be stored."""
        if ids:
            self._stopped.setdefault((desired, client_status, encoded), []).extend(ids)

    def take_back_stops(self, ids: set[bytes]) -> None:
        """These go on as before, for now."""
        for key, known in list(self._stopped.items()):
            left = [identity for identity in known if identity not in ids]
            if left:
                self._stopped[key] = left
            else:
                del self._stopped[key]

    def update(self, group: str, ids: Iterable[str], shared: bytes = b"") -> None:
        """Allocations that go on in place under the plan's job version."""
        self._updated.setdefault((group, shared), []).extend(map(uuid_bytes, ids))

    def deployment(self, write: DeploymentWrite) -> None:
        self._deployments.append(write)

    def deployment_status(self, update: DeploymentStatusUpdate) -> None:
        """A stored deployment gets another status; what was counted for it stays."""
        self._statuses.append(
            DeploymentStatusWrite(
                id=update.deployment_id, status=update.status.value, description=update.status_description
            )
        )

    def evaluations(self, writes: Sequence[EvaluationWrite]) -> None:
        """Evaluations that belong to the plan whatever becomes of the one that made it."""
        self._evaluations += writes

    def build(self) -> PlanApply | None:
        """The command; None if there is nothing to do."""
        if self.is_empty:
            return None
        return PlanApply(
            namespace=self._namespace,
            job_id=self._job_id,
            job_create_index=self._job.create_index if self._job else 0,
            job_version=self._job.version if self._job else 0,
            evaluation_id=self._evaluation_id,
            snapshot_index=self._snapshot_index,
            deployment_id=self.deployment_id,
            placed=tuple(_placed(*key, batch) for key, batch in self._placed.items()),
            stopped=tuple(
                StoppedBatch(ids=b"".join(ids), desired=desired, client_status=status, fields=fields)
                for (desired, status, fields), ids in self._stopped.items()
            ),
            updated=tuple(
                UpdatedGroup(group=group, ids=b"".join(ids), shared=shared)
                for (group, shared), ids in self._updated.items()
            ),
            deployments=tuple(self._deployments),
            deployment_updates=tuple(self._statuses),
            evaluations=tuple(self._evaluations),
        )

    def _batch(self, group: str, flags: int, shared: bytes, older: Older) -> _Batch:
        return self._placed.setdefault((group, flags, shared, older), _Batch())


def _scores(columns: Mapping[str, NDArray[Any]] | None) -> Scores:
    """Figures as they are stored; a scorer that had nothing to say about anybody is left out."""
    if not columns:
        return NO_SCORES
    known = ((name, columns[name]) for name in ORDER if name in columns)
    said = {name: column for name, column in known if name in COUNT_AT_ZERO or column.any()}
    return Scores(tuple(said), b"".join(column.astype("<f4").tobytes() for column in said.values()))


def _placed(group: str, flags: int, shared: bytes, older: Older, batch: _Batch) -> PlacedGroup:
    scores = joined(batch.scores)
    own_data, own_sizes = pack(list(batch.own.values())) if batch.own else (b"", b"")
    return PlacedGroup(
        group=group,
        ids=b"".join(batch.ids),
        node_slots=np.concatenate(batch.node_slots).tobytes(),
        name_indexes=np.concatenate(batch.name_indexes).tobytes(),
        flags=flags,
        shared=shared,
        previous=b"".join(batch.previous) if batch.has_previous else b"",
        own_at=np.array(list(batch.own), dtype="<u4").tobytes(),
        own=own_data,
        own_sizes=own_sizes,
        score_names=scores.text,
        scores=scores.data,
        of_version=older.version,
        of_deployment=older.deployment_id,
    )
