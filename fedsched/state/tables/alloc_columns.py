"""What an allocation looks like in columns, and back as a record.

Three layers make one allocation. The *record* in columns has what is asked for often: node, place in its group, states,
indexes, times. The *origin* (see `alloc_origins`) has what all allocations of one group in one plan share: job,
version, evaluation, resources; and, in columns of its own, what each of them scored (see `alloc_scores`). *Cold* bytes
have the rest, per allocation and only where there is any: what the plan said about this one alone, what was last wished
of it, what its client reports, and which allocations came before and after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntFlag
from typing import Any, Final

import numpy as np

from fedsched.codec import STORED_LIMITS, CodecError, dumps, from_builtins, loads, to_builtins
from fedsched.model.alloc import Allocation, ClientStatus, DesiredStatus
from fedsched.model.ids import alloc_name, uuid_text
from fedsched.model.record import fields_of
from fedsched.state.columns import Rows
from fedsched.state.tables.alloc_origins import OriginRow
from fedsched.state.tables.alloc_scores import with_own

ALLOC_DTYPE: Final = np.dtype(
    [
        ("used", "<u1"),
        ("desired", "<u1"),
        ("client_status", "<u1"),
        ("health", "<u1"),
        ("flags", "<u4"),
        ("id", "<u8", (2,)),
        ("node", "<i4"),
        ("origin", "<i4"),
        ("name_index", "<i4"),
        ("plan_crc", "<u4"),
        ("desired_crc", "<u4"),
        ("client_crc", "<u4"),
        ("kin_crc", "<u4"),
        ("score_at", "<u4"),
        ("create_index", "<i8"),
        ("modify_index", "<i8"),
        ("alloc_modify_index", "<i8"),
        ("create_time", "<i8"),
        ("modify_time", "<i8"),
    ]
)

LINK_DTYPE: Final = np.dtype(
    [("used", "<u4"), ("next_node", "<i4"), ("prev_node", "<i4"), ("next_age", "<i4"), ("prev_age", "<i4")]
)
"""The chains through allocations, in the same slots. Apart from the records, because appending to a chain touches one
old allocation per node: close together they stay in the processor's cache. They do not count for the state digest."""

GROUP_DTYPE: Final = np.dtype([("used", "<u4"), ("live", "<i4"), ("by_status", "<i4", (7,)), ("spare", "<u4")])
"""Per group of a job: allocations not terminal, and the job summary: queued, then one count per client status."""

AGE_DTYPE: Final = np.dtype([("used", "<u4"), ("head", "<i4"), ("tail", "<i4"), ("spare", "<u4")])
"""The one owner of the chain of all allocations, oldest first."""

DESIRED_CODES: Final = {DesiredStatus.RUN: 1, DesiredStatus.STOP: 2, DesiredStatus.EVICT: 3}
CLIENT_CODES: Final = {
    ClientStatus.PENDING: 1,
    ClientStatus.RUNNING: 2,
    ClientStatus.COMPLETE: 3,
    ClientStatus.FAILED: 4,
    ClientStatus.LOST: 5,
    ClientStatus.UNKNOWN: 6,
}
"""The codes are in logs and images: a status keeps its number for ever."""

DESIRED_BY_CODE: Final = {code: status for status, code in DESIRED_CODES.items()}
CLIENT_BY_CODE: Final = {code: status for status, code in CLIENT_CODES.items()}
RUN: Final = DESIRED_CODES[DesiredStatus.RUN]
PENDING: Final = CLIENT_CODES[ClientStatus.PENDING]
CLIENT_TERMINAL: Final = np.zeros(8, dtype=np.bool_)
CLIENT_TERMINAL[[code for status, code in CLIENT_CODES.items() if status.is_terminal]] = True

HEALTHY: Final = 1
UNHEALTHY: Final = 2
HEALTH_BY_CODE: Final = {0: None, HEALTHY: True, UNHEALTHY: False}


class Flag(IntFlag):
    """Single bits of an allocation. The numbers are in logs and images."""

    CANARY = 1
    MIGRATE = 2
    RESCHEDULE = 4
    FORCE_RESCHEDULE = 8
    NO_SHUTDOWN_DELAY = 16
    MIGRATE_DISABLE_PLACEMENT = 32


