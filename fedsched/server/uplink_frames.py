"""Makes the frames that clients are sent: what many nodes are told alike is encoded once.

A thousand allocations of one job go to a thousand nodes. Each frame names the job's version, what the allocations have
in common, and the node's own row; only the last differs, and it is a slice of one array.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeVar

from fedsched.codec import to_bytes_sparse
from fedsched.rpc.methods.node_frames import WatchOrigin
from fedsched.rpc.node_watch import KNOWN_MAX, WATCH_DTYPE, frame_items, pack_own, watch_rows
from fedsched.server.pace import CLIENTS_MS
from fedsched.state.columns import Rows, Slots
from fedsched.state.store import State
from fedsched.state.tables.allocations import NO_ID

ENCODED_MAX: Final = 4_096
"""Origins and job versions kept in their encoded form."""
ROW_BYTES: Final = WATCH_DTYPE.itemsize

VersionKey = tuple[str, str, int, int]
K = TypeVar("K")
V = TypeVar("V")


class Told(NamedTuple):
    """An origin as clients are told of it."""

    key: tuple[str, str, str, VersionKey]
    """What it is, in short: its number is used again for another one later."""
    version: VersionKey
    data: bytes


class Encoded:
    """What has been encoded already, for all streams of a server. Bounded: the oldest goes first."""

    def __init__(self) -> None:
        self._origins: dict[int, Told] = {}
        self._jobs: dict[VersionKey, bytes] = {}

    def origin(self, state: State, ref: int) -> Told:
        row = state.allocations.origins.get(ref)
        assert row is not None
        known = self._origins.get(ref)
        key = (row.evaluation_id, row.group, row.deployment_id, row.version_key)
        if known is not None and known.key == key:
            return known
        data = to_bytes_sparse(
            WatchOrigin(
                ref=ref,
                namespace=row.namespace,
                job_id=row.job_id,
                job_create_index=row.job_create_index,
                job_version=row.job_version,
                group=row.group,
                eval_id=row.evaluation_id,
                deployment_id=row.deployment_id,
                shared=row.shared,
            )
        )
        return _keep(self._origins, ref, Told(key, row.version_key, data))

    def job(self, state: State, version: VersionKey) -> bytes:
        """The version of a job; nothing if it is gone."""
        known = self._jobs.get(version)
        if known is not None:
            return known
        job = state.jobs.version_by_key(version)
        return b"" if job is None else _keep(self._jobs, version, to_bytes_sparse(job))

    def ahead(self, state: State, ref: int) -> None:
        """Encode an origin and its job now, if they are still there, so that using them later costs little."""
        if state.allocations.origins.get(ref) is not None:
            self.job(state, self.origin(state, ref).version)

    def forget(self) -> None:
        """The state was replaced: the same keys may mean something else."""
        self._origins.clear()
        self._jobs.clear()


def _keep(kept: dict[K, V], key: K, value: V, limit: int = ENCODED_MAX) -> V:
    kept.pop(key, None)
    kept[key] = value
    if len(kept) > limit:
        del kept[next(iter(kept))]
    return value


class Reading:
    """Allocations as they were at one moment, with all that frames say of them.

    Frames for many nodes are made over several turns of the event loop; what they say is read in one, which is short if
    origins and jobs have been encoded ahead.
    """

    __slots__ = ("_jobs", "_kin", "_own", "_refs", "_rows", "_told", "index")

    def __init__(self, state: State, encoded: Encoded, index: int, slots: Slots, rows: Rows) -> None:
        cold, numbers = state.allocations.cold, slots.tolist()
        self.index = index
        self._rows = watch_rows(rows)
        self._refs: list[int] = rows["origin"].tolist()
        self._told = {ref: encoded.origin(state, ref) for ref in dict.fromkeys(self._refs)}
        self._jobs = {told.version: encoded.job(state, told.version) for told in self._told.values()}
        self._own = [cold.plan.get(slot) or b"" for slot in numbers] if rows["plan_crc"].any() else []
        self._kin = [cold.kin.get(slot) or NO_ID + NO_ID for slot in numbers] if rows["kin_crc"].any() else []

    def origins(self, start: int, end: int) -> list[tuple[int, Told]]:
        """Where the allocations from one place to another came from."""
        return [(ref, self._told[ref]) for ref in dict.fromkeys(self._refs[start:end])]

    def job(self, version: VersionKey) -> bytes:
        """The version of a job; nothing if it is gone."""
        return self._jobs[version]

    def columns(self, start: int, end: int) -> tuple[bytes, bytes, bytes, bytes]:
        """Rows, what single allocations have of their own with its sizes, and their kin."""
        own, own_sizes = pack_own(self._own[start:end])
        return self._rows[ROW_BYTES * start : ROW_BYTES * end], own, own_sizes, b"".join(self._kin[start:end])


class Outgoing:
    """What one node has been told so far, and what is on its way to it."""

    __slots__ = ("_origins", "_versions", "told_pace_ms", "told_written", "unsent", "written")

    def __init__(self) -> None:
        self._origins: dict[int, object] = {}
        self._versions: dict[VersionKey, None] = {}
        self.unsent: list[bytes] = []
        """Items of frames for which there was no room yet; nothing newer is made before they are gone."""
        self.written = 0
        """The client's last report that is in the log."""
        self.told_written = 0
        self.told_pace_ms = CLIENTS_MS

    def start_over(self) -> None:
        """The next frame is a whole one, after which the client knows only what that says."""
        self._origins.clear()
        self._versions.clear()

    def add(
        self,
        reading: Reading,
        start: int,
        end: int,
        *,
        is_whole: bool = False,
        removed: bytes = b"",
        pace_ms: int = CLIENTS_MS,
    ) -> None:
        """Put one more frame on its way: the allocations from one place of a reading to another."""
        origins, jobs = [], []
        for ref, told in reading.origins(start, end):
            if self._origins.get(ref) == told.key:
                continue
            _keep(self._origins, ref, told.key, KNOWN_MAX)
            origins.append(told.data)
            if told.version not in self._versions:
                _keep(self._versions, told.version, None, KNOWN_MAX)
                job = reading.job(told.version)
                if job:
                    jobs.append(job)
        rows, own, own_sizes, kin = reading.columns(start, end)
        written, pace = self._beside(pace_ms)
        self.unsent.extend(
            frame_items(
                reading.index,
                is_whole=is_whole,
                jobs=jobs,
                origins=origins,
                rows=rows,
                own=own,
                own_sizes=own_sizes,
                kin=kin,
                removed=removed,
                written=written,
                pace_ms=pace,
            )
        )

    def add_ack(self, index: int, pace_ms: int) -> None:
        """Say nothing but that reports are written."""
        written, pace = self._beside(pace_ms)
        self.unsent.extend(frame_items(index, jobs=[], origins=[], written=written, pace_ms=pace))

    def _beside(self, pace_ms: int) -> tuple[int, int]:
        """What goes along with any frame, if it is news."""
        written = self.written if self.written != self.told_written else 0
        pace = pace_ms if pace_ms != self.told_pace_ms else 0
        self.told_written, self.told_pace_ms = self.written, pace_ms
        return written, pace