TRANSITION_FLAGS: Final = {
    Flag.MIGRATE: "Migrate",
    Flag.RESCHEDULE: "Reschedule",
    Flag.FORCE_RESCHEDULE: "ForceReschedule",
    Flag.NO_SHUTDOWN_DELAY: "NoShutdownDelay",
    Flag.MIGRATE_DISABLE_PLACEMENT: "MigrateDisablePlacement",
}


def is_live(rows: Rows) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which of these allocations are neither stopped by a server nor ended on their client."""
    live: np.ndarray[Any, np.dtype[np.bool_]] = (rows["desired"] == RUN) & ~CLIENT_TERMINAL[rows["client_status"]]
    return live


def id_of(row: Any) -> str:
    """The id of one record, as text."""
    high, low = row["id"]
    return uuid_text(int(high).to_bytes(8, "big") + int(low).to_bytes(8, "big"))


def to_allocation(
    row: Any, origin: OriginRow, *, node_id: str, node_name: str, cold: tuple[bytes, ...], kin: bytes
) -> Allocation:
    """The record that people and schedulers know. Later cold bytes win over earlier ones, columns over all."""
    try:
        return from_builtins(_fields(row, origin, node_id, node_name, (origin.shared, *cold), kin), Allocation)
    except CodecError as error:
        # One record that cannot be read must not hide all others of a list; the columns are always readable.
        said = {"ClientDescription": f"stored details cannot be read by this version: {error}"}
        return from_builtins(_fields(row, origin, node_id, node_name, (), kin) | said, Allocation)


def stored_fields(allocation: Allocation, *names: str) -> bytes:
    """These fields of an allocation, encoded for the bytes beside the columns; what is empty is left out."""
    whole = to_builtins(allocation)
    keys = (field.internal_name for field in fields_of(Allocation) if field.name in names)
    return dumps({key: whole[key] for key in keys if key in whole})


def _fields(
    row: Any, origin: OriginRow, node_id: str, node_name: str, parts: tuple[bytes, ...], kin: bytes
) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for part in parts:
        if part:
            fields.update(_read_fields(part))
    scores = origin.scores_at(int(row["score_at"]) - 1) if parts and origin.scores else None
    if scores:
        fields["Metrics"] = with_own(fields.get("Metrics"), node_id, scores)
    fields.update(
        ID=id_of(row),
        Namespace=origin.namespace,
        EvalID=origin.evaluation_id,
        Name=alloc_name(origin.job_id, origin.group, int(row["name_index"])),
        NodeID=node_id,
        NodeName=node_name,
        JobID=origin.job_id,
        TaskGroup=origin.group,
        DeploymentID=origin.deployment_id,
        DesiredStatus=DESIRED_BY_CODE[int(row["desired"])].value,
        ClientStatus=CLIENT_BY_CODE[int(row["client_status"])].value,
        CreateIndex=int(row["create_index"]),
        ModifyIndex=int(row["modify_index"]),
        AllocModifyIndex=int(row["alloc_modify_index"]),
        CreateTime=int(row["create_time"]),
        ModifyTime=int(row["modify_time"]),
    )
    if kin:
        fields.update(PreviousAllocation=_kin_text(kin[:16]), NextAllocation=_kin_text(kin[16:]))
    _add_flags(fields, Flag(int(row["flags"])), int(row["health"]))
    return fields


def _kin_text(identity: bytes) -> str:
    return uuid_text(identity) if any(identity) else ""


def _read_fields(part: bytes) -> Mapping[str, Any]:
    fields = loads(part, STORED_LIMITS)
    if not isinstance(fields, dict):
        raise CodecError("an allocation's stored fields are not a map")
    return fields


def _add_flags(fields: dict[str, Any], flags: Flag, health: int) -> None:
    transition = {name: True for flag, name in TRANSITION_FLAGS.items() if flag in flags}
    if transition:
        fields["DesiredTransition"] = transition
    if Flag.CANARY in flags or health:
        status = fields.get("DeploymentStatus")
        known = dict(status) if isinstance(status, dict) else {}
        fields["DeploymentStatus"] = {
            **known,
            "Healthy": HEALTH_BY_CODE.get(health),
            "Canary": Flag.CANARY in flags,
        }
